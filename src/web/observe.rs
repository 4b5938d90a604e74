//! Each request as operators see it: counted, timed, and one line in the log.
//!
//! What is logged of its address is the template of its route and the ids in it, never the address itself: a ticket may stand
//! in the query, and a path that leads nowhere may have anything in it. Of its headers only the request id is looked at.

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::Instant;
use tracing::Instrument as _;
use tracing::field::Empty;
use uuid::Uuid;

use crate::telemetry;

/// Names a request in our log, in a proxy's before us and in the answer.
pub(super) const REQUEST_ID: &str = "x-request-id";
/// The route of an address that leads nowhere.
const UNMATCHED: &str = "unmatched";
/// Asked every few seconds by machines.
const PROBES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Goes around everything else, so that what is refused on the way is seen too.
pub(super) async fn observe(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or(UNMATCHED, MatchedPath::as_str);
    let method = method_of(request.method());
    let id = request_id(request.headers());
    // At this level, so that a warning has its request where less is logged. The extractors fill in the ids.
    let span = tracing::warn_span!(
        "request", request_id = %id, method, route, conversation_id = Empty, box_id = Empty, run_id = Empty
    );
    let mut response = next.run(request).instrument(span.clone()).await;
    let (status, took) = (response.status().as_u16(), began.elapsed());
    telemetry::http_answered(route, method, status, took);
    let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    span.in_scope(|| {
        if PROBES.contains(&route) {
            tracing::debug!(status, ms, "answered");
        } else {
            tracing::info!(status, ms, "answered");
        }
    });
    if let Ok(id) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(HeaderName::from_static(REQUEST_ID), id);
    }
    response
}

/// That of a proxy before us where it is a UUID, which can't be a secret by mistake; else a new one.
fn request_id(headers: &HeaderMap) -> Uuid {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()?.parse().ok());
    given.unwrap_or_else(Uuid::new_v4)
}

/// Callers may make up methods; as labels there are only these.
fn method_of(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}
