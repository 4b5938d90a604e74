//! Finishing a job: fenced by its lease, inside the transaction that changes its run.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor};

use super::claim::Lease;
use super::kind::JobKind;
use crate::ids::RunId;

/// What becomes of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Finish {
    /// It becomes this one.
    Next(NextJob),
    /// There is nothing left to do.
    Done,
}

/// The job that follows.
#[derive(Debug, Clone, PartialEq)]
pub struct NextJob {
    pub kind: JobKind,
    pub delay: Duration,
    /// Never due later than this, unless it has passed already.
    pub not_after: Option<DateTime<Utc>>,
    pub remember: Remember,
}

/// What the job remembers of this attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Remember {
    /// Failures in a row go on as they were.
    Unchanged,
    /// A usable answer of the box.
    Answer,
    Failure {
        code: &'static str,
        text: String,
    },
    /// The provider cut the answer: ask for at most this many bytes from now on.
    Cut {
        poll_max_bytes: i64,
    },
}

/// Finishes the job of `lease` with its next step. Returns whether the lease was still held; if not, nothing was changed,
/// and the caller rolls back whatever it did in the same transaction.
///
/// A job that was marked urgent while it was leased becomes a stop, due now, instead of a start or poll: the request and
/// this statement write the same row, so one of them sees the other.
///
/// # Errors
/// Only the database's.
pub async fn finish(conn: &mut PgConnection, lease: Lease, finish: &Finish) -> sqlx::Result<bool> {
    match finish {
        Finish::Next(next) => reschedule(conn, lease, next).await,
        Finish::Done => {
            let deleted = sqlx::query!(
                "delete from boxrun.jobs where run_id = $1 and lease = $2",
                lease.run_id.0,
                lease.token
            )
            .execute(conn)
            .await?;
            Ok(deleted.rows_affected() == 1)
        }
    }
}

async fn reschedule(conn: &mut PgConnection, lease: Lease, next: &NextJob) -> sqlx::Result<bool> {
    let (code, text) = match &next.remember {
        Remember::Failure { code, text } => (Some(*code), Some(text.as_str())),
        Remember::Unchanged | Remember::Answer | Remember::Cut { .. } => (None, None),
    };
    let poll_max_bytes = match next.remember {
        Remember::Cut { poll_max_bytes } => Some(poll_max_bytes),
        Remember::Unchanged | Remember::Answer | Remember::Failure { .. } => None,
    };
    let updated = sqlx::query_file!(
        "src/queue/sql/finish.sql",
        lease.run_id.0,
        lease.token,
        next.kind.as_str(),
        next.delay.as_secs_f64(),
        next.not_after,
        next.remember == Remember::Answer,
        code,
        text,
        poll_max_bytes,
    )
    .fetch_optional(conn)
    .await?;
    Ok(updated.is_some())
}

/// Locks the job of `lease` for the rest of the transaction. Returns whether the lease is still held.
///
/// # Errors
/// Only the database's.
pub async fn hold(conn: &mut PgConnection, lease: Lease) -> sqlx::Result<bool> {
    let held = sqlx::query!(
        r#"select true as "held!" from boxrun.jobs where run_id = $1 and lease = $2 for update"#,
        lease.run_id.0,
        lease.token
    )
    .fetch_optional(conn)
    .await?;
    Ok(held.is_some())
}

/// Gives a job back as it was, due now: for a shutdown, or when the database would not take the outcome.
///
/// # Errors
/// Only the database's.
pub async fn give_back(executor: impl PgExecutor<'_>, lease: Lease) -> sqlx::Result<()> {
    sqlx::query!(
        "with given as (update boxrun.jobs set lease = null, lease_until = null, leased_by = null, due_at = clock_timestamp(),
                urgent = false, kind = case when urgent and kind in ('start', 'poll') then 'stop' else kind end
          where run_id = $1 and lease = $2 returning kind)
         select pg_notify('boxrun_jobs', kind) from given",
        lease.run_id.0,
        lease.token
    )
    .fetch_optional(executor)
    .await?;
    Ok(())
}

/// Ends the job of a run that needs none any more, where nobody holds it; who does finds nothing left to do.
///
/// # Errors
/// Only the database's.
pub async fn end_unheld(conn: &mut PgConnection, run_id: RunId) -> sqlx::Result<()> {
    sqlx::query!(
        "delete from boxrun.jobs
          where run_id = $1 and (lease is null or lease_until < clock_timestamp())",
        run_id.0
    )
    .execute(conn)
    .await?;
    Ok(())
}
