//! The provider's two calls over HTTP.
//!
//! Guarantee: a command is never sent a second time once a byte of it may have been sent. Three things inside an HTTP
//! client could break it, and each is dealt with here:
//!
//! - redirects are not followed, so a 307 does not repeat the POST elsewhere;
//! - reqwest's own retries are off (`retry::never`);
//! - hyper-util's pool takes a request back when the idle connection it was given to turns out closed, and sends it on
//!   another one. It does so only for a request that hyper hands back *unread* (`TrySendError` with its message), of
//!   which nothing was written (read in hyper 1.12 and hyper-util 0.1.21); a request that the connection has taken fails
//!   instead. The test `a_command_on_a_kept_alive_connection_that_breaks_is_sent_once` holds that.

mod answer_fields;
mod box_info;
mod error_table;
mod transport;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use backon::{ExponentialBuilder, Retryable};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use tokio::time::Instant;
use url::Url;

use crate::box_api::error::{BoxError, BoxErrorCode};
use crate::box_api::{Operation, Script};
use crate::ids::BoxId;
use crate::telemetry;
pub use box_info::{BoxInfo, BoxState, Readiness};
use error_table::{Answer, BodyFault, Object, TransportFailure, judge, judge_transport_failure};
pub use transport::RETRY_AFTER_MAX;
use transport::{cause_of, failure_of, http_client, parse_object, read_body, retry_after_of};

/// Below the 5 s after which common servers close an idle connection (Node.js' default): a command written to a connection
/// that is being closed may have run for all we know.
const IDLE_CONNECTION_TIMEOUT: Duration = Duration::from_secs(4);
/// One try of `GET /boxes/{id}`; there are three.
const GET_BOX_TIMEOUT: Duration = Duration::from_secs(8);
const GET_BOX_RETRIES: usize = 2;

/// A client of one provider; clones share their connections.
#[derive(Clone)]
pub struct BoxClient {
    shared: Arc<Shared>,
}

struct Shared {
    http: reqwest::Client,
    /// Keeps no idle connection; see [`BoxClient::run_command_on_new_connection`].
    http_unpooled: reqwest::Client,
    api_url: Url,
    /// None: every call fails closed.
    key: Option<Key>,
    sunset_seen: AtomicBool,
}

struct Key {
    secret: SecretString,
    /// `Bearer …`, marked sensitive.
    authorization: HeaderValue,
}

/// What a command that ran to its end on the box left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    pub stdout: String,
    pub stderr: String,
    /// Absent when the provider did not say, or a signal ended the command.
    pub exit_code: Option<i64>,
    /// The provider cut stdout.
    pub stdout_truncated: bool,
}

/// The settings of the provider do not make a client.
#[derive(Debug, thiserror::Error)]
pub enum BoxClientBuildError {
    /// Also for an address with a user, password, query or fragment: none of them would be sent.
    #[error("the box API's address must be http:// or https:// with a host, and without user, query or fragment")]
    UnsuitableUrl,
    #[error("the box API's key holds a character that no HTTP header can carry")]
    UnsuitableKey,
    #[error("could not set up the HTTP client for the box API")]
    HttpClient(#[source] reqwest::Error),
}

#[derive(Serialize)]
struct CommandRequest<'a> {
    command: &'a str,
    #[serde(rename = "timeoutSeconds")]
    timeout_seconds: u64,
}

impl BoxClient {
    /// A client of the provider at `api_url`; without a key, or with a blank one, every call fails with `box_not_configured`.
    ///
    /// # Errors
    /// When the address or the key can't be used; no connection is opened yet.
    pub fn new(api_url: Url, key: Option<SecretString>) -> Result<Self, BoxClientBuildError> {
        let suitable = matches!(api_url.scheme(), "http" | "https")
            && api_url.has_host()
            && api_url.username().is_empty()
            && api_url.password().is_none()
            && api_url.query().is_none()
            && api_url.fragment().is_none();
        if !suitable {
            return Err(BoxClientBuildError::UnsuitableUrl);
        }
        let key = key
            .filter(|key| !key.expose_secret().trim().is_empty())
            .map(Key::new)
            .transpose()?;
        let http = http_client(&api_url).pool_idle_timeout(IDLE_CONNECTION_TIMEOUT);
        let http_unpooled = http_client(&api_url).pool_max_idle_per_host(0);
        let shared = Shared {
            http: http.build().map_err(BoxClientBuildError::HttpClient)?,
            http_unpooled: http_unpooled.build().map_err(BoxClientBuildError::HttpClient)?,
            api_url,
            key,
            sunset_seen: AtomicBool::new(false),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Scheme, host and port of the provider, the default port left out: `https://ascii.dev`.
    #[must_use]
    pub fn origin(&self) -> String {
        self.shared.api_url.origin().ascii_serialization()
    }

    /// `GET /boxes/{id}`, tried three times with jitter when no usable answer comes, 26 s at most; a refusal is returned
    /// at once.
    ///
    /// # Errors
    /// As the error table says; `box_response_invalid` when the answer is about another box.
    pub async fn get_box(&self, id: &BoxId) -> Result<BoxInfo, BoxError> {
        let backoff = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(1))
            .with_max_times(GET_BOX_RETRIES)
            .with_jitter();
        (|| self.get_box_once(id))
            .retry(backoff)
            .when(|error| {
                matches!(
                    error.code,
                    BoxErrorCode::BoxUnreachable | BoxErrorCode::BoxResponseInvalid
                )
            })
            .await
    }

    async fn get_box_once(&self, id: &BoxId) -> Result<BoxInfo, BoxError> {
        let request = self.shared.http.get(self.endpoint(&["boxes", id.as_str()]));
        let asked = async {
            let object = self.call(request, GET_BOX_TIMEOUT).await?;
            answer_fields::box_info(&object, id)
        };
        counted(Operation::GetBox, asked).await
    }

    /// `POST /boxes/{id}/commands`, sent once, never replayed.
    ///
    /// The provider ends the script after its `timeout` (whole seconds, rounded up); its `call_timeout` is the deadline of the
    /// whole call, from connecting to the last byte of the answer, and should be longer.
    ///
    /// # Errors
    /// As the error table says; [`BoxError::effect`] tells whether the script may have run.
    pub async fn run_command(&self, id: &BoxId, script: &Script) -> Result<CommandOutput, BoxError> {
        self.post_command(&self.shared.http, id, script).await
    }

    /// The same over a connection of its own: for a dispatch, which must not become ambiguous only because a pooled
    /// connection was closed while the command was being written to it.
    ///
    /// # Errors
    /// As [`BoxClient::run_command`].
    pub async fn run_command_on_new_connection(&self, id: &BoxId, script: &Script) -> Result<CommandOutput, BoxError> {
        self.post_command(&self.shared.http_unpooled, id, script).await
    }

    async fn post_command(
        &self,
        http: &reqwest::Client,
        id: &BoxId,
        script: &Script,
    ) -> Result<CommandOutput, BoxError> {
        let timeout_seconds = script.timeout.as_secs() + u64::from(script.timeout.subsec_nanos() > 0);
        let body = CommandRequest {
            command: &script.text,
            timeout_seconds,
        };
        let request = http
            .post(self.endpoint(&["boxes", id.as_str(), "commands"]))
            .json(&body);
        let asked = async {
            let object = self.call(request, script.call_timeout).await?;
            answer_fields::command_output(&object)
        };
        counted(script.operation, asked).await
    }

    /// The address of a path below the API's own path.
    fn endpoint(&self, segments: &[&str]) -> Url {
        let mut url = self.shared.api_url.clone();
        // `new` lets only http and https pass, whose addresses always have a path.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// Sends one request and reads its answer, all before the deadline.
    async fn call(&self, request: reqwest::RequestBuilder, call_timeout: Duration) -> Result<Object, BoxError> {
        let key = self.shared.key.as_ref().ok_or_else(BoxError::not_configured)?;
        let request = request.header(AUTHORIZATION, key.authorization.clone());
        let deadline = Instant::now() + call_timeout;
        let response = match tokio::time::timeout_at(deadline, request.send()).await {
            Err(_elapsed) => return Err(judge_transport_failure(TransportFailure::DeadlinePassed, "")),
            Ok(Err(error)) => return Err(judge_transport_failure(failure_of(&error), &cause_of(error))),
            Ok(Ok(response)) => response,
        };
        self.note_sunset(response.headers());
        let status = response.status().as_u16();
        #[expect(
            clippy::disallowed_methods,
            reason = "a Retry-After date is compared with our own clock, as HTTP has it"
        )]
        let now = SystemTime::now();
        let retry_after = retry_after_of(response.headers(), now);
        let body = match tokio::time::timeout_at(deadline, read_body(response)).await {
            Err(_elapsed) => Err(BodyFault::DeadlinePassed),
            Ok(read) => read.and_then(|bytes| parse_object(&bytes)),
        };
        judge(Answer {
            status,
            retry_after,
            body,
        })
        .map_err(|error| key.removed_from(error))
    }

    /// A provider announces the end of an API by `Sunset` (RFC 8594): said once, not a thousand times.
    fn note_sunset(&self, headers: &HeaderMap) {
        if let Some(sunset) = headers.get("sunset")
            && !self.shared.sunset_seen.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(origin = %self.origin(), ?sunset, "the provider has announced the end of this API");
        }
    }
}

/// Counts a request with what came of it; one that its caller drops is not counted.
async fn counted<T>(operation: Operation, asked: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    let began = Instant::now();
    let answered = asked.await;
    let outcome = answered.as_ref().map_or_else(|error| error.code.as_str(), |_| "ok");
    telemetry::provider_answered(operation.as_str(), outcome, began.elapsed());
    answered
}

impl fmt::Debug for BoxClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxClient")
            .field("origin", &self.origin())
            .finish_non_exhaustive()
    }
}

impl Key {
    fn new(secret: SecretString) -> Result<Self, BoxClientBuildError> {
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", secret.expose_secret()))
            .map_err(|_| BoxClientBuildError::UnsuitableKey)?;
        authorization.set_sensitive(true);
        Ok(Self { secret, authorization })
    }

    /// A provider may echo the key where a code or a request id should stand.
    fn removed_from(&self, mut error: BoxError) -> BoxError {
        if error.detail.contains(self.secret.expose_secret()) {
            error.detail = error.detail.replace(self.secret.expose_secret(), "[REDACTED]");
        }
        error
    }
}
