//! Connections: each request through the gate to its route.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::reply::Reply;
use super::routes::{Route, route};
use super::{World, admin, gate, provider};

/// A script of 8000 bytes of command is far below.
const REQUEST_MAX_BYTES: usize = 1024 * 1024;

/// How the simulator breaks a connection without a byte: an error is what makes hyper do it.
#[derive(Debug)]
pub(super) struct ConnectionClosed;

impl fmt::Display for ConnectionClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the simulator closes this connection")
    }
}

impl std::error::Error for ConnectionClosed {}

pub(super) async fn serve(listener: TcpListener, world: Arc<World>) {
    // Dropped with this task, the set takes the connections along.
    let mut connections = JoinSet::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, as a rule: give others time to close theirs.
                tracing::warn!(%error, "the simulator can't accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        // Small answers must not wait for an acknowledgement.
        let _ = stream.set_nodelay(true);
        let world = Arc::clone(&world);
        connections.spawn(async move {
            let service = hyper::service::service_fn(move |request| handle(Arc::clone(&world), request));
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            // A client that went away, or a connection that we were told to break.
            let _ = connection.await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn handle(world: Arc<World>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, ConnectionClosed> {
    let (head, body) = request.into_parts();
    if let Err(refusal) = gate::check(&head, &world.key, world.allow_remote) {
        return Ok(refusal.into_response());
    }
    let body = match Limited::new(body, REQUEST_MAX_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => {
            return Ok(Reply::error(413, "request_too_large", "the request is larger than 1 MiB").into_response());
        }
    };
    let reply = match route(&head.method, head.uri.path()) {
        Route::Info(id) => provider::info(&world, &id).await?,
        Route::Command(id) => provider::command(&world, &id, &body).await?,
        Route::CommandStatus(id, pid) => provider::status(&world, &id, pid, head.uri.query()).await?,
        Route::Admin(call) => admin::answer(&world, call, &body).await,
        Route::NoSuchBox => Reply::no_such_box(),
        Route::NoSuchProcess => Reply::no_such_process(),
        Route::WrongMethod => Reply::error(405, "method_not_allowed", "this path does not take this method"),
        Route::Unknown => Reply::error(404, "not_found", "there is nothing at this path"),
    };
    Ok(reply.into_response())
}

/// Whether a request carries a body that must say what it is.
pub(super) fn has_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

impl Reply {
    fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body)));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, self.content_type);
        if let Some(retry_after) = self.retry_after {
            response.headers_mut().insert(hyper::header::RETRY_AFTER, retry_after);
        }
        response
    }
}
