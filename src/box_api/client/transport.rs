//! The HTTP below the two calls: how the client is set up, what a transport error means, and reading a bounded body.

use std::time::{Duration, SystemTime};

use reqwest::header::{CONTENT_LENGTH, HeaderMap, RETRY_AFTER};
use url::Url;

use super::error_table::{BodyFault, Object, TransportFailure};
use crate::retry_after::parse_retry_after;

/// Longer answers are not read to their end.
const ANSWER_MAX_BYTES: usize = 4 * 1024 * 1024;
/// Below every call's total deadline, so that a connection that does not open is told apart from an answer that does not
/// come. A call with a shorter deadline than this can't tell, and counts as one that may have run.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// No provider holds us back for longer, whatever it asks for: a week in a header must not stall a run past its deadline.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// The settings that hold the promise of the module above: nothing is sent twice.
#[expect(clippy::disallowed_methods, reason = "the one place that builds HTTP clients")]
pub(super) fn http_client(api_url: &Url) -> reqwest::ClientBuilder {
    // Fails when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder()
        .user_agent(concat!("boxrun/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        // HTTP_PROXY of the environment is not obeyed: a proxy answers for the provider (502, HTML), may send a request
        // again, and would see the calls to a simulator on this machine.
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT);
    match api_url.scheme() {
        // The system's certificates are not even read: a machine that has none can still use a simulator.
        "http" => builder.tls_certs_only([]),
        _ => builder,
    }
}

pub(super) fn failure_of(error: &reqwest::Error) -> TransportFailure {
    if error.is_connect() {
        TransportFailure::NeverOpened
    } else if error.is_timeout() {
        TransportFailure::DeadlinePassed
    } else {
        TransportFailure::Broken
    }
}

/// The innermost reason, without the address: "Connection refused (os error 111)".
pub(super) fn cause_of(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut innermost: &dyn std::error::Error = &error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

pub(super) fn retry_after_of(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    parse_retry_after(headers.get(RETRY_AFTER)?.to_str().ok()?, now, RETRY_AFTER_MAX)
}

pub(super) async fn read_body(mut response: reqwest::Response) -> Result<Vec<u8>, BodyFault> {
    let announced = response
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > ANSWER_MAX_BYTES as u64) {
        return Err(BodyFault::TooLarge);
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|_| BodyFault::Broken)? {
        if body.len() + chunk.len() > ANSWER_MAX_BYTES {
            return Err(BodyFault::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

pub(super) fn parse_object(body: &[u8]) -> Result<Object, BodyFault> {
    match serde_json::from_slice(body) {
        Ok(serde_json::Value::Object(object)) => Ok(object),
        Ok(_) => Err(BodyFault::NotAnObject),
        Err(_) => Err(BodyFault::NotJson),
    }
}
