//! reconcile: what no job can do for itself. By one process at a time, at start-up and regularly.
//!
//! A live run without a job gets one; a live run past its deadline becomes a stop, also while polls are paused or not
//! served, and one whose exit is known by then is read to its end despite a pause; nothing is due further ahead than its kind allows, so that a clock that jumped strands nobody.
//! Deliveries of webhooks that ended long ago are removed.

use std::time::Duration;

use sqlx::PgPool;

use crate::webhooks;

/// The key of the advisory lock: "boxrun" in ASCII. Held for one transaction, so that it also works behind a pooler.
const LOCK: i64 = 0x62_6f_78_72_75_6e;
/// No start, poll or stop waits longer than this (Retry-After and its jitter), but for a longer poll interval.
const LONGEST_WAIT: Duration = Duration::from_secs(90);

/// What a pass mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mended {
    pub jobs_restored: u64,
    pub turned_into_stops: u64,
    pub pulled_forward: u64,
    pub read_on_despite_pause: u64,
}

/// Looks at all live runs once. Returns `None` where another process is at it.
///
/// # Errors
/// Only the database's.
pub async fn reconcile(pool: &PgPool, poll_interval: Duration, retention: Duration) -> sqlx::Result<Option<Mended>> {
    let mut tx = pool.begin().await?;
    let alone = sqlx::query_scalar!(r#"select pg_try_advisory_xact_lock($1) as "alone!""#, LOCK);
    if !alone.fetch_one(&mut *tx).await? {
        return Ok(None);
    }
    let restored = sqlx::query!(
        "insert into boxrun.jobs (run_id, kind)
         select r.id, case when r.state = 'admitted' then 'start' else 'poll' end
           from boxrun.runs r
          where r.state in ('admitted', 'dispatched', 'running')
            and not exists (select from boxrun.jobs j where j.run_id = r.id)
         on conflict do nothing"
    )
    .execute(&mut *tx)
    .await?;
    // Rows that somebody holds are left for the next pass; the owner of a leased one looks at the deadline itself.
    let stopped = sqlx::query!(
        "with late as materialized (
             select j.run_id from boxrun.runs r join boxrun.jobs j on j.run_id = r.id
              where r.state in ('admitted', 'dispatched', 'running') and r.deadline_at <= now()
                and r.exit_status is null and j.kind in ('start', 'poll')
                and (j.lease is null or j.lease_until <= now())
                for update of j skip locked)
         update boxrun.jobs j set kind = 'stop', due_at = clock_timestamp(), attempts = 0,
                lease = null, lease_until = null, leased_by = null
           from late where j.run_id = late.run_id"
    )
    .execute(&mut *tx)
    .await?;
    // Its exit was learnt, so there is nothing to stop; but a deadline or a cancel waits for no pause of polls.
    let read_on = sqlx::query!(
        "with known as materialized (
             select j.run_id from boxrun.runs r join boxrun.jobs j on j.run_id = r.id
              where exists (select from boxrun.kind_pauses p where p.kind = 'poll')
                and r.state in ('admitted', 'dispatched', 'running') and r.exit_status is not null
                and (r.deadline_at <= now() or r.cancellation_requested_at is not null)
                and j.kind = 'poll' and not j.despite_pause and (j.lease is null or j.lease_until <= now())
                for update of j skip locked)
         update boxrun.jobs j set despite_pause = true from known where j.run_id = known.run_id"
    )
    .execute(&mut *tx)
    .await?;
    let pulled = sqlx::query!(
        "with ahead as materialized (
             select run_id from boxrun.jobs j
              where (kind in ('start', 'poll', 'stop') and due_at > now() + make_interval(secs => $1))
                 or (kind = 'cleanup' and due_at > now() + make_interval(secs => $2))
                 or lease_until > now() + interval '1 hour'
                for update skip locked)
         update boxrun.jobs j set due_at = clock_timestamp(), lease = null, lease_until = null, leased_by = null
           from ahead where j.run_id = ahead.run_id",
        LONGEST_WAIT.max(poll_interval * 2).as_secs_f64(),
        retention.as_secs_f64() + 3600.0,
    )
    .execute(&mut *tx)
    .await?;
    // Workers that were killed could not take themselves off the list.
    sqlx::query!("delete from boxrun.workers where heartbeat_at < now() - interval '1 day'")
        .execute(&mut *tx)
        .await?;
    webhooks::remove_expired(&mut tx).await?;
    let mended = Mended {
        jobs_restored: restored.rows_affected(),
        turned_into_stops: stopped.rows_affected(),
        pulled_forward: pulled.rows_affected(),
        read_on_despite_pause: read_on.rows_affected(),
    };
    if mended.turned_into_stops + mended.pulled_forward + mended.read_on_despite_pause > 0 {
        sqlx::query!("select pg_notify('boxrun_jobs', 'stop')")
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    Ok(Some(mended))
}
