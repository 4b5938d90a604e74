//! What an operator may order: rest and go on of a kind, the end of a worker, a job due at once.

use sqlx::PgExecutor;

use super::kind::JobKind;
use crate::ids::RunId;

/// Pauses a kind, or says anew who paused it and why; since when stays.
///
/// # Errors
/// The database's; of `stop`, the violation of `kind_pauses_kind_may_rest`.
pub async fn pause(executor: impl PgExecutor<'_>, kind: JobKind, who: &str, reason: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into boxrun.kind_pauses (kind, paused_by, reason) values ($1, $2, $3)
         on conflict (kind) do update set paused_by = $2, reason = $3",
        kind.as_str(),
        who,
        reason
    )
    .execute(executor)
    .await?;
    Ok(())
}

/// Lets a kind go on; returns whether it was paused.
pub async fn resume(executor: impl PgExecutor<'_>, kind: JobKind) -> sqlx::Result<bool> {
    let resumed = sqlx::query!("delete from boxrun.kind_pauses where kind = $1", kind.as_str())
        .execute(executor)
        .await?;
    Ok(resumed.rows_affected() > 0)
}

/// Asks a worker to end once it has finished what it has; returns whether there is such a worker.
pub async fn drain(executor: impl PgExecutor<'_>, worker: &str) -> sqlx::Result<bool> {
    let asked = sqlx::query!(
        "update boxrun.workers set drain_requested_at = coalesce(drain_requested_at, clock_timestamp()) where id = $1",
        worker
    )
    .execute(executor)
    .await?;
    Ok(asked.rows_affected() > 0)
}

/// Whether a worker was asked to end.
pub async fn is_draining(executor: impl PgExecutor<'_>, worker: &str) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select exists (select from boxrun.workers where id = $1 and drain_requested_at is not null) as "draining!""#,
        worker
    )
    .fetch_one(executor)
    .await
}

/// What a nudge met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nudged {
    /// The job is due now.
    Due(JobKind),
    /// A worker has it in hand, which alone may say when it is due next.
    InHand {
        kind: JobKind,
        worker: String,
    },
    NoJob,
}

/// Makes the job of a run due now.
pub async fn nudge(executor: impl PgExecutor<'_>, run_id: RunId) -> sqlx::Result<Nudged> {
    let nudged = sqlx::query!(
        r#"with due as (
               update boxrun.jobs set due_at = least(due_at, clock_timestamp()),
                      lease = null, lease_until = null, leased_by = null
                where run_id = $1 and (lease_until is null or lease_until <= clock_timestamp())
               returning kind, pg_notify('boxrun_jobs', kind)::text as told)
           select kind as "kind!: JobKind", null as "worker?" from due
           union all
           select kind, leased_by from boxrun.jobs where run_id = $1 and not exists (select from due)"#,
        run_id.0
    )
    .fetch_optional(executor)
    .await?;
    Ok(match nudged {
        None => Nudged::NoJob,
        Some(row) => match row.worker {
            None => Nudged::Due(row.kind),
            Some(worker) => Nudged::InHand { kind: row.kind, worker },
        },
    })
}
