//! How the process is, where its users ask too: the same answers as on the private port, and the metrics for a token only.

use axum::extract::State;
use axum::response::Response;

use super::access::Caller;
use super::app::App;
use super::problem::Problem;
use super::tokens::Scope;
use crate::ops::Readiness;

/// `GET /readyz`: the database answers, its schema is at least what this program needs, it belongs to this provider, and the
/// process is not about to end.
pub(super) async fn readyz(State(app): State<App>) -> Readiness {
    app.process.readiness().await
}

/// `GET /metrics`
pub(super) async fn metrics(State(app): State<App>, caller: Caller) -> Result<Response, Problem> {
    caller.may(Scope::Metrics)?;
    Ok(app.process.scrape().await)
}
