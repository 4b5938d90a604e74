//! What went wrong, as callers of the API read it: a status, a stable code, a sentence that says what to do.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::box_api::{BoxError, BoxErrorCode};
use crate::ids::RunId;
use crate::runs::conversations::AttachError;
use crate::runs::{RunNotFound, StartRunError};

/// An answer that is no success.
#[derive(Debug)]
pub struct Problem {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    message: String,
    retry_after_seconds: Option<u64>,
    active_run_id: Option<RunId>,
}

/// The body of every answer that is no success.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// Stable: programs decide by it.
    #[schema(example = "box_run_not_found")]
    pub code: String,
    /// For people: what was wrong and what to do.
    #[schema(example = "there is no such run here")]
    pub message: String,
    /// With `box_run_in_progress`: the run that is active on the box.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    pub active_run_id: Option<RunId>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry_after_seconds: None,
            active_run_id: None,
        }
    }

    pub(super) fn unauthorized() -> Self {
        let message = "send a token that is valid: Authorization: Bearer <token>; `boxrun token create` makes one";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(super) fn invalid_request(message: impl Into<String>) -> Self {
        Self::invalid("invalid_request", message)
    }

    pub(super) fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, message)
    }

    pub(super) fn no_such_conversation() -> Self {
        let message = "there is no such conversation here";
        Self::new(StatusCode::NOT_FOUND, "conversation_not_found", message)
    }

    pub(super) fn no_such_box() -> Self {
        let message = "there is no such box here; attach it to the conversation first";
        Self::new(StatusCode::NOT_FOUND, "box_not_found", message)
    }

    pub(super) fn no_such_run() -> Self {
        Self::new(StatusCode::NOT_FOUND, "box_run_not_found", "there is no such run here")
    }

    pub(super) fn no_such_webhook() -> Self {
        let message = "there is no such webhook here";
        Self::new(StatusCode::NOT_FOUND, "webhook_not_found", message)
    }

    pub(super) fn no_such_delivery() -> Self {
        let message = "there is no such delivery of this webhook; ended ones are kept for 30 days";
        Self::new(StatusCode::NOT_FOUND, "delivery_not_found", message)
    }

    pub(super) fn run_in_progress(active: RunId) -> Self {
        let message = format!("run {active} is active on the box; wait for it or cancel it");
        Self {
            active_run_id: Some(active),
            ..Self::new(StatusCode::CONFLICT, "box_run_in_progress", message)
        }
    }

    pub(super) fn busy(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).after(1)
    }

    /// May be tried again after so many seconds.
    pub(super) fn after(mut self, seconds: u64) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = ErrorBody {
            error: ErrorDetail {
                code: self.code.to_owned(),
                message: self.message,
                active_run_id: self.active_run_id,
            },
        };
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<sqlx::Error> for Problem {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Tls(_) => {
                tracing::warn!(%error, "a request found the database out of reach");
                Self::busy("the database is out of reach at the moment; try again")
            }
            // Shutting down, starting up, read-only, full, a lock that somebody holds: it passes.
            sqlx::Error::Database(ref database)
                if database
                    .code()
                    .is_some_and(|code| PASSING.iter().any(|passing| code.starts_with(passing))) =>
            {
                tracing::warn!(%error, "a request found the database busy");
                Self::busy("the database is busy at the moment; try again")
            }
            error => {
                tracing::error!(%error, "a request failed");
                let message = "something failed here; it is in the log of this process";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
            }
        }
    }
}

/// SQLSTATEs (or their classes) of what is over after a while.
const PASSING: [&str; 6] = ["08", "25006", "40", "53", "55P03", "57"];

impl From<RunNotFound> for Problem {
    fn from(error: RunNotFound) -> Self {
        match error {
            RunNotFound::NotFound => Self::no_such_run(),
            RunNotFound::Database(error) => error.into(),
        }
    }
}

impl From<StartRunError> for Problem {
    fn from(error: StartRunError) -> Self {
        let message = without_code(&error.to_string());
        match error {
            StartRunError::InvalidCommand(_) => Self::invalid("invalid_command", message),
            StartRunError::InvalidIdempotencyKey(_) => Self::invalid("invalid_idempotency_key", message),
            StartRunError::InvalidMaxDuration { .. } => Self::invalid("invalid_max_duration", message),
            StartRunError::InvalidRequest { .. } => Self::invalid("invalid_request", message),
            StartRunError::SecretsNotConfigured => Self::invalid("secrets_not_configured", message),
            StartRunError::BoxNotOwned => Self::no_such_box(),
            StartRunError::IdempotencyConflict(_) => {
                Self::new(StatusCode::CONFLICT, "box_run_idempotency_conflict", message)
            }
            StartRunError::RunInProgress(active) => Self::run_in_progress(active),
            StartRunError::Busy => Self::busy(message),
            StartRunError::Database(error) => error.into(),
        }
    }
}

impl From<AttachError> for Problem {
    fn from(error: AttachError) -> Self {
        let message = without_code(&error.to_string());
        match error {
            AttachError::ConversationNotFound => Self::no_such_conversation(),
            AttachError::BoxNotFound => Self::no_such_box(),
            AttachError::AlreadyAttached(_) => Self::new(StatusCode::CONFLICT, "box_already_attached", message),
            AttachError::RunInProgress => Self::new(StatusCode::CONFLICT, "box_run_in_progress", message),
            AttachError::Database(error) => error.into(),
        }
    }
}

impl From<BoxError> for Problem {
    fn from(error: BoxError) -> Self {
        let seconds = error.retry_after.map_or(1, |wait| wait.as_secs());
        let (status, code, message) = match error.code {
            BoxErrorCode::BoxNotConfigured => (
                StatusCode::SERVICE_UNAVAILABLE,
                "box_not_configured",
                "this process has no key for the provider; set BOX_API_KEY",
            ),
            BoxErrorCode::BoxUnauthorized => (
                StatusCode::BAD_GATEWAY,
                "box_provider_unauthorized",
                "the provider refuses our key",
            ),
            BoxErrorCode::BoxBillingRequired => (
                StatusCode::PAYMENT_REQUIRED,
                "box_billing_required",
                "the provider asks for payment before it runs commands",
            ),
            BoxErrorCode::BoxNotFound | BoxErrorCode::BoxGone => {
                (StatusCode::NOT_FOUND, "box_not_found", "the provider has no such box")
            }
            BoxErrorCode::BoxNotReady => (
                StatusCode::CONFLICT,
                "box_not_ready",
                "the box is starting; try again in a moment",
            ),
            BoxErrorCode::BoxStopped => (
                StatusCode::CONFLICT,
                "box_stopped",
                "the box is stopped; start it at the provider, or use another",
            ),
            BoxErrorCode::BoxRateLimited => {
                let message = "the provider asked for patience; try again later";
                return Self::new(StatusCode::TOO_MANY_REQUESTS, "box_provider_rate_limited", message).after(seconds);
            }
            BoxErrorCode::BoxRequestRefused => (
                StatusCode::BAD_GATEWAY,
                "box_provider_request_refused",
                "the provider refused the request",
            ),
            BoxErrorCode::BoxUnreachable => {
                let message = "the provider does not answer; try again";
                return Self::new(StatusCode::SERVICE_UNAVAILABLE, "box_unreachable", message).after(seconds);
            }
            BoxErrorCode::BoxResponseInvalid => (
                StatusCode::BAD_GATEWAY,
                "box_provider_response_invalid",
                "the provider's answer makes no sense",
            ),
        };
        Self::new(status, code, message)
    }
}

/// The sentence of an error whose text begins with its code.
fn without_code(text: &str) -> String {
    text.split_once(": ").map_or(text, |(_, sentence)| sentence).to_owned()
}
