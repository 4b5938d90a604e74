//! The outbox's own statements: claim, finish, what is due next, and the removal of what is old. They mirror those of
//! `queue/`: all times are the database's, a claim's token is fresh, a finish names it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::outcome::{Next, Outcome};
use super::url::WebhookUrl;
use crate::ids::RunId;
use crate::runs::secrets::Sealed;

/// Ended deliveries are kept for so long, in days.
const RETENTION_DAYS: i32 = 30;
/// The most that one pass removes.
const REMOVED_MAX: i64 = 5_000;

/// The right to attempt a delivery; a statement that names it changes nothing once somebody else has claimed the delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeliveryLease {
    pub delivery_id: Uuid,
    pub token: Uuid,
}

/// A delivery in hand, with what is needed to send it.
#[derive(Debug)]
pub(super) struct ClaimedDelivery {
    pub lease: DeliveryLease,
    pub run_id: RunId,
    /// Attempts before this one.
    pub attempts: i32,
    pub webhook_id: Uuid,
    /// `None`: what is stored is no URL, which its check and ours prevent.
    pub url: Option<WebhookUrl>,
    pub secret: Sealed,
    pub disabled: bool,
    /// The database's clock: the header `webhook-timestamp`.
    pub claimed_at: DateTime<Utc>,
}

/// Claims at most `limit` due deliveries, of one webhook no more than `per_webhook` together with those in hand.
pub(super) async fn claim(
    pool: &PgPool,
    lease: Duration,
    worker: &str,
    limit: i64,
    per_webhook: i64,
) -> sqlx::Result<Vec<ClaimedDelivery>> {
    let token = Uuid::new_v4();
    let rows = sqlx::query_file!(
        "src/webhooks/sql/claim.sql",
        token,
        lease.as_secs_f64(),
        worker,
        limit,
        per_webhook
    )
    .fetch_all(pool)
    .await?;
    let claimed = rows.into_iter().map(|row| ClaimedDelivery {
        lease: DeliveryLease {
            delivery_id: row.id,
            token,
        },
        run_id: row.run_id,
        attempts: row.attempts,
        webhook_id: row.webhook_id,
        url: WebhookUrl::parse(&row.url).ok(),
        secret: Sealed {
            key_id: row.key_id,
            nonce: row.nonce,
            sealed: row.sealed,
        },
        disabled: row.disabled,
        claimed_at: row.claimed_at,
    });
    Ok(claimed.collect())
}

/// How long until the next delivery may be claimed; `None`: none is waiting.
pub(super) async fn next_due(pool: &PgPool) -> sqlx::Result<Option<Duration>> {
    let seconds = sqlx::query_scalar!(
        r#"select extract(epoch from claimable_at - clock_timestamp())::float8 as "seconds!"
             from boxrun.webhook_deliveries where state = 'pending' order by claimable_at limit 1"#
    )
    .fetch_optional(pool)
    .await?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)))
}

/// What a finish changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Finished {
    /// The lease was lost, or the delivery was erased: nothing was changed.
    Fenced,
    Ended,
    /// It is due again after this.
    Due(Duration),
}

/// Finishes an attempt, fenced by its lease; disables the webhook where its receiver is gone, unless it was put meanwhile.
pub(super) async fn finish(pool: &PgPool, claimed: &ClaimedDelivery, outcome: &Outcome) -> sqlx::Result<Finished> {
    let mut tx = pool.begin().await?;
    // The webhook first, as whoever deletes one does.
    if outcome.disables_webhook {
        let url = claimed.url.as_ref().map(WebhookUrl::expose);
        sqlx::query!(
            "update boxrun.webhooks set disabled_at = clock_timestamp(), updated_at = clock_timestamp()
              where id = $1 and url = $2 and disabled_at is null and updated_at <= $3",
            claimed.webhook_id,
            url,
            claimed.claimed_at
        )
        .execute(&mut *tx)
        .await?;
    }
    let (state, delay) = match outcome.next {
        Next::Delivered => ("delivered", Duration::ZERO),
        Next::Retry(delay) => ("pending", delay),
        Next::Failed => ("failed", Duration::ZERO),
    };
    let finished = sqlx::query_file_scalar!(
        "src/webhooks/sql/finish.sql",
        claimed.lease.delivery_id,
        claimed.lease.token,
        state,
        delay.as_secs_f64(),
        outcome.status.and_then(|status| i16::try_from(status).ok()),
        outcome.failure.as_ref().map(|failure| failure.code),
        outcome.failure.as_ref().map(|failure| failure.text.as_str()),
    )
    .fetch_optional(&mut *tx)
    .await?;
    let Some(due_in) = finished else {
        return Ok(Finished::Fenced);
    };
    tx.commit().await?;
    Ok(match due_in {
        Some(seconds) => Finished::Due(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)),
        None => Finished::Ended,
    })
}

/// Removes deliveries that ended more than 30 days ago, at most some thousands at a time. Returns how many.
///
/// # Errors
/// Only the database's.
pub async fn remove_expired(conn: &mut PgConnection) -> sqlx::Result<u64> {
    let removed = sqlx::query!(
        "delete from boxrun.webhook_deliveries where id in
            (select id from boxrun.webhook_deliveries where ended_at < now() - make_interval(days => $1)
              order by ended_at limit $2 for update skip locked)",
        RETENTION_DAYS,
        REMOVED_MAX
    )
    .execute(conn)
    .await?;
    Ok(removed.rows_affected())
}
