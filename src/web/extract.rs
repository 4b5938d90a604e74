//! Reading requests: addresses, queries and bodies, each fault named.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer};
use sqlx::PgConnection;
use uuid::Uuid;

use super::app::App;
use super::problem::Problem;
use crate::ids::{BoxId, ConversationId, RunId};
use crate::runs::{self, Run, RunNotFound};
use crate::webhooks::registry::WebhookName;

/// The longest body of a request, in bytes: the largest run there is, with each byte escaped.
pub const BODY_MAX_BYTES: usize = 512 * 1024;
/// How long a body may take to arrive.
const BODY_MAX_TIME: Duration = Duration::from_secs(30);

/// A JSON body.
pub(super) struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let kind = request.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if kind != "application/json" && !kind.ends_with("+json") {
            return Err(Problem::invalid_request(
                "send JSON, with the header Content-Type: application/json",
            ));
        }
        let read = tokio::time::timeout(BODY_MAX_TIME, Bytes::from_request(request, app)).await;
        let Ok(read) = read else {
            let message = "the body did not arrive in time";
            return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "invalid_request", message));
        };
        let bytes = read.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let message = format!("a body has at most {BODY_MAX_BYTES} bytes");
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request", message)
            }
            _ => Problem::invalid_request("the body could not be read"),
        })?;
        from_json(&bytes).map(Self)
    }
}

/// Reads JSON; a fault is said with the field that has it.
fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = error.path().to_string();
        // Its text can have a piece of the input in it, and that can be a secret.
        let fault = describe(error.inner());
        Problem::invalid_request(if field == "." {
            format!("the body: {fault}")
        } else {
            format!("{field}: {fault}")
        })
    })?;
    json.end()
        .map_err(|_| Problem::invalid_request("the body: something follows the JSON value"))?;
    Ok(read)
}

/// What is wrong, without values of the input.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    if text.starts_with("unknown field") || text.starts_with("missing field") || text.starts_with("duplicate field") {
        text.to_owned()
    } else if let Some((_, expected)) = text.rsplit_once(", expected ") {
        format!("expected {expected}")
    } else if error.is_data() {
        "it has a value that does not fit".to_owned()
    } else {
        format!("no JSON ({text})")
    }
}

/// JSON has one kind of number, and some clients write a whole one as `600.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WholeSeconds(pub u64);

impl<'de> Deserialize<'de> for WholeSeconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;

        impl de::Visitor<'_> for Whole {
            type Value = WholeSeconds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of seconds")
            }

            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<WholeSeconds, E> {
                Ok(WholeSeconds(seconds))
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<WholeSeconds, E> {
                // Printed without a fraction it is a number of ours, or out of range.
                let whole = format!("{seconds:.0}").parse().ok().filter(|_| seconds.fract() == 0.0);
                whole
                    .map(WholeSeconds)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Float(seconds), &self))
            }
        }

        deserializer.deserialize_any(Whole)
    }
}

/// A query whose fields are known.
pub(super) struct Asked<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        match Query::<T>::from_request_parts(parts, app).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(rejection) => {
                let text = rejection.body_text();
                let text = text
                    .strip_prefix("Failed to deserialize query string: ")
                    .unwrap_or(&text);
                Err(Problem::invalid_request(format!("the query: {text}")))
            }
        }
    }
}

/// A conversation in the address.
pub(super) struct ConversationPlace(pub ConversationId);

impl FromRequestParts<App> for ConversationPlace {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        conversation(&named(parts, app).await?).map(Self)
    }
}

/// A box of a conversation in the address.
pub(super) struct BoxPlace {
    pub conversation_id: ConversationId,
    pub box_id: BoxId,
}

impl FromRequestParts<App> for BoxPlace {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let names = named(parts, app).await?;
        Ok(Self {
            conversation_id: conversation(&names)?,
            box_id: box_id(&names)?.ok_or_else(Problem::no_such_box)?,
        })
    }
}

/// A run of a conversation in the address, by way of its box or without it.
#[derive(Debug, Clone)]
#[expect(clippy::struct_field_names, reason = "the names that stand in addresses")]
pub(super) struct RunPlace {
    pub conversation_id: ConversationId,
    pub run_id: RunId,
    box_id: Option<BoxId>,
}

impl RunPlace {
    /// The run, where it is in this conversation and, if the address names one, on this box.
    pub async fn find(&self, conn: &mut PgConnection) -> Result<Run, RunNotFound> {
        let run = runs::get_run(conn, self.conversation_id, self.run_id).await?;
        match &self.box_id {
            Some(box_id) if *box_id != run.box_id => Err(RunNotFound::NotFound),
            Some(_) | None => Ok(run),
        }
    }
}

impl FromRequestParts<App> for RunPlace {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let names = named(parts, app).await?;
        Ok(Self {
            conversation_id: conversation(&names)?,
            box_id: box_id(&names)?,
            run_id: run_id(&names)?,
        })
    }
}

/// A run in the address, without its conversation.
pub(super) struct RunName(pub RunId);

impl FromRequestParts<App> for RunName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        run_id(&named(parts, app).await?).map(Self)
    }
}

/// A webhook in the address, as it was written: the one that makes it says what is wrong with a name.
pub(super) struct WebhookPlace(pub String);

impl WebhookPlace {
    /// Its name; what can be none is not there.
    pub fn name(&self) -> Result<WebhookName, Problem> {
        self.0.parse().map_err(|_| Problem::no_such_webhook())
    }
}

impl FromRequestParts<App> for WebhookPlace {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let mut names = named(parts, app).await?;
        Ok(Self(names.remove("name").unwrap_or_default()))
    }
}

/// A delivery of a webhook in the address.
pub(super) struct DeliveryPlace {
    pub webhook: WebhookPlace,
    /// `None`: it can be no id.
    pub delivery_id: Option<Uuid>,
}

impl FromRequestParts<App> for DeliveryPlace {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let mut names = named(parts, app).await?;
        Ok(Self {
            delivery_id: names.get("delivery_id").and_then(|text| text.parse().ok()),
            webhook: WebhookPlace(names.remove("name").unwrap_or_default()),
        })
    }
}

type Names = HashMap<String, String>;

async fn named(parts: &mut Parts, app: &App) -> Result<Names, Problem> {
    let names = Path::<Names>::from_request_parts(parts, app).await;
    names
        .map(|Path(names)| names)
        .map_err(|_| Problem::invalid_request("the address: it is percent-encoded UTF-8"))
}

fn conversation(names: &Names) -> Result<ConversationId, Problem> {
    let id = names.get("conversation_id").and_then(|text| text.parse().ok());
    id.inspect(|id| noted("conversation_id", id))
        .ok_or_else(Problem::no_such_conversation)
}

fn run_id(names: &Names) -> Result<RunId, Problem> {
    let id = names.get("run_id").and_then(|text| text.parse().ok());
    id.inspect(|id| noted("run_id", id)).ok_or_else(Problem::no_such_run)
}

fn box_id(names: &Names) -> Result<Option<BoxId>, Problem> {
    let id = names.get("box_id").map(|text| text.parse::<BoxId>()).transpose();
    let id = id.map_err(|wrong| Problem::invalid("invalid_box_id", wrong.to_string()))?;
    Ok(id.inspect(|id| noted("box_id", id)))
}

/// Whatever is logged from here on says that it is about this one. Only what is an id gets here.
fn noted(field: &'static str, id: &impl fmt::Display) {
    tracing::Span::current().record(field, tracing::field::display(id));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only the faults are looked at")]
    struct Example {
        command: String,
        seconds: Option<WholeSeconds>,
        env: Option<BTreeMap<String, String>>,
    }

    #[test]
    fn a_fault_in_a_body_is_said_with_its_field_and_without_its_value() {
        let fault = |json: &str| format!("{:?}", from_json::<Example>(json.as_bytes()).unwrap_err());
        for (json, expected) in [
            (r#"{"comand": "x"}"#, "unknown field `comand`"),
            ("{}", "missing field `command`"),
            (r#"{"command": 17}"#, "command: expected a string"),
            (
                r#"{"command": "x", "env": {"A": "s3cret", "B": 1}}"#,
                "env.B: expected a string",
            ),
            (
                r#"{"command": "x", "seconds": "s3cret"}"#,
                "seconds: expected a whole number",
            ),
            (r#"{"command": "x", "seconds": -1}"#, "seconds: expected a whole number"),
            (
                r#"{"command": "x", "seconds": 1.5}"#,
                "seconds: expected a whole number",
            ),
            (r#"{"command": "x"} {}"#, "something follows"),
            ("[", "no JSON"),
            ("", "no JSON"),
            ("\"s3cret\"", "expected struct"),
            (r#"{"command": "x", "command": "y"}"#, "duplicate field `command`"),
        ] {
            let said = fault(json);
            assert!(said.contains(expected), "{json}: {said}");
            assert!(!said.contains("s3cret"), "{json}: {said}");
        }
    }

    #[test]
    fn a_whole_number_is_one_however_it_is_written() {
        let read = |json: &str| serde_json::from_str::<WholeSeconds>(json).ok().map(|seconds| seconds.0);
        assert_eq!(read("600"), Some(600));
        assert_eq!(read("600.0"), Some(600));
        assert_eq!(read("6e2"), Some(600));
        for other in ["1.5", "-1", "-1.0", "1e300", "\"600\""] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
