//! A box whose answers are written down by the test: an HTTP server on 127.0.0.1 that takes the next answer of a queue for
//! each command, records every request, and tells the test when requests arrive, so that nobody sleeps.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use boxrun::box_api::BoxClient;
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper_util::rt::TokioIo;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use url::Url;

/// The key that [`ScriptedBox::client`] uses; the server takes any.
pub const KEY: &str = "scripted-box-key";
/// How long [`ScriptedBox::wait_for_requests`] waits before it fails the test.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The status for a command that the script has no answer for.
const UNEXPECTED_STATUS: u16 = 599;

/// A request as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// The script, for a POST whose body has one.
    pub command: Option<String>,
    pub timeout_seconds: Option<u64>,
    pub authorization: Option<String>,
    /// Which connection it came over, counted from 0.
    pub connection: usize,
}

/// What the server does with a request.
#[derive(Debug, Clone)]
pub enum Answer {
    Reply {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: ReplyBody,
    },
    /// The connection is closed after the whole request was read, without a byte.
    Broken,
    /// Waits for [`ScriptedBox::release`], then answers with the inner one.
    Held(Box<Answer>),
}

#[derive(Debug, Clone)]
pub enum ReplyBody {
    Whole(String),
    /// Begins with this text and then never goes on.
    Stalled(String),
    /// Never ends.
    Endless,
}

impl Answer {
    /// `command.finished` with exit code 0.
    pub fn stdout(text: impl Into<String>) -> Self {
        Self::stdout_exit(text, 0)
    }

    pub fn stdout_exit(text: impl Into<String>, exit_code: i64) -> Self {
        Self::finished(&json!({ "stdout": text.into(), "exitCode": exit_code, "success": exit_code == 0 }))
    }

    /// `command.finished` with `fields` over the usual ones.
    pub fn finished(fields: &Value) -> Self {
        let mut body = json!({
            "ok": true, "type": "command.finished", "success": true, "exitCode": 0, "signal": null, "stdout": "",
            "stderr": "", "stdoutTruncated": false, "stderrTruncated": false, "timedOut": false,
        });
        let fields = fields.as_object().expect("the fields are an object").clone();
        body.as_object_mut().expect("an object").extend(fields);
        Self::status(200, &body)
    }

    pub fn status(status: u16, body: &Value) -> Self {
        Self::raw(status, "application/json", body.to_string())
    }

    pub fn raw(status: u16, content_type: &str, body: impl Into<String>) -> Self {
        let headers = vec![("content-type", content_type.to_owned())];
        Self::Reply {
            status,
            headers,
            body: ReplyBody::Whole(body.into()),
        }
    }

    /// `box.info` in a state of the provider's, for use with [`ScriptedBox::answer_gets`].
    pub fn box_state(id: &str, state: &str) -> Self {
        Self::status(
            200,
            &json!({ "ok": true, "type": "box.info", "box": { "id": id, "name": "scripted", "state": state } }),
        )
    }

    pub fn broken() -> Self {
        Self::Broken
    }

    /// Nothing until the test releases it, then the connection breaks.
    pub fn hang() -> Self {
        Self::Broken.held()
    }

    /// This answer, but only once the test releases it.
    pub fn held(self) -> Self {
        Self::Held(Box::new(self))
    }

    /// A 200 whose body begins and never ends: `Stalled` or `Endless`.
    pub fn unfinished(body: ReplyBody) -> Self {
        Self::Reply {
            status: 200,
            headers: vec![("content-type", "application/json".to_owned())],
            body,
        }
    }

    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        if let Self::Reply { headers, .. } = &mut self {
            headers.push((name, value.into()));
        }
        self
    }
}

type AnswerBy = Arc<dyn Fn(&Request) -> Answer + Send + Sync>;

#[derive(Default)]
struct Script {
    queue: VecDeque<Answer>,
    for_gets: Option<Answer>,
    by: Option<AnswerBy>,
    requests: Vec<Request>,
    unexpected: Vec<Request>,
}

struct Shared {
    script: Mutex<Script>,
    arrived: Notify,
    /// One permit lets one held answer go, whether it is waiting yet or not.
    releases: Semaphore,
}

/// The server; it ends, with its connections, when dropped.
pub struct ScriptedBox {
    url: Url,
    shared: Arc<Shared>,
    server: JoinHandle<Infallible>,
}

impl ScriptedBox {
    /// A server with an empty script whose boxes are ready.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let shared = Arc::new(Shared {
            script: Mutex::default(),
            arrived: Notify::new(),
            releases: Semaphore::new(0),
        });
        let server = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Self {
            url: format!("http://{address}/").parse().expect("an address"),
            shared,
            server,
        }
    }

    /// A server that answers commands in this order.
    pub async fn with_script(answers: impl IntoIterator<Item = Answer>) -> Self {
        let server = Self::start().await;
        server.script(answers);
        server
    }

    pub fn url(&self) -> Url {
        self.url.clone()
    }

    pub fn client(&self) -> BoxClient {
        BoxClient::new(self.url(), Some(SecretString::from(KEY))).expect("a client")
    }

    /// Adds answers for the commands to come.
    pub fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        self.lock().queue.extend(answers);
    }

    /// The answer to every GET from now on.
    pub fn answer_gets(&self, answer: Answer) {
        self.lock().for_gets = Some(answer);
    }

    /// Answers every request, GETs too, by a function from now on; the queue is not looked at.
    pub fn answer_by(&self, answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) {
        self.lock().by = Some(Arc::new(answer));
    }

    /// Lets one held answer go.
    pub fn release(&self) {
        self.shared.releases.add_permits(1);
    }

    pub fn requests(&self) -> Vec<Request> {
        self.lock().requests.clone()
    }

    /// The scripts that were sent, in the order of their arrival.
    pub fn commands(&self) -> Vec<String> {
        self.lock()
            .requests
            .iter()
            .filter_map(|request| request.command.clone())
            .collect()
    }

    /// The commands that the script had no answer for.
    pub fn unexpected(&self) -> Vec<Request> {
        self.lock().unexpected.clone()
    }

    /// Answers that no command has taken yet.
    pub fn answers_left(&self) -> usize {
        self.lock().queue.len()
    }

    /// Waits until at least `count` requests have arrived.
    pub async fn wait_for_requests(&self, count: usize) {
        self.wait_until(&format!("{count} requests"), |requests| requests.len() >= count)
            .await;
    }

    /// Waits until the requests are as `done` wants them; `what` is named when that does not happen in time.
    pub async fn wait_until(&self, what: &str, done: impl Fn(&[Request]) -> bool) {
        let arrival = async {
            loop {
                // Registered before looking, or a request between the look and the wait would be missed.
                let mut arrived = std::pin::pin!(self.shared.arrived.notified());
                arrived.as_mut().enable();
                if done(&self.lock().requests) {
                    return;
                }
                arrived.await;
            }
        };
        let arrived = tokio::time::timeout(WAIT_MAX, arrival).await.is_ok();
        assert!(arrived, "waited {WAIT_MAX:?} for {what}; seen: {:#?}", self.requests());
    }

    fn lock(&self) -> MutexGuard<'_, Script> {
        self.shared.lock()
    }
}

impl Drop for ScriptedBox {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a request and chooses its answer, in one step, so that the order of both is the same.
    fn take(&self, request: Request) -> Answer {
        let mut script = self.lock();
        script.requests.push(request.clone());
        let answer = if let Some(by) = script.by.clone() {
            drop(script);
            by(&request)
        } else if request.method == "GET" {
            let id = request.path.rsplit('/').next().unwrap_or_default();
            script
                .for_gets
                .clone()
                .unwrap_or_else(|| Answer::box_state(id, "ready"))
        } else {
            script.queue.pop_front().unwrap_or_else(|| {
                script.unexpected.push(request);
                Answer::status(UNEXPECTED_STATUS, &json!({ "code": "unexpected_request" }))
            })
        };
        self.arrived.notify_waiters();
        answer
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) -> Infallible {
    let mut connections = JoinSet::new();
    let mut connection_number = 0;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let (shared, number) = (Arc::clone(&shared), connection_number);
        connection_number += 1;
        connections.spawn(async move {
            let service = hyper::service::service_fn(move |request| answer(Arc::clone(&shared), number, request));
            // An error is how a scripted break of the connection ends.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Tells hyper to close the connection without a byte.
#[derive(Debug)]
struct ConnectionBroken;

impl fmt::Display for ConnectionBroken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the script breaks this connection")
    }
}

impl std::error::Error for ConnectionBroken {}

type Response = hyper::Response<BoxBody<Bytes, Infallible>>;

async fn answer(
    shared: Arc<Shared>,
    connection: usize,
    request: hyper::Request<Incoming>,
) -> Result<Response, ConnectionBroken> {
    let (head, body) = request.into_parts();
    // The whole request is read first: only then has its command arrived for sure.
    let body = body.collect().await.map_err(|_| ConnectionBroken)?.to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let is_json = head
        .headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value == "application/json");
    let request = Request {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        command: body["command"].as_str().filter(|_| is_json).map(str::to_owned),
        timeout_seconds: body["timeoutSeconds"].as_u64(),
        authorization: head
            .headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned),
        connection,
    };
    let mut answer = shared.take(request);
    loop {
        match answer {
            Answer::Broken => return Err(ConnectionBroken),
            Answer::Reply { status, headers, body } => return Ok(reply(status, &headers, body)),
            Answer::Held(inner) => {
                shared.releases.acquire().await.expect("never closed").forget();
                answer = *inner;
            }
        }
    }
}

fn reply(status: u16, headers: &[(&'static str, String)], body: ReplyBody) -> Response {
    let chunk = |text: String| Ok::<_, Infallible>(Frame::data(Bytes::from(text)));
    let body = match body {
        ReplyBody::Whole(text) => Full::new(Bytes::from(text)).boxed(),
        ReplyBody::Stalled(text) => {
            let first = futures::stream::iter([chunk(text)]);
            BodyExt::boxed(StreamBody::new(first.chain(futures::stream::pending())))
        }
        ReplyBody::Endless => BodyExt::boxed(StreamBody::new(futures::stream::repeat_with(move || {
            chunk("x".repeat(64 * 1024))
        }))),
    };
    let mut response = hyper::Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(body).expect("a scripted answer is valid HTTP")
}
