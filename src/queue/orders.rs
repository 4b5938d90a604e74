//! What operators ordered, as a claimer sees it: kinds that rest, and whether this worker shall end.
//!
//! The claimer reads it along with each look for the next due time, so it costs no statement of its own; only after a
//! notification, or when it has not looked for a while, it reads before it claims.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::Instant;

use super::kind::JobKind;

/// What was read longer ago than this is read anew before a claim: a claimer that finds one whole batch after the other
/// looks for no due time.
const AGE_MAX: Duration = Duration::from_secs(4);

/// The orders of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Orders {
    paused: [bool; 4],
    /// This worker claims no more.
    pub draining: bool,
}

impl Orders {
    pub fn new(paused: &[String], draining: bool) -> Self {
        Self {
            paused: JobKind::ALL.map(|kind| paused.iter().any(|name| name == kind.as_str())),
            draining,
        }
    }

    pub fn is_paused(self, kind: JobKind) -> bool {
        self.paused[kind.index()]
    }
}

/// The orders that were read last.
#[derive(Debug, Default)]
pub(super) struct KnownOrders(Mutex<Option<(Orders, Instant)>>);

impl KnownOrders {
    /// Something changed: they are read before the next claim.
    pub fn forget(&self) {
        *self.lock() = None;
    }

    /// Remembers what was read; returns whether it differs from what was known.
    pub fn learn(&self, orders: Orders) -> bool {
        let before = self.lock().replace((orders, Instant::now()));
        before.is_none_or(|(before, _)| before != orders)
    }

    /// Those known, or else those of the database.
    pub async fn current(&self, pool: &PgPool, worker: &str) -> sqlx::Result<Orders> {
        let known = *self.lock();
        if let Some((orders, at)) = known
            && at.elapsed() < AGE_MAX
        {
            return Ok(orders);
        }
        let read = sqlx::query!(
            r#"select array(select kind from boxrun.kind_pauses) as "paused!",
                      exists (select from boxrun.workers
                               where id = $1 and drain_requested_at is not null) as "draining!""#,
            worker
        )
        .fetch_one(pool)
        .await?;
        let orders = Orders::new(&read.paused, read.draining);
        self.learn(orders);
        Ok(orders)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Orders, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
