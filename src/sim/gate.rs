//! Who may speak to a program that runs whatever it is sent.

use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::http::request::Parts;
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

use super::reply::Reply;
use super::server::has_body;

/// Lets a request pass, or says why not.
///
/// A web page in the user's browser can send requests to loopback: it knows no key, can't send JSON without asking first
/// (we answer no such question), and a name that it had resolve to 127.0.0.1 shows in `Host`.
pub(super) fn check(head: &Parts, key: &SecretString, allow_remote: bool) -> Result<(), Reply> {
    let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
    if !allow_remote && !text(HOST).is_some_and(is_loopback_host) {
        return Err(Reply::error(
            403,
            "host_not_allowed",
            "the simulator answers to a loopback Host only",
        ));
    }
    let given = text(AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    if !given.is_some_and(|given| bool::from(given.as_bytes().ct_eq(key.expose_secret().as_bytes()))) {
        return Err(Reply::error(401, "unauthorized", "the key is missing or wrong"));
    }
    if has_body(&head.method) && !text(CONTENT_TYPE).is_some_and(is_json) {
        return Err(Reply::error(
            415,
            "unsupported_media_type",
            "the content type must be application/json",
        ));
    }
    Ok(())
}

pub(super) fn is_blank(key: &SecretString) -> bool {
    key.expose_secret().trim().is_empty()
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

fn is_loopback_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_hosts_pass() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1",
            "127.0.0.1:1",
            "127.8.8.8:80",
            "[::1]",
            "[::1]:80",
        ] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in [
            "",
            "example.com",
            "127.0.0.1.example.com",
            "localhost.example.com:80",
            "192.168.0.1",
            "[::2]:80",
            "0.0.0.0",
        ] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    #[test]
    fn json_may_have_parameters() {
        assert!(is_json("application/json; charset=utf-8"));
        assert!(!is_json("text/plain"));
        assert!(!is_json("application/jsonx"));
    }
}
