//! Connections: accepted, bounded in number and in the time that they may take to say what they want, and let go of in an
//! orderly way.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// Connections at a time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 25_000;
/// How long the head of a request may take, and a connection may rest between two.
const HEADERS_MAX_TIME: Duration = Duration::from_secs(30);
/// The longest head of a request, in bytes.
const HEADERS_MAX_BYTES: usize = 32 * 1024;
/// After a failed accept: out of descriptors, as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop`; then requests in flight are answered, for as long as `patience`.
pub(crate) async fn serve(listener: TcpListener, router: Router, stop: CancellationToken, patience: Duration) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let Some((stream, place)) = accepted else { continue };
        let router = router.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let router = router.clone();
            async move { router.oneshot(request.map(Body::new)).await }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_MAX_TIME)
            .max_buf_size(HEADERS_MAX_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // A client that went away, or sent no HTTP.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(patience, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests were not answered in time");
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Small events must not wait for an acknowledgement.
            let _ = stream.set_nodelay(true);
            Some((stream, place))
        }
        Err(error) => {
            tracing::warn!(%error, "a connection can't be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}
