//! A proxy between a worker and the box API that knows what each request is for.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use url::Url;

use super::tap::{Fault, Passage, Tap};

pub struct Proxy {
    pub url: Url,
    serving: AbortHandle,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A connection that breaks without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection breaks")]
struct Broken;

impl Proxy {
    pub async fn to(server: Url, tap: Arc<Tap>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let mut url = server.clone();
        url.set_port(Some(port)).expect("an address with a host has a port");
        // Whoever is first installs it for the process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().build().expect("a client");
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (server, tap, client) = (server.clone(), Arc::clone(&tap), client.clone());
                connections.spawn(async move {
                    let service = service_fn(|request| pass(&client, &server, &tap, request));
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                    Ok::<(), Infallible>(())
                });
            }
        });
        Ok(Self {
            url,
            serving: serving.abort_handle(),
        })
    }
}

async fn pass(
    client: &reqwest::Client,
    server: &Url,
    tap: &Tap,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Broken> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Broken)?.to_bytes();
    let mut url = server.clone();
    url.set_path(head.uri.path());
    let send = || async {
        let mut request = client.request(head.method.clone(), url.clone()).body(body.clone());
        for name in ["authorization", "content-type"] {
            if let Some(value) = head.headers.get(name) {
                request = request.header(name, value);
            }
        }
        let answer = request.send().await.map_err(|_| Broken)?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let mut response = Response::new(Full::new(answer.bytes().await.map_err(|_| Broken)?));
        *response.status_mut() = status;
        if let Some(kind) = headers.get("content-type") {
            response.headers_mut().insert("content-type", kind.clone());
        }
        Ok(response)
    };
    match tap.request(purpose(&String::from_utf8_lossy(&body))) {
        Passage::Passes => send().await,
        Passage::Strikes(Fault::CrashBefore | Fault::RequestLost) => {
            tap.strike();
            Err(Broken)
        }
        Passage::Strikes(Fault::CrashAfter | Fault::AnswerLost) => {
            send().await?;
            tap.strike();
            Err(Broken)
        }
        Passage::Strikes(Fault::Twice) => {
            let answer = send().await?;
            send().await?;
            tap.strike();
            Ok(answer)
        }
        Passage::Strikes(Fault::LeaseLost) => {
            tap.strike();
            tap.released().await;
            send().await
        }
    }
}

/// By the markers that stand in one script alone.
fn purpose(body: &str) -> &'static str {
    let has = |marker: &str| body.contains(marker);
    if body.is_empty() {
        "GET box"
    } else if has("OPENAGENTS_RUN_EXISTS") {
        "dispatch"
    } else if has("OA_REMOVED") {
        "removal"
    } else if has("OA_CANCELLED") {
        "stop"
    } else if has("OA_SIZE") {
        "poll"
    } else {
        "probe"
    }
}
