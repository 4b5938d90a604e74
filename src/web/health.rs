//! Whether the process lives, and whether it can do its work.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Json;
use serde_json::{Value, json};

use super::app::App;
use crate::queue::answered;
use crate::schema::{self, SchemaError};

/// `GET /healthz`: the process answers.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: the database answers, its schema is at least what this program needs, and the process is not about to end.
pub(super) async fn readyz(State(app): State<App>) -> (StatusCode, Json<Value>) {
    let (status, what) = if app.stopping.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    } else {
        match answered(schema::check(&app.pool.get())).await {
            Ok(()) => (StatusCode::OK, "ready"),
            Err(SchemaError::Database(error)) => {
                tracing::warn!(%error, "not ready: the database does not answer");
                (StatusCode::SERVICE_UNAVAILABLE, "database_out_of_reach")
            }
            Err(error) => {
                tracing::warn!(%error, "not ready");
                (StatusCode::SERVICE_UNAVAILABLE, "schema_outdated")
            }
        }
    };
    (status, Json(json!({ "status": what })))
}
