//! How long after the commit of an admission its dispatch arrives at the box: `cargo bench --bench dispatch_latency`,
//! with another number of runs than 200 after `--`.
//!
//! A PostgreSQL of its own with durable commits, a provider that answers at once, one idle worker process; runs are admitted
//! one after the other. In turn with them the floor on the same machine is measured: from a NOTIFY sent to it heard, and
//! then a command sent over a new connection with the same client to its arrival. A number says little without it.

use std::convert::Infallible;
use std::error::Error;
use std::process::Stdio;
use std::time::{Duration, Instant};

use boxrun::box_api::{BoxClient, Operation, Script};
use boxrun::ids::{BoxId, RunId};
use boxrun::postgres::{Durability, LocalPostgres, LocalPostgresSettings};
use boxrun::runs::conversations::{attach_box, default_conversation};
use boxrun::runs::{NewRun, Principal, start_run};
use boxrun::schema;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use secrecy::SecretString;
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

const RUNS: usize = 200;
const RUNS_MAX: usize = 10_000;
/// Under `cargo test --all-targets`: only to see that it works.
const RUNS_IN_TESTS: usize = 3;
const KEY: &str = "bench-key";
/// For a single step; a measurement that hangs ends.
const PATIENCE: Duration = Duration::from_secs(30);
/// Script of the floor, which the provider takes for none of boxrun's.
const BARE_SCRIPT: &str = "true";
const CHANNEL: &str = "bench";

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let runs = runs_asked_for();
    let postgres = LocalPostgres::temporary_with(LocalPostgresSettings {
        durability: Durability::Kept,
        ..Default::default()
    });
    let postgres = postgres.await?;
    let measured = measure(&postgres, runs).await;
    postgres.stop().await?;
    let [floor, checked, unchecked] = measured?;
    println!("milliseconds, {runs} times each              median     p95     max   of the floor");
    report("NOTIFY heard, then a command arrives", &floor, &floor);
    report("admitted, box checked by the caller", &checked, &floor);
    report("admitted, box checked by the worker", &unchecked, &floor);
    Ok(())
}

fn runs_asked_for() -> usize {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let default = if arguments.iter().any(|argument| argument == "--bench") {
        RUNS
    } else {
        RUNS_IN_TESTS
    };
    let asked = arguments.iter().find_map(|argument| argument.parse().ok());
    asked.unwrap_or(default).clamp(1, RUNS_MAX)
}

/// Floor, runs whose box was checked, runs whose box the worker checks.
async fn measure(postgres: &LocalPostgres, runs: usize) -> Outcome<[Vec<Duration>; 3]> {
    let pool = PgPoolOptions::new().max_connections(2).connect(&postgres.url()).await?;
    schema::migrate(&pool).await?;
    let (provider, arrivals) = Provider::start().await?;
    let mut worker = spawn_worker(&postgres.url(), &provider.url)?;
    let mut desk = Desk::open(pool, &provider, arrivals).await?;
    let mut measured = [vec![], vec![], vec![]];
    // The first ones find cold caches and connections: not counted.
    for turn in 0..runs + 2 {
        let floor = within(desk.floor()).await?;
        let checked = within(desk.dispatch(CheckedBy::Caller)).await?;
        let unchecked = within(desk.dispatch(CheckedBy::Worker)).await?;
        if turn >= 2 {
            measured[0].push(floor);
            measured[1].push(checked);
            measured[2].push(unchecked);
        }
    }
    worker.kill().await?;
    Ok(measured)
}

async fn within<T>(step: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::time::timeout(PATIENCE, step)
        .await
        .map_err(|_| "a step took longer than 30 s")?
}

fn spawn_worker(database_url: &str, provider_url: &url::Url) -> Outcome<Child> {
    let worker = Command::new(env!("CARGO_BIN_EXE_boxrun"))
        .arg("worker")
        .env_remove("BOXRUN_DATABASE_URL")
        .env("DATABASE_URL", database_url)
        .env("BOX_API_URL", provider_url.as_str())
        .env("BOX_API_KEY", KEY)
        // A run is to end soon after its dispatch, so that the worker is idle again.
        .env("BOXRUN_POLL_INTERVAL_MS", "1")
        .env("RUST_LOG", "warn")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok(worker)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckedBy {
    Caller,
    Worker,
}

/// The one who admits runs.
struct Desk {
    pool: PgPool,
    news: PgListener,
    client: BoxClient,
    arrivals: UnboundedReceiver<Instant>,
    box_id: BoxId,
    admitted: usize,
}

impl Desk {
    async fn open(pool: PgPool, provider: &Provider, arrivals: UnboundedReceiver<Instant>) -> Outcome<Self> {
        let mut news = PgListener::connect_with(&pool).await?;
        news.listen_all(["boxrun_runs", CHANNEL]).await?;
        let box_id: BoxId = "bx_8bhkse3n".parse()?;
        let principal = principal();
        let mut tx = pool.begin().await?;
        attach_box(&mut tx, default_conversation(&principal), &box_id, &principal).await?;
        tx.commit().await?;
        Ok(Self {
            pool,
            news,
            client: BoxClient::new(provider.url.clone(), Some(SecretString::from(KEY)))?,
            arrivals,
            box_id,
            admitted: 0,
        })
    }

    async fn floor(&mut self) -> Outcome<Duration> {
        let sent = Instant::now();
        sqlx::query("select pg_notify($1, '')")
            .bind(CHANNEL)
            .execute(&self.pool)
            .await?;
        while self.news.recv().await?.channel() != CHANNEL {}
        let bare = Script {
            operation: Operation::Dispatch,
            text: BARE_SCRIPT.to_owned(),
            timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(5),
        };
        self.client.run_command_on_new_connection(&self.box_id, &bare).await?;
        Ok(self.arrival().await? - sent)
    }

    /// From the commit's return to the dispatch's arrival; returns once the run has ended.
    async fn dispatch(&mut self, checked_by: CheckedBy) -> Outcome<Duration> {
        self.admitted += 1;
        let principal = principal();
        let conversation = default_conversation(&principal);
        let key = self.admitted.to_string();
        let mut new = NewRun::new(conversation, self.box_id.clone(), principal, "true", key);
        new.box_checked = checked_by == CheckedBy::Caller;
        let mut tx = self.pool.begin().await?;
        let run = start_run(&mut tx, new).await?;
        tx.commit().await?;
        let committed = Instant::now();
        let arrived = self.arrival().await?;
        self.ended(run.id).await?;
        // It may arrive before the caller's own task goes on.
        Ok(arrived.saturating_duration_since(committed))
    }

    async fn arrival(&mut self) -> Outcome<Instant> {
        self.arrivals
            .recv()
            .await
            .ok_or_else(|| "the provider has ended".into())
    }

    async fn ended(&mut self, run: RunId) -> Outcome<()> {
        loop {
            let news: Value = serde_json::from_str(self.news.recv().await?.payload())?;
            if news["run_id"] == json!(run) && news["state"] == "completed" {
                return Ok(());
            }
        }
    }
}

fn principal() -> Principal {
    Principal::user("bench")
}

/// A provider whose one box is ready, takes every dispatch, and has every run ended when asked.
struct Provider {
    url: url::Url,
    server: tokio::task::JoinHandle<Infallible>,
}

impl Provider {
    /// The provider, and when each dispatch and each bare command had arrived whole.
    async fn start() -> Outcome<(Self, UnboundedReceiver<Instant>)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/", listener.local_addr()?).parse()?;
        let (arrived, arrivals) = unbounded_channel();
        let server = tokio::spawn(serve(listener, arrived));
        Ok((Self { url, server }, arrivals))
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, arrived: UnboundedSender<Instant>) -> Infallible {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let arrived = arrived.clone();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| answer(arrived.clone(), request));
            // An error is how a client's end of a connection looks.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(
    arrived: UnboundedSender<Instant>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, hyper::Error> {
    let is_info = request.method() == hyper::Method::GET;
    let body = request.into_body().collect().await?.to_bytes();
    let now = Instant::now();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let command = body["command"].as_str().unwrap_or_default();
    let reply = if is_info {
        json!({ "ok": true, "type": "box.info", "box": { "id": "bx_8bhkse3n", "state": "ready" } })
    } else if command == BARE_SCRIPT || command.contains("OPENAGENTS_RUN_EXISTS") {
        // Nobody listens any more once the measurement is over.
        let _ = arrived.send(now);
        finished("4242\n")
    } else {
        finished("OA_PRESENT=1\nOA_FROM=0\nOA_EXIT=0\nOA_SIZE=0\nOA_DATA=\nOA_ALIVE=0\n")
    };
    let reply = hyper::Response::builder()
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(reply.to_string())));
    Ok(reply.expect("a valid answer"))
}

fn finished(stdout: &str) -> Value {
    json!({ "ok": true, "type": "command.finished", "success": true, "exitCode": 0, "stdout": stdout, "stderr": "" })
}

fn report(what: &str, measured: &[Duration], floor: &[Duration]) {
    let figures = [50, 95, 100].map(|percent| percentile(measured, percent));
    let ratios = [50, 95, 100].map(|percent| percentile(measured, percent) / percentile(floor, percent));
    let [median, p95, max] = figures;
    let [of_median, of_p95, of_max] = ratios;
    println!("{what:<42} {median:>7.2} {p95:>7.2} {max:>7.2}   {of_median:.1} / {of_p95:.1} / {of_max:.1}");
}

/// In milliseconds: the smallest value that `percent` of all do not exceed.
fn percentile(measured: &[Duration], percent: usize) -> f64 {
    let mut sorted = measured.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1].as_secs_f64() * 1000.0
}
