//! The provider: whether it can be reached, and whether it takes the key.

use std::time::Duration;

use tokio::net::TcpStream;

use super::Finding;
use crate::box_api::{BoxClient, BoxErrorCode, Readiness};
use crate::config::{Provider, process_environment};
use crate::ids::BoxId;

/// A box that nobody is likely to have: that it is not found says that the provider is there and takes the key.
const UNLIKELY_BOX: &str = "bx_zzzzzzzz";
const CONNECT_MAX: Duration = Duration::from_secs(10);

pub(super) async fn look(provider: &Provider) -> Vec<Finding> {
    let origin = provider.origin();
    let Some(key) = provider.key.clone() else {
        return vec![reach(provider).await];
    };
    let client = match BoxClient::new(provider.url.clone(), Some(key)) {
        Ok(client) => client,
        Err(error) => {
            return vec![Finding::failed(
                "provider",
                error.to_string(),
                "correct BOX_API_URL or BOX_API_KEY",
            )];
        }
    };
    let named = process_environment("BOXRUN_BOX").filter(|text| !text.trim().is_empty());
    let named = match named.map(|text| text.trim().parse::<BoxId>()).transpose() {
        Ok(named) => named,
        Err(error) => {
            return vec![Finding::failed(
                "box",
                format!("BOXRUN_BOX: {error}"),
                "correct or unset BOXRUN_BOX",
            )];
        }
    };
    let asked = named
        .clone()
        .unwrap_or_else(|| UNLIKELY_BOX.parse().expect("a valid box id"));
    let reached = || Finding::ok("provider", format!("{origin} answers"));
    let accepted = || Finding::ok("key", "BOX_API_KEY is accepted");
    match client.get_box(&asked).await {
        Ok(info) => {
            let mut findings = vec![reached(), accepted()];
            if named.is_some() {
                findings.push(match info.readiness() {
                    Readiness::Ready => Finding::ok("box", format!("{asked} takes commands")),
                    Readiness::Starting => Finding::warning("box", format!("{asked} is starting"), "wait a moment"),
                    Readiness::Stopped => Finding::warning(
                        "box",
                        format!("{asked} is stopped"),
                        "start it at the provider, or set BOXRUN_BOX to another",
                    ),
                });
            }
            findings
        }
        Err(error) => match error.code {
            BoxErrorCode::BoxNotFound if named.is_none() => vec![reached(), accepted()],
            BoxErrorCode::BoxNotFound => vec![
                reached(),
                accepted(),
                Finding::failed(
                    "box",
                    format!("the provider knows no box {asked}"),
                    "set BOXRUN_BOX to a box of this key's account",
                ),
            ],
            BoxErrorCode::BoxUnauthorized => vec![
                reached(),
                Finding::failed(
                    "key",
                    format!("box_unauthorized: {origin} refuses BOX_API_KEY"),
                    "set BOX_API_KEY to a valid key of this provider, then restart the workers",
                ),
            ],
            BoxErrorCode::BoxBillingRequired => vec![
                reached(),
                Finding::failed("key", error.to_string(), "see to the account's billing at the provider"),
            ],
            BoxErrorCode::BoxRateLimited => vec![Finding::warning(
                "provider",
                format!("{origin}: {error}"),
                "wait; workers hold back by themselves",
            )],
            BoxErrorCode::BoxNotReady | BoxErrorCode::BoxStopped | BoxErrorCode::BoxGone => vec![
                reached(),
                accepted(),
                Finding::warning(
                    "box",
                    error.to_string(),
                    "see to the box at the provider, or use another",
                ),
            ],
            BoxErrorCode::BoxNotConfigured
            | BoxErrorCode::BoxRequestRefused
            | BoxErrorCode::BoxUnreachable
            | BoxErrorCode::BoxResponseInvalid => vec![Finding::failed(
                "provider",
                format!("{}: {error}", provider.url),
                "check BOX_API_URL (with its path), and that this machine may connect there",
            )],
        },
    }
}

/// Without a key nothing is asked; that something listens can be said.
async fn reach(provider: &Provider) -> Finding {
    let origin = provider.origin();
    let host = provider.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let port = provider.url.port_or_known_default().unwrap_or(443);
    match tokio::time::timeout(CONNECT_MAX, TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Finding::warning(
            "provider",
            format!("{origin} takes connections; without BOX_API_KEY nothing was asked"),
            "set BOX_API_KEY",
        ),
        Ok(Err(error)) => unreachable(&origin, &error.to_string()),
        Err(_) => unreachable(&origin, "no connection within 10 seconds"),
    }
}

fn unreachable(origin: &str, why: &str) -> Finding {
    Finding::failed(
        "provider",
        format!("{origin} can't be reached: {why}"),
        "check BOX_API_URL, and that this machine may connect there",
    )
}
