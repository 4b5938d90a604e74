//! Whether a process can do its work.

use std::sync::PoisonError;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde_json::json;

use super::Process;
use crate::queue::operator;
use crate::schema::{self, SchemaError};

/// Whoever asks gives up after a few seconds, and would not hear why.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// How a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// It was told to end.
    Stopping,
    /// An operator wants this worker to end once it has finished what it has.
    Draining,
    DatabaseOutOfReach,
    /// There is no schema, or one that is older than this program needs.
    SchemaOutdated,
    /// The database belongs to another provider meanwhile.
    ProviderMismatch,
}

impl Readiness {
    /// The word in the answer.
    fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Stopping => "stopping",
            Self::Draining => "draining",
            Self::DatabaseOutOfReach => "database_out_of_reach",
            Self::SchemaOutdated => "schema_outdated",
            Self::ProviderMismatch => "provider_mismatch",
        }
    }
}

impl IntoResponse for Readiness {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Ready => StatusCode::OK,
            Self::Stopping
            | Self::Draining
            | Self::DatabaseOutOfReach
            | Self::SchemaOutdated
            | Self::ProviderMismatch => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, Json(json!({ "status": self.as_str() }))).into_response()
    }
}

impl Process {
    /// Looks now; answers within [`ANSWER_MAX`].
    pub async fn readiness(&self) -> Readiness {
        let seen = if self.0.parts.stopping.is_cancelled() {
            Readiness::Stopping
        } else {
            match tokio::time::timeout(ANSWER_MAX, self.look()).await {
                Ok(Ok(seen)) => seen,
                Ok(Err(SchemaError::Outdated { .. } | SchemaError::Missing)) => Readiness::SchemaOutdated,
                Ok(Err(SchemaError::ProviderMismatch { .. })) => Readiness::ProviderMismatch,
                Ok(Err(SchemaError::Database(_))) | Err(_) => Readiness::DatabaseOutOfReach,
            }
        };
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *last, seen) != seen {
            tracing::info!(now = seen.as_str(), "readiness changed");
        }
        seen
    }

    async fn look(&self) -> Result<Readiness, SchemaError> {
        let parts = &self.0.parts;
        let pool = parts.pool.get();
        schema::check(&pool).await?;
        if let Some(provider) = &parts.provider
            && schema::recorded_provider(&pool)
                .await?
                .is_some_and(|recorded| recorded != *provider)
        {
            return Ok(Readiness::ProviderMismatch);
        }
        let draining = match &parts.worker {
            Some(worker) => operator::is_draining(&pool, worker).await?,
            None => false,
        };
        Ok(if draining {
            Readiness::Draining
        } else {
            Readiness::Ready
        })
    }
}
