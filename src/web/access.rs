//! Who asks, and for what: a caller with a token, or a browser with a ticket for one run.
//!
//! What belongs to somebody else looks exactly like what is not there: the same answer, after the same queries.

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use sqlx::PgConnection;
use uuid::Uuid;

use super::app::App;
use super::extract::RunPlace;
use super::problem::Problem;
use super::tokens::{self, Scope};
use crate::ids::{ConversationId, RunId};
use crate::runs::{Principal, Run};

/// Names whom a token with the scope `act-as` asks for: `TYPE:ID`.
pub(super) const ON_BEHALF_OF: &str = "boxrun-on-behalf-of";
/// No token of ours is longer.
const TOKEN_MAX_BYTES: usize = 256;

/// Somebody with a valid token.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub principal: Principal,
    pub token_id: Uuid,
    scopes: Vec<Scope>,
}

impl Caller {
    /// All that the token allows.
    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    /// # Errors
    /// `forbidden` when the token does not allow it.
    pub fn may(&self, scope: Scope) -> Result<(), Problem> {
        if self.scopes.contains(&scope) {
            Ok(())
        } else {
            Err(Problem::forbidden(format!("the token does not have the scope {scope}")))
        }
    }

    /// That the conversation is the caller's own.
    pub async fn own(&self, conn: &mut PgConnection, id: ConversationId) -> Result<(), Problem> {
        let own = sqlx::query_scalar!(
            r#"select true as "own!" from boxrun.conversations
                where id = $1 and principal_type = $2 and principal_id = $3"#,
            id.0,
            self.principal.kind,
            self.principal.id
        );
        own.fetch_optional(conn)
            .await?
            .map(drop)
            .ok_or_else(Problem::no_such_conversation)
    }

    /// The run at `place`, where its conversation is the caller's own.
    pub async fn run(&self, conn: &mut PgConnection, place: &RunPlace) -> Result<Run, Problem> {
        self.own(conn, place.conversation_id).await?;
        Ok(place.find(conn).await?)
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let token = bearer(parts).ok_or_else(Problem::unauthorized)?;
        let mut conn = app.connection().await?;
        let found = tokens::find(&mut conn, token).await?;
        drop(conn);
        let bearer = found.ok_or_else(Problem::unauthorized)?;
        let mut caller = Self {
            principal: bearer.principal,
            token_id: bearer.token_id,
            scopes: bearer.scopes,
        };
        if let Some(other) = parts.headers.get(ON_BEHALF_OF) {
            caller.may(Scope::ActAs)?;
            let other = other.to_str().ok().and_then(parse_principal);
            caller.principal = other.ok_or_else(|| {
                Problem::invalid_request(
                    "Boxrun-On-Behalf-Of: write TYPE:ID, for example user:42; TYPE has 1 to 64 bytes, ID 1 to 256",
                )
            })?;
        }
        app.count(&caller.principal)?;
        Ok(caller)
    }
}

impl OptionalFromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Option<Self>, Problem> {
        if parts.headers.contains_key(AUTHORIZATION) {
            <Self as FromRequestParts<App>>::from_request_parts(parts, app)
                .await
                .map(Some)
        } else {
            Ok(None)
        }
    }
}

/// Reads `TYPE:ID`.
pub(crate) fn parse_principal(text: &str) -> Option<Principal> {
    let (kind, id) = text.split_once(':')?;
    let fits = |text: &str, most: usize| (1..=most).contains(&text.len()) && !text.contains('\0');
    (fits(kind, 64) && fits(id, 256)).then(|| Principal {
        kind: kind.to_owned(),
        id: id.to_owned(),
    })
}

fn bearer(parts: &Parts) -> Option<&str> {
    let value = parts.headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && (1..=TOKEN_MAX_BYTES).contains(&token.len())).then_some(token)
}

/// Somebody who reads one run: a caller, or the bearer of a ticket.
#[derive(Debug)]
pub(super) enum Reader {
    Caller(Caller),
    Ticket { ticket: String, run_id: RunId },
}

impl Reader {
    /// By token where one is sent, else by the ticket in the address.
    pub async fn of(app: &App, caller: Option<Caller>, ticket: Option<String>) -> Result<Self, Problem> {
        if let Some(caller) = caller {
            caller.may(Scope::RunsRead)?;
            return Ok(Self::Caller(caller));
        }
        let ticket = ticket
            .filter(|ticket| (1..=TOKEN_MAX_BYTES).contains(&ticket.len()))
            .ok_or_else(Problem::unauthorized)?;
        let mut conn = app.connection().await?;
        let run_id = tokens::find_ticket(&mut conn, &ticket).await?;
        let run_id = run_id.ok_or_else(Problem::unauthorized)?;
        Ok(Self::Ticket { ticket, run_id })
    }

    /// The run at `place`, where the reader may read it.
    pub async fn run(&self, conn: &mut PgConnection, place: &RunPlace) -> Result<Run, Problem> {
        match self {
            Self::Caller(caller) => caller.run(conn, place).await,
            Self::Ticket { run_id, .. } if *run_id == place.run_id => Ok(place.find(conn).await?),
            Self::Ticket { .. } => Err(Problem::no_such_run()),
        }
    }

    /// Whether what was good at the beginning of a stream is good still.
    pub async fn is_good_still(&self, app: &App) -> Result<bool, Problem> {
        let mut conn = app.connection().await?;
        Ok(match self {
            Self::Caller(caller) => tokens::is_valid(&mut conn, caller.token_id).await?,
            Self::Ticket { ticket, .. } => tokens::find_ticket(&mut conn, ticket).await?.is_some(),
        })
    }
}
