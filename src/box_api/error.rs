//! What went wrong in a call to the provider, sorted by what the caller may do next.

use std::time::Duration;

/// Whether the command of a failed call can have run on the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It did not run, and the same command may be sent again.
    MaySendAgain,
    /// It did not run, and sending it again would end the same way.
    DidNotRun,
    /// It may have run: it is never sent again, the box is asked.
    MayHaveRun,
}

/// The stable code of a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BoxErrorCode {
    BoxNotConfigured,
    BoxUnauthorized,
    BoxBillingRequired,
    BoxNotFound,
    BoxNotReady,
    BoxStopped,
    BoxGone,
    BoxRateLimited,
    BoxRequestRefused,
    BoxUnreachable,
    BoxResponseInvalid,
}

impl BoxErrorCode {
    /// The code as users read it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BoxNotConfigured => "box_not_configured",
            Self::BoxUnauthorized => "box_unauthorized",
            Self::BoxBillingRequired => "box_billing_required",
            Self::BoxNotFound => "box_not_found",
            Self::BoxNotReady => "box_not_ready",
            Self::BoxStopped => "box_stopped",
            Self::BoxGone => "box_gone",
            Self::BoxRateLimited => "box_rate_limited",
            Self::BoxRequestRefused => "box_request_refused",
            Self::BoxUnreachable => "box_unreachable",
            Self::BoxResponseInvalid => "box_response_invalid",
        }
    }
}

/// A call to the provider that brought no usable answer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}: {detail}", code.as_str())]
pub struct BoxError {
    pub code: BoxErrorCode,
    pub effect: Effect,
    /// How long the provider asked us to wait, capped.
    pub retry_after: Option<Duration>,
    /// What happened, for people; never contains the key, the command or the answer's body.
    pub detail: String,
}

impl BoxError {
    /// A failure without a `Retry-After`; `detail` must hold neither the key, nor the command, nor the answer's body.
    #[must_use]
    pub fn new(code: BoxErrorCode, effect: Effect, detail: impl Into<String>) -> Self {
        Self {
            code,
            effect,
            retry_after: None,
            detail: detail.into(),
        }
    }

    /// No key is configured: nothing was sent.
    #[must_use]
    pub fn not_configured() -> Self {
        Self::new(
            BoxErrorCode::BoxNotConfigured,
            Effect::MaySendAgain,
            "no key for the box API is configured (BOX_API_KEY); nothing was sent",
        )
    }
}
