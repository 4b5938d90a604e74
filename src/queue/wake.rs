//! Waking who sleeps until something is due.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The earliest instant at which something is known to become due.
#[derive(Debug, Default)]
pub struct Wake {
    at: Mutex<Option<Instant>>,
    changed: Notify,
}

impl Wake {
    /// Something is due after `delay`.
    pub fn due_in(&self, delay: Duration) {
        let instant = Instant::now() + delay;
        let mut at = self.lock();
        if at.is_none_or(|earlier| instant < earlier) {
            *at = Some(instant);
            self.changed.notify_one();
        }
    }

    /// Before a look at the queue, which finds whatever was due.
    pub fn forget(&self) {
        *self.lock() = None;
    }

    /// Waits for so long, or until an earlier instant that somebody names meanwhile.
    pub async fn wait(&self, longest: Duration) {
        let latest = Instant::now() + longest;
        loop {
            let until = self.lock().map_or(latest, |at| at.min(latest));
            tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                () = self.changed.notified() => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
