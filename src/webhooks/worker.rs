//! Delivering, as a part of a worker process: claims while there are slots, attempts, finishes.

use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::body;
use super::deliver::{Courier, Letter, WebhookClientError};
use super::outbox::{self, ClaimedDelivery, Finished};
use super::outcome::{self, Next, Observed, Outcome};
use super::sign::SigningSecret;
use super::target::Targets;
use crate::queue::{LivePool, Outage, Wake, answered};
use crate::runs::masking::Masker;
use crate::runs::{self, SecretKeys};
use crate::telemetry;

/// The longest sleep while nothing is due.
const FALLBACK: Duration = Duration::from_secs(5);
/// Deliveries that become due within this of each other are claimed together.
const COALESCE: Duration = Duration::from_millis(5);
/// While what is due is locked, or its webhook has enough in hand, looking again gets rarer up to this.
const HELD_DELAY_MAX: Duration = Duration::from_millis(500);
/// How long a shutdown waits for a claim in flight.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// In hand of one webhook, in all processes together; also the size of a claim.
const PER_WEBHOOK_MAX: usize = 5;
/// How much longer than an attempt a lease lasts, for reading the run before and committing the outcome after it: so it is
/// not renewed.
const LEASE_MARGIN: Duration = Duration::from_secs(20);

/// How a worker delivers webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebhookOptions {
    /// Deliveries in hand; 0: this process delivers none.
    pub concurrency: usize,
    /// Private addresses are called, too: for development and tests.
    pub allow_private: bool,
    /// A whole attempt, from the look-up of the receiver's name to the last byte that is read of its answer.
    pub attempt_timeout: Duration,
}

/// Delivers for one process.
#[derive(Debug)]
pub struct Deliverer {
    shared: Arc<Shared>,
    slots: Arc<Semaphore>,
}

#[derive(Debug)]
struct Shared {
    worker: String,
    pool: LivePool,
    courier: Courier,
    masker: Masker,
    keys: Option<SecretKeys>,
    wake: Arc<Wake>,
    lease: Duration,
}

/// A slot; given back when dropped, which wakes who may have been out of them.
struct Slot {
    permit: Option<OwnedSemaphorePermit>,
    wake: Arc<Wake>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        drop(self.permit.take());
        self.wake.due_in(Duration::ZERO);
    }
}

impl Deliverer {
    /// One that claims as `worker`, opens signing secrets with `keys`, and masks what it sends as the HTTP API does.
    ///
    /// # Errors
    /// When no HTTP client can be set up.
    pub fn new(
        worker: String,
        pool: LivePool,
        masker: Masker,
        keys: Option<SecretKeys>,
        options: WebhookOptions,
    ) -> Result<Self, WebhookClientError> {
        let targets = if options.allow_private {
            Targets::Any
        } else {
            Targets::Public
        };
        Ok(Self {
            shared: Arc::new(Shared {
                worker,
                pool,
                courier: Courier::new(targets, options.attempt_timeout)?,
                masker,
                keys,
                wake: Arc::default(),
                lease: options.attempt_timeout + LEASE_MARGIN,
            }),
            slots: Arc::new(Semaphore::new(options.concurrency)),
        })
    }

    /// What a notification wakes.
    #[must_use]
    pub fn wake(&self) -> Arc<Wake> {
        Arc::clone(&self.shared.wake)
    }

    /// Delivers until `stop`, then waits for attempts in flight as long as `patience`. What is dropped is claimed again
    /// once its lease has lapsed.
    pub async fn run(self, stop: CancellationToken, patience: Duration) {
        let Self { shared, slots } = self;
        if slots.available_permits() == 0 {
            return;
        }
        let mut attempts = JoinSet::new();
        let mut outage = Outage::of("claiming webhook deliveries");
        let mut held_delay = COALESCE;
        while !stop.is_cancelled() {
            shared.wake.forget();
            let turn = tokio::select! {
                turn = answered(turn(&shared, &slots, &mut attempts)) => shared.pool.noting(turn),
                // A claim that does not come back would hold up the shutdown; what it took comes back when its lease lapses.
                () = async { stop.cancelled().await; tokio::time::sleep(STOP_PATIENCE).await } => break,
            };
            let sleep = match turn {
                Ok(turn) => {
                    outage.ended();
                    match turn {
                        Turn::Claimed => continue,
                        Turn::Full => FALLBACK,
                        Turn::Nothing { next } if next.is_zero() => {
                            held_delay = (held_delay * 2).min(HELD_DELAY_MAX);
                            held_delay
                        }
                        Turn::Nothing { next } => {
                            held_delay = COALESCE;
                            next.max(COALESCE)
                        }
                    }
                }
                Err(error) => outage.failed(&error),
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = shared.wake.wait(sleep.min(FALLBACK)) => {}
            }
        }
        let ended = async { while attempts.join_next().await.is_some() {} };
        if tokio::time::timeout(patience, ended).await.is_err() {
            tracing::warn!("some webhook deliveries did not finish in time; their leases lapse");
        }
    }
}

/// What one look at the outbox brought.
enum Turn {
    /// Something; there may be more.
    Claimed,
    /// No slot is free, so nothing was looked for; a freed one wakes.
    Full,
    /// Nothing; with `next` zero, what is due is held by somebody.
    Nothing { next: Duration },
}

async fn turn(shared: &Arc<Shared>, slots: &Arc<Semaphore>, attempts: &mut JoinSet<()>) -> sqlx::Result<Turn> {
    while let Some(ended) = attempts.try_join_next() {
        if let Err(error) = ended {
            tracing::error!(%error, "a delivery ended without an outcome; it comes back when its lease lapses");
        }
    }
    let free = slots.available_permits().min(PER_WEBHOOK_MAX);
    if free == 0 {
        return Ok(Turn::Full);
    }
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let pool = shared.pool.get();
    let claimed = outbox::claim(&pool, shared.lease, &shared.worker, count(free), count(PER_WEBHOOK_MAX)).await?;
    if claimed.is_empty() {
        let next = outbox::next_due(&pool).await?.unwrap_or(FALLBACK);
        return Ok(Turn::Nothing { next });
    }
    for delivery in claimed {
        let slot = Slot {
            // Only this task takes permits, and it claimed no more than there were.
            permit: Arc::clone(slots).try_acquire_owned().ok(),
            wake: Arc::clone(&shared.wake),
        };
        let shared = Arc::clone(shared);
        attempts.spawn(async move {
            attempt(&shared, &delivery).await;
            drop(slot);
        });
    }
    Ok(Turn::Claimed)
}

/// One attempt, from the reading of the run to the commit of the outcome. No connection is held in between.
async fn attempt(shared: &Shared, delivery: &ClaimedDelivery) {
    let observed = match observe(shared, delivery).await {
        Ok(Some(observed)) => observed,
        // The run was erased, and this delivery with it.
        Ok(None) => return,
        Err(error) => {
            tracing::warn!(delivery_id = %delivery.lease.delivery_id, %error, "a run could not be read for its webhook; the lease lapses");
            return;
        }
    };
    let outcome = outcome::after(delivery.attempts, observed, random());
    let pool = shared.pool.get();
    let finish = (|| answered(outbox::finish(&pool, delivery, &outcome))).retry(
        ExponentialBuilder::default()
            .with_jitter()
            .with_min_delay(Duration::from_millis(100)),
    );
    match finish.await {
        Ok(finished) => {
            if let Finished::Due(delay) = finished {
                shared.wake.due_in(delay);
            }
            count(&outcome, finished);
            log(delivery, &outcome, finished);
        }
        Err(error) => {
            tracing::warn!(delivery_id = %delivery.lease.delivery_id, %error, "an outcome could not be written; the lease lapses");
        }
    }
}

/// `None`: there is no such run any more.
async fn observe(shared: &Shared, delivery: &ClaimedDelivery) -> sqlx::Result<Option<Observed>> {
    if delivery.disabled {
        return Ok(Some(Observed::Disabled));
    }
    let secret = match &shared.keys {
        Some(keys) => {
            SigningSecret::open(keys, delivery.webhook_id, &delivery.secret).map_err(|error| error.to_string())
        }
        None => Err("this worker has no BOXRUN_SECRET_KEYS to open the signing secret with".to_owned()),
    };
    let secret = match secret {
        Ok(secret) => secret,
        Err(why) => return Ok(Some(Observed::SecretUnreadable(why))),
    };
    let Some(url) = &delivery.url else {
        return Ok(Some(Observed::Unreachable("what is stored is no URL".to_owned())));
    };
    let run = answered(async {
        let mut conn = shared.pool.get().acquire().await?;
        runs::read::find(&mut conn, delivery.run_id).await
    });
    let Some(run) = run.await? else {
        return Ok(None);
    };
    let body = body::run_finished(&run, &shared.masker);
    let id = delivery.lease.delivery_id.to_string();
    let timestamp = delivery.claimed_at.timestamp();
    let letter = Letter {
        id: &id,
        timestamp,
        signature: &secret.sign(&id, timestamp, &body),
        body,
    };
    Ok(Some(shared.courier.post(url.parsed(), letter).await))
}

fn count(outcome: &Outcome, finished: Finished) {
    if finished != Finished::Fenced {
        let code = outcome.failure.as_ref().map_or("delivered", |failure| failure.code);
        telemetry::webhook_attempted(code, finished == Finished::Ended && outcome.next == Next::Failed);
    }
}

fn log(delivery: &ClaimedDelivery, outcome: &Outcome, finished: Finished) {
    let (delivery_id, webhook_id) = (delivery.lease.delivery_id, delivery.webhook_id);
    let (status, run_id) = (outcome.status, delivery.run_id);
    let code = outcome.failure.as_ref().map(|failure| failure.code);
    match (finished, outcome.next) {
        (Finished::Fenced, _) => {
            tracing::debug!(%delivery_id, "another worker has the delivery, or it was erased; this outcome is dropped");
        }
        (Finished::Ended, Next::Failed) => {
            tracing::warn!(%delivery_id, %webhook_id, %run_id, status, code, "a webhook delivery was given up");
        }
        (Finished::Ended | Finished::Due(_), _) => {
            tracing::debug!(%delivery_id, %webhook_id, %run_id, status, code, "a webhook delivery was attempted");
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where deliveries draw their jitter"
)]
fn random() -> f64 {
    rand::random()
}
