//! The queue as an operator sees it: kinds, jobs, workers. Nothing is decided from it.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgExecutor;

use super::kind::JobKind;
use crate::ids::RunId;

/// A worker that gave no sign of life for longer is said to be gone; it does every five seconds.
pub const WORKER_SILENCE_SECONDS: f64 = 20.0;

/// The jobs of one kind, and whether it is paused.
#[derive(Debug, Serialize)]
pub struct KindOverview {
    pub kind: JobKind,
    /// Claimable now.
    pub due: i64,
    /// Due later.
    pub scheduled: i64,
    /// In a worker's hand.
    pub leased: i64,
    /// With failures since the last usable answer, wherever they stand.
    pub failing: i64,
    pub oldest_due_seconds: Option<f64>,
    pub paused_at: Option<DateTime<Utc>>,
    pub paused_by: Option<String>,
    pub pause_reason: Option<String>,
}

/// One row a kind, in the order of a run's life, also of kinds without a job.
pub async fn kinds(executor: impl PgExecutor<'_>) -> sqlx::Result<Vec<KindOverview>> {
    sqlx::query_as!(
        KindOverview,
        r#"select k.kind as "kind!: JobKind",
                  count(*) filter (where j.claimable_at <= now()) as "due!",
                  count(*) filter (where j.due_at > now() and (j.lease is null or j.lease_until <= now())) as "scheduled!",
                  count(*) filter (where j.lease_until > now()) as "leased!",
                  count(*) filter (where j.attempts > 0) as "failing!",
                  extract(epoch from now() - min(j.claimable_at) filter (where j.claimable_at <= now()))::float8
                      as oldest_due_seconds,
                  p.paused_at as "paused_at?", p.paused_by as "paused_by?", p.reason as "pause_reason?"
             from unnest(array['start', 'poll', 'stop', 'cleanup']) with ordinality as k(kind, place)
             left join boxrun.jobs j on j.kind = k.kind
             left join boxrun.kind_pauses p on p.kind = k.kind
            group by k.kind, k.place, p.kind order by k.place"#
    )
    .fetch_all(executor)
    .await
}

/// A job as it stands.
#[derive(Debug, Serialize)]
pub struct JobOverview {
    pub run_id: RunId,
    pub kind: JobKind,
    pub state: String,
    pub due_at: DateTime<Utc>,
    /// Negative: overdue.
    pub due_in_seconds: f64,
    pub leased_by: Option<String>,
    pub lease_until: Option<DateTime<Utc>>,
    pub attempts: i32,
    pub last_error_code: Option<String>,
    pub last_error: Option<String>,
}

/// Which jobs are looked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct JobFilter {
    pub kind: Option<JobKind>,
    pub failing: bool,
    pub limit: u16,
}

/// Jobs, those due first on top.
pub async fn jobs(executor: impl PgExecutor<'_>, filter: JobFilter) -> sqlx::Result<Vec<JobOverview>> {
    sqlx::query_as!(
        JobOverview,
        r#"select j.run_id as "run_id: RunId", j.kind as "kind: JobKind", r.state, j.due_at,
                  extract(epoch from j.due_at - clock_timestamp())::float8 as "due_in_seconds!",
                  j.leased_by, j.lease_until, j.attempts, j.last_error_code, j.last_error
             from boxrun.jobs j join boxrun.runs r on r.id = j.run_id
            where ($1::text is null or j.kind = $1) and (not $2::boolean or j.attempts > 0)
            order by j.due_at, j.run_id limit $3"#,
        filter.kind.map(JobKind::as_str),
        filter.failing,
        i64::from(filter.limit)
    )
    .fetch_all(executor)
    .await
}

/// A worker process that has not taken itself off the list.
#[derive(Debug, Serialize)]
pub struct WorkerOverview {
    pub id: String,
    pub host: String,
    pub version: String,
    pub started_at: DateTime<Utc>,
    pub heartbeat_age_seconds: f64,
    pub jobs_in_hand: i64,
    pub drain_requested_at: Option<DateTime<Utc>>,
    pub stopping: bool,
}

/// All workers, the newest sign of life first.
pub async fn workers(executor: impl PgExecutor<'_>) -> sqlx::Result<Vec<WorkerOverview>> {
    sqlx::query_as!(
        WorkerOverview,
        r#"select w.id, w.host, w.version, w.started_at,
                  extract(epoch from clock_timestamp() - w.heartbeat_at)::float8 as "heartbeat_age_seconds!",
                  (select count(*) from boxrun.jobs j where j.leased_by = w.id and j.lease_until > now()) as "jobs_in_hand!",
                  w.drain_requested_at, w.stopping
             from boxrun.workers w order by w.heartbeat_at desc, w.id"#
    )
    .fetch_all(executor)
    .await
}
