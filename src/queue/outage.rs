//! Saying once that something is out of reach, and once that it is back.

use std::time::Duration;

/// Follows one resource, for example the database as the claimer sees it.
#[derive(Debug)]
pub struct Outage {
    what: &'static str,
    failures: u32,
}

impl Outage {
    const FIRST_DELAY: Duration = Duration::from_millis(100);
    const MAX_DELAY: Duration = Duration::from_secs(2);

    #[must_use]
    pub fn of(what: &'static str) -> Self {
        Self { what, failures: 0 }
    }

    /// Notes a success; logs when it ends an outage.
    pub fn ended(&mut self) {
        if self.failures > 0 {
            tracing::info!(what = self.what, failures = self.failures, "back to normal");
            self.failures = 0;
        }
    }

    /// Notes a failure, logs the first, and returns how long to wait before the next try.
    pub fn failed(&mut self, error: &dyn std::error::Error) -> Duration {
        if self.failures == 0 {
            let source = error.source().map(ToString::to_string);
            tracing::warn!(what = self.what, %error, source, "failed; tried again until it works");
        }
        self.failures = self.failures.saturating_add(1);
        (Self::FIRST_DELAY * 2u32.saturating_pow(self.failures.min(10) - 1)).min(Self::MAX_DELAY)
    }
}
