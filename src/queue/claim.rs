//! Claiming: one statement takes what is due and gives it a lease.

use std::time::Duration;

use sqlx::PgPool;
use uuid::Uuid;

use super::claimer::Slot;
use super::hand::{Hand, Interrupt};
use super::kind::JobKind;
use super::orders::Orders;
use crate::ids::RunId;

/// The right to act for a run. The token is fresh at each claim; a statement that names it changes nothing once somebody
/// else has claimed the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    pub run_id: RunId,
    pub token: Uuid,
}

/// A job in hand. It holds a slot of its kind and is known to the renewal for as long as it lives.
#[derive(Debug)]
pub struct ClaimedJob {
    pub lease: Lease,
    pub kind: JobKind,
    /// Failures since the last usable answer.
    pub attempts: i32,
    /// A smaller answer is to be asked for than usual.
    pub poll_max_bytes: Option<i64>,
    /// The stable code of the last failure.
    pub last_error_code: Option<String>,
    pub(super) hand: Hand,
    pub(super) _slot: Slot,
}

impl ClaimedJob {
    /// Resolves when the job should be let go of before it is done, and says why.
    pub async fn interrupted(&self) -> Interrupt {
        self.hand.interrupted().await
    }
}

/// A claimed row, before it is in anybody's hand.
#[derive(Debug)]
pub(super) struct ClaimedRow {
    pub run_id: RunId,
    pub kind: JobKind,
    pub attempts: i32,
    pub poll_max_bytes: Option<i64>,
    pub last_error_code: Option<String>,
    /// How long it could have been claimed before it was.
    pub lateness_seconds: f64,
    /// The lease of whoever had it before had lapsed.
    pub lapsed: bool,
}

/// Claims at most `limits[kind]` due jobs of each kind; of paused kinds only what goes on despite it.
pub(super) async fn claim(
    pool: &PgPool,
    token: Uuid,
    lease: Duration,
    worker: &str,
    limits: [i64; 4],
    orders: Orders,
) -> sqlx::Result<Vec<ClaimedRow>> {
    let rested = |kind: JobKind| {
        if orders.is_paused(kind) {
            limits[kind.index()]
        } else {
            0
        }
    };
    let usual = |kind: JobKind| limits[kind.index()] - rested(kind);
    sqlx::query_file_as!(
        ClaimedRow,
        "src/queue/sql/claim.sql",
        token,
        lease.as_secs_f64(),
        worker,
        usual(JobKind::Start),
        usual(JobKind::Poll),
        usual(JobKind::Stop),
        usual(JobKind::Cleanup),
        rested(JobKind::Poll),
        rested(JobKind::Cleanup),
    )
    .fetch_all(pool)
    .await
}

/// What a look ahead sees.
#[derive(Debug)]
pub(super) struct Ahead {
    /// How long until a job of one of the kinds asked for may be claimed; `None`: none is waiting.
    pub next: Option<Duration>,
    pub orders: Orders,
}

/// Looks when the next job of one of `kinds` may be claimed, and what operators ordered.
pub(super) async fn look_ahead(pool: &PgPool, worker: &str, kinds: &[JobKind]) -> sqlx::Result<Ahead> {
    let kinds: Vec<String> = kinds.iter().map(|kind| kind.as_str().to_owned()).collect();
    let seen = sqlx::query_file!("src/queue/sql/next_due.sql", &kinds, worker)
        .fetch_one(pool)
        .await?;
    let duration = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
    Ok(Ahead {
        next: seen.seconds.map(duration),
        orders: Orders::new(&seen.paused, seen.draining),
    })
}

/// Renews leases in hand and returns those that are still held.
pub(super) async fn renew(pool: &PgPool, leases: &[Lease], lease: Duration) -> sqlx::Result<Vec<Lease>> {
    let ids: Vec<Uuid> = leases.iter().map(|lease| lease.run_id.0).collect();
    let tokens: Vec<Uuid> = leases.iter().map(|lease| lease.token).collect();
    // Rows that somebody's open transaction holds are skipped and reported as held: the next renewal gets them, and the
    // fence at the finish decides in the end.
    let held = sqlx::query!(
        r#"with mine as materialized (
               select j.run_id, j.lease from unnest($1::uuid[], $2::uuid[]) as m(run_id, lease)
                 join boxrun.jobs j on j.run_id = m.run_id and j.lease = m.lease),
           free as materialized (
               select j.run_id from boxrun.jobs j join mine on mine.run_id = j.run_id
                where j.lease = mine.lease for update of j skip locked),
           renewed as (
               update boxrun.jobs j set lease_until = clock_timestamp() + make_interval(secs => $3)
                 from free where j.run_id = free.run_id)
           select run_id as "run_id!: RunId", lease as "token!" from mine"#,
        &ids,
        &tokens,
        lease.as_secs_f64(),
    )
    .fetch_all(pool)
    .await?;
    Ok(held
        .into_iter()
        .map(|row| Lease {
            run_id: row.run_id,
            token: row.token,
        })
        .collect())
}
