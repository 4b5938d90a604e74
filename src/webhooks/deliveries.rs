//! Deliveries as the principal sees them, and asking for one again.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::ids::RunId;
use crate::runs::view::{time, time_if_any};

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum DeliveryState {
    /// Not delivered yet.
    Pending,
    /// The receiver answered 2xx.
    Delivered,
    /// Given up.
    Failed,
}

/// One event for one webhook.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct DeliveryView {
    /// The header `webhook-id`: the same at each attempt.
    pub id: Uuid,
    #[schema(value_type = Uuid)]
    pub run_id: RunId,
    pub state: DeliveryState,
    /// Attempts that came to an end, since it was made or asked for again.
    pub attempts: i32,
    /// The HTTP status of the last attempt; null: none came.
    pub last_status: Option<i16>,
    /// Why the last attempt failed: a stable code.
    #[schema(example = "status_refused")]
    pub last_error_code: Option<String>,
    /// The same for people.
    pub last_error: Option<String>,
    #[serde(serialize_with = "time_if_any")]
    pub last_attempt_at: Option<DateTime<Utc>>,
    /// While it is pending.
    #[serde(serialize_with = "time_if_any")]
    pub next_attempt_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "time")]
    pub created_at: DateTime<Utc>,
    /// When it was delivered or given up; it is removed 30 days later.
    #[serde(serialize_with = "time_if_any")]
    pub ended_at: Option<DateTime<Utc>>,
}

/// Lists the deliveries of a webhook, newest first: at most `limit`, those before `after`.
///
/// # Errors
/// Only the database's.
pub async fn list(
    conn: &mut PgConnection,
    webhook_id: Uuid,
    after: Option<Uuid>,
    limit: u16,
) -> sqlx::Result<Vec<DeliveryView>> {
    sqlx::query_as!(
        DeliveryView,
        r#"select id, run_id as "run_id: RunId", state as "state: DeliveryState", attempts, last_status, last_error_code,
                  last_error, attempted_at as last_attempt_at, case when state = 'pending' then due_at end as next_attempt_at,
                  inserted_at as created_at, ended_at
             from boxrun.webhook_deliveries
            where webhook_id = $1 and ($2::uuid is null or id < $2)
            order by id desc limit $3"#,
        webhook_id,
        after,
        i64::from(limit)
    )
    .fetch_all(conn)
    .await
}

/// Makes a delivery of the webhook due now, whatever its state, with all its attempts before it; one that is in hand, as
/// soon as that attempt has ended. `None`: there is no such delivery.
///
/// # Errors
/// Only the database's.
pub async fn redeliver(conn: &mut PgConnection, webhook_id: Uuid, id: Uuid) -> sqlx::Result<Option<DeliveryView>> {
    sqlx::query_as!(
        DeliveryView,
        r#"with again as (
               update boxrun.webhook_deliveries d
                  set urgent = held.in_hand,
                      state = case when held.in_hand then d.state else 'pending' end,
                      ended_at = case when held.in_hand then d.ended_at end,
                      due_at = case when held.in_hand then d.due_at else clock_timestamp() end,
                      attempts = case when held.in_hand then d.attempts else 0 end,
                      lease = case when held.in_hand then d.lease end,
                      lease_until = case when held.in_hand then d.lease_until end,
                      leased_by = case when held.in_hand then d.leased_by end
                 from (select id, coalesce(lease_until > clock_timestamp(), false) as in_hand
                         from boxrun.webhook_deliveries where id = $2 and webhook_id = $1 for update) held
                where d.id = held.id
               returning d.*),
           woken as (select pg_notify('boxrun_jobs', 'webhook') from again)
           select a.id as "id!", a.run_id as "run_id!: RunId", a.state as "state!: DeliveryState", a.attempts as "attempts!",
                  a.last_status, a.last_error_code, a.last_error, a.attempted_at as last_attempt_at,
                  case when a.state = 'pending' then a.due_at end as next_attempt_at, a.inserted_at as "created_at!", a.ended_at
             from again a, woken"#,
        webhook_id,
        id
    )
    .fetch_optional(conn)
    .await
}
