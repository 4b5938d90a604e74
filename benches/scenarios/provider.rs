//! A box provider that speaks the protocol and forks nothing: what is measured is the queue. A run prints a line every
//! [`LINE_INTERVAL`] since its dispatch and ends with the last. All requests are written down as they arrive.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use regex::Regex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use url::Url;
use uuid::Uuid;

use super::Outcome;

pub const LINES: usize = 20;
pub const LINE_INTERVAL: Duration = Duration::from_millis(100);

/// What a whole run prints.
pub fn whole_output() -> String {
    (1..=LINES).map(|line| format!("line {line} of {LINES}\n")).collect()
}

#[derive(Debug, Default)]
struct BoxRun {
    dispatches: usize,
    started: Option<Instant>,
    tombstone: bool,
    killed: bool,
    last_poll: Option<Instant>,
}

/// A poll as it arrived.
#[derive(Debug, Clone, Copy)]
pub struct Poll {
    pub at: Instant,
    /// Since the run's poll before, or its start.
    pub after: Duration,
}

#[derive(Debug, Default)]
struct Record {
    runs: HashMap<Uuid, BoxRun>,
    polls: Vec<Poll>,
    started: Vec<(Uuid, Instant)>,
}

#[derive(Debug, Clone)]
pub struct Provider {
    pub url: Url,
    record: Arc<Mutex<Record>>,
}

impl Provider {
    pub async fn start() -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/", listener.local_addr()?).parse()?;
        let record = Arc::default();
        let provider = Self { url, record };
        tokio::spawn(provider.clone().serve(listener));
        Ok(provider)
    }

    pub fn polls(&self) -> Vec<Poll> {
        self.lock().polls.clone()
    }

    /// When each run's dispatch was taken.
    pub fn starts(&self) -> Vec<(Uuid, Instant)> {
        self.lock().started.clone()
    }

    /// Runs that were dispatched more than once.
    pub fn dispatched_again(&self) -> usize {
        self.lock().runs.values().filter(|run| run.dispatches > 1).count()
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self, listener: TcpListener) -> Infallible {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                continue;
            };
            let provider = self.clone();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(|request| provider.answer(request));
                // An error is how a client's end of a connection looks.
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    }

    async fn answer(&self, request: hyper::Request<Incoming>) -> Result<hyper::Response<Full<Bytes>>, hyper::Error> {
        let id = request.uri().path().split('/').nth(2).unwrap_or_default().to_owned();
        let is_info = request.method() == hyper::Method::GET;
        let body = request.into_body().collect().await?.to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let reply = if is_info {
            json!({ "ok": true, "type": "box.info", "box": { "id": id, "state": "ready" } })
        } else {
            let (exit, stdout) = self.run(body["command"].as_str().unwrap_or_default());
            json!({ "ok": true, "type": "command.finished", "exitCode": exit, "stdout": stdout, "stderr": "" })
        };
        let reply = hyper::Response::builder()
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(reply.to_string())));
        Ok(reply.expect("a valid answer"))
    }

    /// What the script's exit status and output would be.
    fn run(&self, script: &str) -> (u8, String) {
        let Some(id) = run_of(script) else {
            return (1, String::new());
        };
        let now = Instant::now();
        let has = |marker: &str| script.contains(marker);
        let mut record = self.lock();
        let Record { runs, polls, started } = &mut *record;
        let run = runs.entry(id).or_default();
        if has("OPENAGENTS_RUN_EXISTS") {
            run.dispatches += 1;
            if run.tombstone {
                return (73, "OA_TOMBSTONE=1\n".to_owned());
            }
            if run.started.is_some() {
                return (73, "OPENAGENTS_RUN_EXISTS\n".to_owned());
            }
            run.started = Some(now);
            started.push((id, now));
            return (0, "4242\n".to_owned());
        }
        if has("OA_REMOVED") {
            return (0, "OA_REMOVED=1\n".to_owned());
        }
        let Some(began) = run.started else {
            run.tombstone = true;
            return (0, "OA_PRESENT=0\n".to_owned());
        };
        if has("OA_CANCELLED") {
            run.killed = true;
            return (0, "OA_CANCELLED=1\n".to_owned());
        }
        if !has("OA_SIZE") {
            return (0, "OA_PRESENT=1\nOA_PID=4242\n".to_owned());
        }
        let after = now - run.last_poll.unwrap_or(began);
        run.last_poll = Some(now);
        polls.push(Poll { at: now, after });
        (0, poll(now - began, offset_of(script)))
    }
}

fn poll(running: Duration, offset: usize) -> String {
    let printed = usize::try_from(running.as_millis() / LINE_INTERVAL.as_millis()).unwrap_or(LINES);
    let log: String = whole_output().split_inclusive('\n').take(printed).collect();
    let data = STANDARD.encode(log.get(offset..).unwrap_or_default());
    let (exit, alive) = if printed >= LINES { ("OA_EXIT=0\n", 0) } else { ("", 1) };
    let size = log.len();
    format!("OA_PRESENT=1\nOA_FROM={offset}\n{exit}OA_SIZE={size}\nOA_DATA={data}\nOA_ALIVE={alive}\n")
}

fn run_of(script: &str) -> Option<Uuid> {
    static RUN: LazyLock<Regex> =
        LazyLock::new(|| Regex::new("/box-runs/users/[A-Za-z0-9_-]+/([0-9a-f-]{36})").expect("a pattern"));
    RUN.captures(script)?.get(1)?.as_str().parse().ok()
}

fn offset_of(script: &str) -> usize {
    let line = script.lines().find_map(|line| line.strip_prefix("offset="));
    line.and_then(|offset| offset.parse().ok()).unwrap_or(0)
}
