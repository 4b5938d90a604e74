//! Which address leads where.

use std::any::Any;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use tower_http::set_header::SetResponseHeaderLayer;

use super::app::App;
use super::extract::BODY_MAX_BYTES;
use super::problem::Problem;
use super::{access, conversations, health, observe, openapi, runs, stream, webhooks};
use crate::ops;

/// Everything that the process serves to users.
pub(super) fn all(app: App, allowed_origins: &[String]) -> Router {
    let api = Router::new()
        .route("/me", get(conversations::me))
        .route("/boxes", get(conversations::list_own))
        .route("/runs", get(runs::list_own))
        .route("/runs/{run_id}", get(runs::find))
        .route(
            "/conversations/{conversation_id}",
            put(conversations::put).delete(conversations::delete),
        )
        .route("/conversations/{conversation_id}/boxes", get(conversations::list))
        .route(
            "/conversations/{conversation_id}/boxes/{box_id}",
            put(conversations::attach).delete(conversations::detach),
        )
        .route(
            "/conversations/{conversation_id}/boxes/{box_id}/runs",
            post(runs::start).get(runs::list_of_box),
        )
        .route("/conversations/{conversation_id}/runs", get(runs::list))
        .nest(
            "/conversations/{conversation_id}/boxes/{box_id}/runs/{run_id}",
            one_run(),
        )
        .nest("/conversations/{conversation_id}/runs/{run_id}", one_run())
        .route("/webhooks", get(webhooks::list))
        .route(
            "/webhooks/{name}",
            put(webhooks::put).get(webhooks::get).delete(webhooks::delete),
        )
        .route("/webhooks/{name}/deliveries", get(webhooks::list_deliveries))
        .route(
            "/webhooks/{name}/deliveries/{delivery_id}/redeliver",
            post(webhooks::redeliver),
        )
        .layer(DefaultBodyLimit::max(BODY_MAX_BYTES));
    Router::new()
        .nest("/api/v1", api)
        .route("/healthz", get(ops::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(openapi::document))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        // After the fallbacks: a browser asks beforehand with a method that no address takes.
        .layer(cors(allowed_origins))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(SetResponseHeaderLayer::if_not_present(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ))
        .layer(SetResponseHeaderLayer::if_not_present(
            header::CACHE_CONTROL,
            HeaderValue::from_static("no-store"),
        ))
        .layer(axum::middleware::from_fn(observe::observe))
        .with_state(app)
}

fn one_run() -> Router<App> {
    Router::new()
        .route("/", get(runs::get))
        .route("/output", get(runs::output))
        .route("/stream", get(stream::stream))
        .route("/events", get(runs::timeline))
        .route("/cancel", post(runs::cancel))
        .route("/tickets", post(runs::ticket))
}

fn cors(allowed_origins: &[String]) -> CorsLayer {
    let origins = allowed_origins
        .iter()
        .filter_map(|origin| HeaderValue::from_str(origin).ok());
    CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins))
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            HeaderName::from_static("idempotency-key"),
            HeaderName::from_static("last-event-id"),
            HeaderName::from_static(access::ON_BEHALF_OF),
        ])
        .expose_headers([header::RETRY_AFTER, HeaderName::from_static(observe::REQUEST_ID)])
        .max_age(std::time::Duration::from_secs(600))
}

async fn not_found() -> Problem {
    let message = "there is nothing at this address; /openapi.json lists what there is";
    Problem::new(StatusCode::NOT_FOUND, "not_found", message)
}

async fn wrong_method() -> Problem {
    let message = "this address does not take this method; /openapi.json lists what it takes";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

fn panicked(_: Box<dyn Any + Send>) -> Response {
    // What it said went to stderr by the panic itself.
    tracing::error!("a request panicked");
    let message = "something failed here; it is in the log of this process";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message).into_response()
}
