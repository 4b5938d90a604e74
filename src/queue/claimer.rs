//! The claimer: takes due jobs whenever there are slots for them, renews what is in hand.
//!
//! It wakes by notification (a new run, a cancel), by the worker's own finishes, by a freed slot when it had none, and by a
//! timer set to the next due time. The timer is the guarantee: it never sleeps longer than [`FALLBACK`].

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::claim::{self, ClaimedJob, ClaimedRow, Lease};
use super::hand::{Hands, Interrupt};
use super::kind::JobKind;
use super::orders::KnownOrders;
use super::outage::Outage;
use super::silence::{LivePool, answered};
use super::wake::Wake;
use crate::ids::RunId;
use crate::telemetry;

/// The longest sleep of an idle claimer, at two statements each.
const FALLBACK: Duration = Duration::from_secs(2);
/// Jobs that become due within this of each other are claimed together.
const COALESCE: Duration = Duration::from_millis(5);
/// The most jobs of a kind that one statement claims.
const BATCH: usize = 500;
/// How long a shutdown waits for a claim in flight.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// While due jobs are locked by somebody else, looking again gets rarer up to this.
const LOCKED_DELAY_MAX: Duration = Duration::from_millis(500);

/// How a claimer works.
#[derive(Debug, Clone)]
pub struct ClaimerOptions {
    /// New at each start of the process, also on the same host.
    pub worker: String,
    pub lease: Duration,
    /// Jobs in hand per kind, as [`JobKind::ALL`]; 0: the kind is not served.
    pub concurrency: [usize; 4],
}

/// Claims for one process. Clones are handles on the same one.
#[derive(Debug, Clone)]
pub struct Claimer {
    pool: LivePool,
    options: Arc<ClaimerOptions>,
    hands: Hands,
    slots: [Arc<Semaphore>; 4],
    wake: Arc<Wake>,
    orders: Arc<KnownOrders>,
}

/// Where claimed jobs go, one channel a kind.
#[derive(Debug)]
pub struct Lanes([UnboundedSender<ClaimedJob>; 4]);

impl Lanes {
    /// The sending half, and the receivers in the order of [`JobKind::ALL`].
    #[must_use]
    pub fn new() -> (Self, [mpsc::UnboundedReceiver<ClaimedJob>; 4]) {
        let (senders, receivers): (Vec<_>, Vec<_>) = JobKind::ALL.iter().map(|_| mpsc::unbounded_channel()).unzip();
        let whole = "one channel for each of the four kinds";
        (
            Self(senders.try_into().expect(whole)),
            receivers.try_into().expect(whole),
        )
    }
}

/// What one look at the queue brought.
enum Turn {
    /// A whole batch, or a change of what may be claimed: there may be more.
    More,
    /// No slot is free, so nothing was looked for; a freed one wakes the claimer.
    Full,
    Claimed {
        next: Duration,
    },
    /// An operator wants this worker to end: it claims no more.
    Drained,
    /// Nothing; with `next` zero, what is due is locked by somebody else.
    Nothing {
        next: Duration,
    },
}

/// A slot of a kind; given back when dropped, which wakes a claimer that may have been out of them.
#[derive(Debug)]
pub(super) struct Slot {
    permit: Option<OwnedSemaphorePermit>,
    wake: Arc<Wake>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let were_all_taken = self
            .permit
            .as_ref()
            .is_some_and(|permit| permit.semaphore().available_permits() == 0);
        drop(self.permit.take());
        if were_all_taken {
            self.wake.due_in(Duration::ZERO);
        }
    }
}

impl Claimer {
    /// A claimer over `pool`, which nothing else should keep busy: renewals depend on it.
    #[must_use]
    pub fn new(pool: PgPool, options: ClaimerOptions) -> Self {
        let slots = options.concurrency.map(|slots| Arc::new(Semaphore::new(slots)));
        Self {
            pool: LivePool::new(pool),
            options: Arc::new(options),
            hands: Hands::default(),
            slots,
            wake: Arc::default(),
            orders: Arc::default(),
        }
    }

    /// Its pool, to look at.
    #[must_use]
    pub fn pool(&self) -> LivePool {
        self.pool.clone()
    }

    /// The identity under which it claims.
    #[must_use]
    pub fn worker(&self) -> &str {
        &self.options.worker
    }

    /// How long a claim lasts without renewal.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.options.lease
    }

    /// Something is due after `delay`: claim it then.
    pub fn due_in(&self, delay: Duration) {
        self.wake.due_in(delay);
    }

    /// Operators ordered something: read it before the next claim.
    pub(super) fn orders_changed(&self) {
        self.orders.forget();
        self.due_in(Duration::ZERO);
    }

    /// Tells the holder of a run's job, if it is in this process.
    pub fn interrupt(&self, run_id: RunId, why: Interrupt) {
        self.hands.interrupt(run_id, why);
    }

    /// Tells all holders in this process.
    pub fn interrupt_all(&self, why: Interrupt) {
        self.hands.interrupt_all(why);
    }

    /// Sends a notification over the claimer's own connection, not the listener's.
    pub(super) async fn notify(&self, channel: &str, payload: &str) -> sqlx::Result<()> {
        let notify = sqlx::query!("select pg_notify($1, $2)", channel, payload);
        self.pool.noting(answered(notify.execute(&self.pool.get())).await)?;
        Ok(())
    }

    /// Resolves once no job is in hand.
    pub async fn idle(&self) {
        for (slots, total) in self.slots.iter().zip(self.options.concurrency) {
            let total = u32::try_from(total).unwrap_or(u32::MAX);
            // The semaphores are never closed.
            let _ = slots.acquire_many(total).await;
        }
    }

    /// Claims until `stop`, or until an operator wants the worker drained, then lets the lanes close.
    pub async fn run(self, lanes: Lanes, stop: CancellationToken) {
        let mut outage = Outage::of("claiming jobs");
        let mut locked_delay = COALESCE;
        while !stop.is_cancelled() {
            self.wake.forget();
            let turn = tokio::select! {
                turn = answered(self.turn(&lanes)) => self.pool.noting(turn),
                // A claim that does not come back would hold up the shutdown; what it took comes back when its lease lapses.
                () = async { stop.cancelled().await; tokio::time::sleep(STOP_PATIENCE).await } => return,
            };
            if turn.is_ok() {
                outage.ended();
            }
            let sleep = match turn {
                Ok(Turn::More) => continue,
                Ok(Turn::Drained) => return,
                Ok(Turn::Full) => FALLBACK,
                Ok(Turn::Claimed { next }) => next.max(COALESCE),
                Ok(Turn::Nothing { next }) if next.is_zero() => {
                    locked_delay = (locked_delay * 2).min(LOCKED_DELAY_MAX);
                    locked_delay
                }
                Ok(Turn::Nothing { next }) => {
                    locked_delay = COALESCE;
                    next.max(COALESCE)
                }
                Err(error) => outage.failed(&error),
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.wake.wait(sleep.min(FALLBACK)) => {}
            }
        }
    }

    async fn turn(&self, lanes: &Lanes) -> sqlx::Result<Turn> {
        let limits = self.slots.each_ref().map(|slots| slots.available_permits().min(BATCH));
        if limits.iter().all(|limit| *limit == 0) {
            return Ok(Turn::Full);
        }
        let pool = self.pool.get();
        let orders = self.orders.current(&pool, &self.options.worker).await?;
        if orders.draining {
            return Ok(Turn::Drained);
        }
        let token = Uuid::new_v4();
        let asked = limits.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = claim::claim(&pool, token, self.options.lease, &self.options.worker, asked, orders).await?;
        let claimed = rows.len();
        let mut counts = [0usize; 4];
        for row in rows {
            counts[row.kind.index()] += 1;
            let lateness = Duration::try_from_secs_f64(row.lateness_seconds).unwrap_or_default();
            telemetry::job_claimed(row.kind.as_str(), lateness, row.lapsed);
            self.hand_out(lanes, token, row);
        }
        if JobKind::ALL.iter().any(|kind| counts[kind.index()] == BATCH) {
            return Ok(Turn::More);
        }
        let open: Vec<_> = JobKind::ALL
            .into_iter()
            .filter(|kind| self.slots[kind.index()].available_permits() > 0 && !orders.is_paused(*kind))
            .collect();
        let ahead = claim::look_ahead(&pool, &self.options.worker, &open).await?;
        if self.orders.learn(ahead.orders) {
            return Ok(Turn::More);
        }
        let next = ahead.next.unwrap_or(FALLBACK);
        Ok(if claimed == 0 {
            Turn::Nothing { next }
        } else {
            Turn::Claimed { next }
        })
    }

    fn hand_out(&self, lanes: &Lanes, token: Uuid, row: ClaimedRow) {
        let lease = Lease {
            run_id: row.run_id,
            token,
        };
        let Ok(permit) = Arc::clone(&self.slots[row.kind.index()]).try_acquire_owned() else {
            // Only this task takes permits, and it claimed no more than there were: the lease lapses if this is ever wrong.
            tracing::error!(kind = %row.kind, "claimed a job without a slot for it");
            return;
        };
        let job = ClaimedJob {
            lease,
            kind: row.kind,
            attempts: row.attempts,
            poll_max_bytes: row.poll_max_bytes,
            last_error_code: row.last_error_code,
            hand: self.hands.take(lease),
            _slot: Slot {
                permit: Some(permit),
                wake: Arc::clone(&self.wake),
            },
        };
        // A closed lane means that its apalis worker ended: the lease lapses, and another process takes the job.
        let _ = lanes.0[row.kind.index()].send(job);
    }

    /// Renews what is in hand by thirds of the lease, until dropped. Holders of leases that are gone are told.
    pub async fn renew(self) {
        let mut outage = Outage::of("renewing leases");
        let mut tick = tokio::time::interval(self.options.lease / 3);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let leases = self.hands.leases();
            if leases.is_empty() {
                continue;
            }
            let renewed = answered(claim::renew(&self.pool.get(), &leases, self.options.lease)).await;
            match self.pool.noting(renewed) {
                Ok(held) => {
                    outage.ended();
                    let lost: Vec<_> = leases.into_iter().filter(|lease| !held.contains(lease)).collect();
                    self.hands.lost(&lost);
                }
                Err(error) => {
                    outage.failed(&error);
                }
            }
        }
    }
}
