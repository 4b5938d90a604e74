//! The error table of the box API: what an answer, or its absence, says about whether the command ran.
//!
//! Pure: everything that decides is in the arguments. When in doubt the answer is [`Effect::MayHaveRun`], because a
//! command that is sent twice does harm and one that is asked about does not.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::box_api::error::{BoxError, BoxErrorCode, Effect};

/// The JSON object of an answer.
pub(super) type Object = Map<String, Value>;

/// Why there is no answer at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransportFailure {
    /// The connection was never opened (refused, DNS, TLS): no byte of the request was sent.
    NeverOpened,
    /// The deadline passed after the request may have been sent.
    DeadlinePassed,
    /// The connection broke after the request may have been sent.
    Broken,
}

/// Why the body of an answer is no JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyFault {
    NotJson,
    NotAnObject,
    TooLarge,
    Broken,
    DeadlinePassed,
}

impl BodyFault {
    fn describe(self) -> &'static str {
        match self {
            Self::NotJson => "its body is no JSON",
            Self::NotAnObject => "its body is no JSON object",
            Self::TooLarge => "its body is larger than 4 MiB",
            Self::Broken => "the connection broke inside its body",
            Self::DeadlinePassed => "its body was not complete at the deadline",
        }
    }

    /// A body that never arrived is a matter of the connection, one that arrived and is of no use a matter of the provider.
    fn code(self) -> BoxErrorCode {
        match self {
            Self::Broken | Self::DeadlinePassed => BoxErrorCode::BoxUnreachable,
            Self::NotJson | Self::NotAnObject | Self::TooLarge => BoxErrorCode::BoxResponseInvalid,
        }
    }
}

/// An answer, as far as it matters here.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    /// Already parsed and capped.
    pub retry_after: Option<Duration>,
    pub body: Result<Object, BodyFault>,
}

/// The error for a call that got no answer; `cause` is the transport's own text.
pub(super) fn judge_transport_failure(failure: TransportFailure, cause: &str) -> BoxError {
    let (effect, what) = match failure {
        TransportFailure::NeverOpened => (Effect::MaySendAgain, "the connection could not be opened"),
        TransportFailure::DeadlinePassed => (Effect::MayHaveRun, "no answer came before the deadline"),
        TransportFailure::Broken => (Effect::MayHaveRun, "the connection broke before an answer came"),
    };
    let detail = if cause.is_empty() {
        what.to_owned()
    } else {
        format!("{what}: {cause}")
    };
    BoxError::new(BoxErrorCode::BoxUnreachable, effect, detail)
}

/// The object of an answer that says "done", or the error that the answer stands for.
pub(super) fn judge(answer: Answer) -> Result<Object, BoxError> {
    let Answer {
        status,
        retry_after,
        body,
    } = answer;
    let said = body.as_ref().ok().map(Said::read).unwrap_or_default();
    let (code, effect) = match status {
        200..=299 => return judge_success(status, body, &said),
        401 => (BoxErrorCode::BoxUnauthorized, Effect::MaySendAgain),
        402 | 403 => (BoxErrorCode::BoxBillingRequired, Effect::MaySendAgain),
        429 => (BoxErrorCode::BoxRateLimited, Effect::MaySendAgain),
        // Time-outs and a closed client, said by something in between: the command may be under way.
        408 | 425 | 499 => (BoxErrorCode::BoxUnreachable, Effect::MayHaveRun),
        400..=499 => judge_refusal(status, said.code.as_deref()),
        // 5xx, and 3xx since no redirect is followed; also whatever else may come.
        _ => (BoxErrorCode::BoxUnreachable, Effect::MayHaveRun),
    };
    Err(BoxError {
        code,
        effect,
        retry_after,
        detail: said.describe(status, body.err()),
    })
}

/// A status 4xx without a meaning of its own: only a JSON code shows that it was the provider who answered.
fn judge_refusal(status: u16, code: Option<&str>) -> (BoxErrorCode, Effect) {
    match (status, code) {
        (_, None) => (BoxErrorCode::BoxResponseInvalid, Effect::MayHaveRun),
        (404, Some(_)) => (BoxErrorCode::BoxNotFound, Effect::DidNotRun),
        (409, Some("box_starting")) => (BoxErrorCode::BoxNotReady, Effect::MaySendAgain),
        (409, Some("box_stopped")) => (BoxErrorCode::BoxStopped, Effect::DidNotRun),
        (409, Some("box_gone")) => (BoxErrorCode::BoxGone, Effect::DidNotRun),
        (_, Some(_)) => (BoxErrorCode::BoxRequestRefused, Effect::DidNotRun),
    }
}

/// A status 2xx is a success only if the object does not say otherwise.
fn judge_success(status: u16, body: Result<Object, BodyFault>, said: &Said) -> Result<Object, BoxError> {
    let object = match body {
        Ok(object) => object,
        Err(fault) => {
            return Err(BoxError::new(
                fault.code(),
                Effect::MayHaveRun,
                said.describe(status, Some(fault)),
            ));
        }
    };
    match (object.get("ok"), object.get("timedOut")) {
        (None | Some(Value::Null | Value::Bool(true)), None | Some(Value::Null | Value::Bool(false))) => Ok(object),
        (_, Some(Value::Bool(true))) => Err(invalid(format!("answer {status} says that the command timed out"))),
        (_, _) => Err(invalid(said.describe(status, None))),
    }
}

/// An answer that came and is of no use: whatever was asked may have been done.
pub(super) fn invalid(detail: impl Into<String>) -> BoxError {
    BoxError::new(BoxErrorCode::BoxResponseInvalid, Effect::MayHaveRun, detail)
}

/// What an error object says about itself. Only short, plain tokens are taken: they are shown to people and logged.
#[derive(Debug, Default)]
struct Said {
    code: Option<String>,
    request_id: Option<String>,
}

impl Said {
    fn read(object: &Object) -> Self {
        let nested = object
            .get("error")
            .and_then(Value::as_object)
            .and_then(|error| error.get("code"));
        let text = |value: Option<&Value>| {
            value
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        Self {
            code: text(object.get("code")).or_else(|| text(nested)),
            request_id: text(object.get("requestId")),
        }
    }

    fn describe(&self, status: u16, fault: Option<BodyFault>) -> String {
        let mut detail = format!("the provider answered {status}");
        if let Some(code) = self.code.as_deref().filter(|code| is_plain_token(code)) {
            detail.push(' ');
            detail.push_str(code);
        }
        if let Some(id) = self.request_id.as_deref().filter(|id| is_plain_token(id)) {
            detail.push_str(", request ");
            detail.push_str(id);
        }
        if let Some(fault) = fault {
            detail.push_str(", ");
            detail.push_str(fault.describe());
        }
        detail
    }
}

fn is_plain_token(text: &str) -> bool {
    text.len() <= 64
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

#[cfg(test)]
#[path = "error_table_tests.rs"]
mod tests;
