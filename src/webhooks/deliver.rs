//! One POST to a receiver: bounded in time and in what is read, to public addresses alone, never by way of a proxy.

use std::time::{Duration, SystemTime};

use ::url::Url;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use tokio::time::Instant;

use super::outcome::{Observed, RETRY_AFTER_MAX};
use super::target::{TargetRefused, Targets};
use crate::retry_after::parse_retry_after;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// So much of an answer is read, so that a receiver is not cut off in the middle of it, and dropped.
const ANSWER_MAX_BYTES: usize = 64 * 1024;

/// What is sent: the body and the headers that the Standard Webhooks specification names.
#[derive(Debug)]
pub(super) struct Letter<'a> {
    pub id: &'a str,
    /// Seconds of the Unix epoch.
    pub timestamp: i64,
    pub signature: &'a str,
    pub body: Vec<u8>,
}

/// There is no HTTP client to deliver with.
#[derive(Debug, thiserror::Error)]
#[error("could not set up the HTTP client for webhooks")]
pub struct WebhookClientError(#[source] reqwest::Error);

/// Sends letters.
#[derive(Debug, Clone)]
pub(super) struct Courier {
    targets: Targets,
    timeout: Duration,
    plain: reqwest::Client,
    /// Or why there is none: a machine without certificates can still call http.
    tls: Result<reqwest::Client, String>,
}

impl Courier {
    /// One whose attempts take no longer than `timeout` each.
    ///
    /// # Errors
    /// When no HTTP client can be set up at all.
    pub fn new(targets: Targets, timeout: Duration) -> Result<Self, WebhookClientError> {
        Ok(Self {
            targets,
            timeout,
            plain: client(targets).tls_certs_only([]).build().map_err(WebhookClientError)?,
            tls: client(targets).build().map_err(cause_of),
        })
    }

    /// Sends one letter once. The URL appears in nothing that is returned.
    pub async fn post(&self, url: &Url, letter: Letter<'_>) -> Observed {
        if self.targets.check_literal(url).is_err() {
            return Observed::TargetRefused;
        }
        let client = match (url.scheme(), &self.tls) {
            ("https", Ok(client)) => client,
            ("https", Err(why)) => return Observed::Unreachable(why.clone()),
            _ => &self.plain,
        };
        let request = client
            .post(url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", letter.id)
            .header("webhook-timestamp", letter.timestamp)
            .header("webhook-signature", letter.signature)
            .body(letter.body);
        let deadline = Instant::now() + self.timeout;
        let mut response = match tokio::time::timeout_at(deadline, request.send()).await {
            Err(_elapsed) => return Observed::TimedOut,
            Ok(Err(error)) => return observed(error),
            Ok(Ok(response)) => response,
        };
        let answer = Observed::Answer {
            status: response.status().as_u16(),
            retry_after: retry_after(response.headers()),
        };
        // The status has decided; how the rest comes does not matter.
        let _ = tokio::time::timeout_at(deadline, drop_body(&mut response)).await;
        answer
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the client of the box API follows other rules: one host, whose address is the operator's choice"
)]
fn client(targets: Targets) -> reqwest::ClientBuilder {
    // Fails when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .user_agent(concat!("boxrun/", env!("CARGO_PKG_VERSION")))
        .dns_resolver(targets.resolver())
        // It would lead around the look at the address.
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT_TIMEOUT)
        // Receivers are many, and each is called seldom.
        .pool_max_idle_per_host(0)
}

fn observed(error: reqwest::Error) -> Observed {
    if refused_target(&error) {
        Observed::TargetRefused
    } else if error.is_connect() {
        Observed::Unreachable(cause_of(error))
    } else if error.is_timeout() {
        Observed::TimedOut
    } else {
        Observed::Broken(cause_of(error))
    }
}

fn refused_target(error: &reqwest::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.is::<TargetRefused>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The innermost reason, without the address: "Connection refused (os error 111)".
fn cause_of(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut innermost: &dyn std::error::Error = &error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a Retry-After date is compared with our own clock, as HTTP has it"
    )]
    let now = SystemTime::now();
    parse_retry_after(headers.get(RETRY_AFTER)?.to_str().ok()?, now, RETRY_AFTER_MAX)
}

async fn drop_body(response: &mut reqwest::Response) {
    let mut read = 0;
    while let Ok(Some(chunk)) = response.chunk().await {
        read += chunk.len();
        if read > ANSWER_MAX_BYTES {
            return;
        }
    }
}
