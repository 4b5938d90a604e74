//! Tokens and tickets: who is asking, and what they may do.
//!
//! A token is 32 random bytes, shown once; the database keeps its SHA-256, so that whoever reads the database can't act as
//! anybody. A token is looked up at each request, so that a revocation holds from the next one on. A ticket is the same for
//! one run, read-only and for ten minutes: a browser may carry it in an address.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::ids::RunId;
use crate::runs::Principal;

const TOKEN_PREFIX: &str = "boxrun_";
const TICKET_PREFIX: &str = "boxrunticket_";
/// How long a ticket is good for, in seconds.
pub const TICKET_SECONDS: i32 = 600;
/// Tickets that have expired are removed as new ones are made, at most so many at a time.
const EXPIRED_REMOVED_MAX: i64 = 100;

/// One thing that a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Read runs, their output and timelines.
    RunsRead,
    /// Start and cancel runs, make and erase conversations.
    RunsWrite,
    /// Attach and detach boxes: any box of the provider's account that nobody has yet.
    BoxesWrite,
    /// Ask for somebody else, named in `Boxrun-On-Behalf-Of`.
    ActAs,
    /// Read the metrics.
    Metrics,
    /// Everything that operators do.
    Admin,
}

impl Scope {
    pub const ALL: [Self; 6] = [
        Self::RunsRead,
        Self::RunsWrite,
        Self::BoxesWrite,
        Self::ActAs,
        Self::Metrics,
        Self::Admin,
    ];
    /// What a token allows when nothing else is said.
    pub const DEFAULT: [Self; 2] = [Self::RunsRead, Self::RunsWrite];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RunsRead => "runs:read",
            Self::RunsWrite => "runs:write",
            Self::BoxesWrite => "boxes:write",
            Self::ActAs => "act-as",
            Self::Metrics => "metrics",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Scope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A text that is no scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a scope is one of runs:read, runs:write, boxes:write, act-as, metrics, admin")]
pub struct UnknownScope;

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.as_str() == text)
            .ok_or(UnknownScope)
    }
}

/// A token that was just made: the only time that its text is there.
#[derive(Clone, Serialize)]
pub struct NewToken {
    pub id: Uuid,
    pub token: String,
    pub principal: String,
    pub scopes: Vec<Scope>,
    #[serde(serialize_with = "crate::runs::view::time_if_any")]
    pub expires_at: Option<DateTime<Utc>>,
}

/// A token as it is listed.
#[derive(Debug, Clone, Serialize)]
pub struct TokenEntry {
    pub id: Uuid,
    pub principal: String,
    pub scopes: Vec<String>,
    #[serde(serialize_with = "crate::runs::view::time_if_any")]
    pub expires_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "crate::runs::view::time_if_any")]
    pub revoked_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "crate::runs::view::time")]
    pub created_at: DateTime<Utc>,
    /// Neither revoked nor expired.
    pub valid: bool,
}

/// Makes a token of `principal`; `seconds`: how long it is good for, `None`: until it is revoked.
///
/// # Errors
/// Only the database's.
pub async fn create(
    pool: &PgPool,
    principal: &Principal,
    scopes: &[Scope],
    seconds: Option<u64>,
) -> sqlx::Result<NewToken> {
    let token = fresh(TOKEN_PREFIX);
    let names: Vec<String> = scopes.iter().map(ToString::to_string).collect();
    #[expect(clippy::cast_precision_loss, reason = "no token is good for a hundred million years")]
    let seconds = seconds.map(|seconds| seconds as f64);
    let made = sqlx::query!(
        "insert into boxrun.api_tokens (id, token_sha256, principal_type, principal_id, scopes, expires_at)
         values ($1, $2, $3, $4, $5, clock_timestamp() + make_interval(secs => $6))
         returning id, expires_at",
        Uuid::now_v7(),
        &digest(&token),
        principal.kind,
        principal.id,
        &names,
        seconds,
    )
    .fetch_one(pool)
    .await?;
    Ok(NewToken {
        id: made.id,
        token,
        principal: principal.to_string(),
        scopes: scopes.to_vec(),
        expires_at: made.expires_at,
    })
}

/// All tokens, newest first, without their texts.
///
/// # Errors
/// Only the database's.
pub async fn list(pool: &PgPool) -> sqlx::Result<Vec<TokenEntry>> {
    sqlx::query_as!(
        TokenEntry,
        r#"select id, principal_type || ':' || principal_id as "principal!", scopes, expires_at, revoked_at,
                  inserted_at as created_at,
                  revoked_at is null and coalesce(expires_at > clock_timestamp(), true) as "valid!"
             from boxrun.api_tokens order by inserted_at desc, id desc"#
    )
    .fetch_all(pool)
    .await
}

/// Revokes a token: from the next request on it is refused. `false`: there is no such token. One that was revoked before
/// stays as it is.
///
/// # Errors
/// Only the database's.
pub async fn revoke(pool: &PgPool, id: Uuid) -> sqlx::Result<bool> {
    let revoked = sqlx::query!(
        "update boxrun.api_tokens set revoked_at = coalesce(revoked_at, clock_timestamp()) where id = $1",
        id
    )
    .execute(pool)
    .await?;
    Ok(revoked.rows_affected() == 1)
}

/// Whether this is a token that is neither revoked nor expired.
///
/// # Errors
/// Only the database's.
pub async fn is_good(pool: &PgPool, token: &str) -> sqlx::Result<bool> {
    let mut conn = pool.acquire().await?;
    Ok(find(&mut conn, token).await?.is_some())
}

/// Whom a token stands for.
#[derive(Debug, Clone)]
pub(super) struct Bearer {
    pub token_id: Uuid,
    pub principal: Principal,
    pub scopes: Vec<Scope>,
}

/// Finds a token that is neither revoked nor expired.
pub(super) async fn find(conn: &mut PgConnection, token: &str) -> sqlx::Result<Option<Bearer>> {
    let found = sqlx::query!(
        "select id, principal_type, principal_id, scopes from boxrun.api_tokens
          where token_sha256 = $1 and revoked_at is null and (expires_at is null or expires_at > clock_timestamp())",
        &digest(token),
    )
    .fetch_optional(conn)
    .await?;
    Ok(found.map(|row| Bearer {
        token_id: row.id,
        principal: Principal {
            kind: row.principal_type,
            id: row.principal_id,
        },
        // A scope of a newer version allows nothing here.
        scopes: row.scopes.iter().filter_map(|scope| scope.parse().ok()).collect(),
    }))
}

/// Whether a token that was found before is neither revoked nor expired now.
pub(super) async fn is_valid(conn: &mut PgConnection, id: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select exists (select from boxrun.api_tokens
            where id = $1 and revoked_at is null and (expires_at is null or expires_at > clock_timestamp())) as "valid!""#,
        id
    )
    .fetch_one(conn)
    .await
}

/// A ticket that was just made.
#[derive(Debug)]
pub(super) struct NewTicket {
    pub ticket: String,
    pub expires_at: DateTime<Utc>,
}

/// Makes a ticket for one run, good for [`TICKET_SECONDS`] or as long as the token that asks for it.
pub(super) async fn create_ticket(conn: &mut PgConnection, run_id: RunId, token_id: Uuid) -> sqlx::Result<NewTicket> {
    sqlx::query!(
        "delete from boxrun.run_tickets where ticket_sha256 in
            (select ticket_sha256 from boxrun.run_tickets where expires_at < clock_timestamp()
              order by expires_at limit $1 for update skip locked)",
        EXPIRED_REMOVED_MAX
    )
    .execute(&mut *conn)
    .await?;
    let ticket = fresh(TICKET_PREFIX);
    let expires_at = sqlx::query_scalar!(
        "insert into boxrun.run_tickets (ticket_sha256, run_id, token_id, expires_at)
         select $1, $2, t.id, least(clock_timestamp() + make_interval(secs => $4), t.expires_at)
           from boxrun.api_tokens t where t.id = $3
         returning expires_at",
        &digest(&ticket),
        run_id.0,
        token_id,
        f64::from(TICKET_SECONDS),
    )
    .fetch_one(conn)
    .await?;
    Ok(NewTicket { ticket, expires_at })
}

/// The run that a ticket is for, if it is good still.
pub(super) async fn find_ticket(conn: &mut PgConnection, ticket: &str) -> sqlx::Result<Option<RunId>> {
    sqlx::query_scalar!(
        r#"select k.run_id as "run_id: RunId" from boxrun.run_tickets k join boxrun.api_tokens t on t.id = k.token_id
            where k.ticket_sha256 = $1 and k.expires_at > clock_timestamp() and t.revoked_at is null"#,
        &digest(ticket),
    )
    .fetch_optional(conn)
    .await
}

#[expect(
    clippy::disallowed_methods,
    reason = "a token is nothing but randomness; no decision depends on it"
)]
fn fresh(prefix: &str) -> String {
    let bytes: [u8; 32] = rand::random();
    format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bytes))
}

fn digest(text: &str) -> Vec<u8> {
    Sha256::digest(text.as_bytes()).to_vec()
}
