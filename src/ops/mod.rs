//! A process as its operators see it: whether it lives, whether it can do its work, and what it measures.
//!
//! Web and worker answer the same three addresses on a private port: `/healthz`, `/readyz` and `/metrics`. Whether the process
//! lives never depends on the database. Everything that does has a limit of time, so that an answer comes also while the
//! database gives none.

mod backlog;
mod readiness;
mod scrape;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::http_server;
use crate::queue::LivePool;
use crate::telemetry::Measured;
use crate::telemetry::catalogue::Exporter;
use backlog::Backlog;
pub(crate) use readiness::Readiness;

/// Between two times that what was measured is put in order, where nobody scrapes.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The private port can't be had.
#[derive(Debug, thiserror::Error)]
#[error("health and metrics can't be answered on {address} (BOXRUN_OPS_LISTEN)")]
pub struct ListenError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Listens on the private port, if there is to be one.
///
/// # Errors
/// When the address can't be had.
pub async fn bind(address: Option<SocketAddr>) -> Result<Option<TcpListener>, ListenError> {
    let Some(address) = address else { return Ok(None) };
    let bound = TcpListener::bind(address).await;
    bound.map(Some).map_err(|source| ListenError { address, source })
}

/// What a process is made of, as far as its health goes.
pub(crate) struct Parts {
    pub by: Exporter,
    /// Asked for readiness and for the gauges of the database.
    pub pool: LivePool,
    /// All pools, by their names in the metrics.
    pub pools: Vec<(&'static str, LivePool)>,
    /// What the database has to remember the provider by; `None`: the process never asks it.
    pub provider: Option<String>,
    /// The worker's id, by which operators drain it.
    pub worker: Option<String>,
    pub stopping: CancellationToken,
}

/// A process that can be asked how it is; clones are handles on the same one.
#[derive(Clone)]
pub(crate) struct Process(Arc<Shared>);

struct Shared {
    parts: Parts,
    backlog: Backlog,
    measured: Measured,
    /// What was answered last, so that only a change is logged.
    last: Mutex<Readiness>,
}

impl Process {
    /// From here on the process keeps what it measures.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(Shared {
            backlog: Backlog::new(parts.pool.clone()),
            measured: Measured::by(parts.by),
            parts,
            last: Mutex::new(Readiness::Ready),
        }))
    }

    /// Answers on `listener`, if there is one, until dropped.
    pub async fn serve(self, listener: Option<TcpListener>) {
        let answering = async {
            match listener {
                // It answers for as long as anything else of the process is still in flight.
                Some(listener) => {
                    http_server::serve(listener, routes(self.clone()), CancellationToken::new(), Duration::ZERO).await;
                }
                None => std::future::pending().await,
            }
        };
        let upkeep = async {
            loop {
                tokio::time::sleep(UPKEEP_INTERVAL).await;
                self.0.measured.tidy_up();
            }
        };
        tokio::join!(answering, upkeep);
    }
}

fn routes(process: Process) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(nothing)
        .with_state(process)
}

/// `GET /healthz`: the process answers.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(process): State<Process>) -> Response {
    process.readiness().await.into_response()
}

async fn metrics(State(process): State<Process>) -> Response {
    process.scrape().await
}

async fn nothing() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "there are /healthz, /readyz and /metrics here\n")
}
