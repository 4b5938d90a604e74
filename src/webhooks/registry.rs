//! The webhooks of a principal: put, read, delete.

use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use utoipa::ToSchema;
use uuid::Uuid;

use super::body::RUN_FINISHED;
use super::sign::SigningSecret;
use super::url::WebhookUrl;
use crate::runs::view::{time, time_if_any};
use crate::runs::{Principal, SecretKeys};

/// The most webhooks of one principal.
pub const WEBHOOKS_MAX: i64 = 20;

/// What a principal calls its webhook: 1 to 64 of `a-z0-9_-`, not beginning with `_` or `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookName(String);

/// A text that is no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name is 1 to 64 of a-z, 0-9, _ and -, and begins with a letter or digit")]
pub struct InvalidName;

impl FromStr for WebhookName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|byte| plain(byte) || matches!(byte, b'_' | b'-'))
            && text.bytes().next().is_some_and(plain);
        fits.then(|| Self(text.to_owned())).ok_or(InvalidName)
    }
}

/// A webhook as its principal sees it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct WebhookView {
    #[schema(example = "ci")]
    pub name: String,
    /// Without its query, which may hold a secret.
    #[schema(example = "https://app.example.com/hooks/boxrun")]
    pub url: String,
    /// What is told.
    #[schema(example = "run.finished")]
    pub event: &'static str,
    /// Since the receiver answered 410 Gone nothing is sent; put the webhook again to go on.
    #[serde(serialize_with = "time_if_any")]
    pub disabled_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "time")]
    pub created_at: DateTime<Utc>,
    /// When it was last put or disabled.
    #[serde(serialize_with = "time")]
    pub updated_at: DateTime<Utc>,
}

/// A row, as several statements return it.
struct Row {
    name: String,
    url: String,
    disabled_at: Option<DateTime<Utc>>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

impl From<Row> for WebhookView {
    fn from(row: Row) -> Self {
        Self {
            name: row.name,
            // Nothing else was ever stored; but what is no URL is not shown.
            url: WebhookUrl::parse(&row.url).map_or_else(|_| String::new(), |url| url.shown()),
            event: RUN_FINISHED,
            disabled_at: row.disabled_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// What a put did.
#[derive(Debug)]
pub struct PutWebhook {
    pub webhook: WebhookView,
    /// The signing secret of a webhook that is new.
    pub made: Option<SigningSecret>,
}

/// Why a webhook is not put.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    #[error("webhook_limit_reached: a principal has at most {WEBHOOKS_MAX} webhooks; delete one first")]
    LimitReached,
    #[error("the webhook could not be written to the database")]
    Database(#[from] sqlx::Error),
}

/// Makes a webhook, or changes the URL of the one that there is, and enables it. The signing secret of one that there is
/// stays, unless another is given: that is how it is rotated.
///
/// # Errors
/// [`PutError::LimitReached`] where the principal has as many as it may.
pub async fn put(
    conn: &mut PgConnection,
    keys: &SecretKeys,
    owner: &Principal,
    name: &WebhookName,
    url: &WebhookUrl,
    secret: Option<&SigningSecret>,
) -> Result<PutWebhook, PutError> {
    // Of the puts of one principal the next waits until this one has committed: so none is made twice, nor too many.
    sqlx::query!(
        "select pg_advisory_xact_lock(hashtextextended($1, 0))",
        format!("boxrun.webhooks {owner}")
    )
    .execute(&mut *conn)
    .await?;
    let known = sqlx::query_scalar!(
        "select id from boxrun.webhooks where principal_type = $1 and principal_id = $2 and name = $3",
        owner.kind,
        owner.id,
        name.0
    );
    if let Some(id) = known.fetch_optional(&mut *conn).await?
        && let Some(webhook) = change(conn, keys, id, url, secret).await?
    {
        return Ok(PutWebhook { webhook, made: None });
    }
    let secret = secret.cloned().unwrap_or_else(SigningSecret::generate);
    let webhook = insert(conn, keys, owner, name, url, &secret).await?;
    Ok(PutWebhook {
        webhook,
        made: Some(secret),
    })
}

/// `None`: it was deleted meanwhile.
async fn change(
    conn: &mut PgConnection,
    keys: &SecretKeys,
    id: Uuid,
    url: &WebhookUrl,
    secret: Option<&SigningSecret>,
) -> sqlx::Result<Option<WebhookView>> {
    let sealed = secret.map(|secret| secret.seal(keys, id));
    let changed = sqlx::query_as!(
        Row,
        "update boxrun.webhooks
            set url = $2, key_id = coalesce($3, key_id), nonce = coalesce($4, nonce), sealed = coalesce($5, sealed),
                disabled_at = null, updated_at = clock_timestamp()
          where id = $1
         returning name, url, disabled_at, inserted_at as created_at, updated_at",
        id,
        url.expose(),
        sealed.as_ref().map(|sealed| sealed.key_id.as_str()),
        sealed.as_ref().map(|sealed| sealed.nonce.as_slice()),
        sealed.as_ref().map(|sealed| sealed.sealed.as_slice()),
    );
    Ok(changed.fetch_optional(conn).await?.map(Into::into))
}

async fn insert(
    conn: &mut PgConnection,
    keys: &SecretKeys,
    owner: &Principal,
    name: &WebhookName,
    url: &WebhookUrl,
    secret: &SigningSecret,
) -> Result<WebhookView, PutError> {
    let id = Uuid::now_v7();
    let sealed = secret.seal(keys, id);
    let made = sqlx::query_as!(
        Row,
        "insert into boxrun.webhooks (id, principal_type, principal_id, name, url, key_id, nonce, sealed)
         select $1, $2, $3, $4, $5, $6, $7, $8
          where (select count(*) from boxrun.webhooks where principal_type = $2 and principal_id = $3) < $9
         returning name, url, disabled_at, inserted_at as created_at, updated_at",
        id,
        owner.kind,
        owner.id,
        name.0,
        url.expose(),
        sealed.key_id,
        sealed.nonce,
        sealed.sealed,
        WEBHOOKS_MAX,
    );
    let made = made.fetch_optional(conn).await?;
    made.map(Into::into).ok_or(PutError::LimitReached)
}

/// All webhooks of a principal, by name.
///
/// # Errors
/// Only the database's.
pub async fn list(conn: &mut PgConnection, owner: &Principal) -> sqlx::Result<Vec<WebhookView>> {
    let rows = sqlx::query_as!(
        Row,
        r#"select name, url, disabled_at, inserted_at as created_at, updated_at from boxrun.webhooks
            where principal_type = $1 and principal_id = $2 order by name collate "C""#,
        owner.kind,
        owner.id
    );
    Ok(rows.fetch_all(conn).await?.into_iter().map(Into::into).collect())
}

/// One webhook of a principal.
///
/// # Errors
/// Only the database's.
pub async fn find(
    conn: &mut PgConnection,
    owner: &Principal,
    name: &WebhookName,
) -> sqlx::Result<Option<(Uuid, WebhookView)>> {
    let found = sqlx::query!(
        "select id, name, url, disabled_at, inserted_at as created_at, updated_at from boxrun.webhooks
          where principal_type = $1 and principal_id = $2 and name = $3",
        owner.kind,
        owner.id,
        name.0
    );
    Ok(found.fetch_optional(conn).await?.map(|row| {
        let view = Row {
            name: row.name,
            url: row.url,
            disabled_at: row.disabled_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
        };
        (row.id, view.into())
    }))
}

/// Deletes a webhook with its deliveries. `false`: there is no such webhook.
///
/// # Errors
/// Only the database's.
pub async fn delete(conn: &mut PgConnection, owner: &Principal, name: &WebhookName) -> sqlx::Result<bool> {
    let deleted = sqlx::query!(
        "delete from boxrun.webhooks where principal_type = $1 and principal_id = $2 and name = $3",
        owner.kind,
        owner.id,
        name.0
    );
    Ok(deleted.execute(conn).await?.rows_affected() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_checked_at_the_edge() {
        let longest = "x".repeat(64);
        for name in ["a", "0", "ci", "ci-2_b", longest.as_str()] {
            assert!(name.parse::<WebhookName>().is_ok(), "{name}");
        }
        for wrong in ["", "_a", "-a", "A", "a b", "a/b", "ä", "a\n", &format!("{longest}x")] {
            assert_eq!(wrong.parse::<WebhookName>(), Err(InvalidName), "{wrong}");
        }
    }
}
