//! How long to wait after failures in a row: doubling, with jitter, so that workers don't come back in step.

use std::time::Duration;

const JITTER: f64 = 0.2;

/// How a kind of work is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// However many there were.
    pub longest: Duration,
}

impl Backoff {
    /// The delay after `failures` in a row (at least 1); `random` is from 0 to 1. Who asked for patience (`retry_after`)
    /// gets it, and a little more.
    #[must_use]
    pub fn delay(self, failures: u32, retry_after: Option<Duration>, random: f64) -> Duration {
        let doubled = self
            .first
            .saturating_mul(2u32.saturating_pow(failures.saturating_sub(1).min(20)));
        // The limit comes before the jitter, too: after a long outage those who wait the longest would all come in step.
        let jittered = doubled
            .min(self.longest)
            .mul_f64(1.0 - JITTER + 2.0 * JITTER * random)
            .min(self.longest);
        let asked = retry_after.unwrap_or_default().mul_f64(1.0 + JITTER * random);
        jittered.max(asked)
    }
}
