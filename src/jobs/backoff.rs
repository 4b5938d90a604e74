//! How long each kind of job waits after failures in a row.

use std::time::Duration;

use crate::queue::{Backoff, JobKind};

const FIRST: Duration = Duration::from_millis(500);

/// The delay after `failures` in a row (at least 1); `random` is from 0 to 1. A provider that asked for patience gets it,
/// and a little more.
pub(super) fn delay(kind: JobKind, failures: u32, retry_after: Option<Duration>, random: f64) -> Duration {
    let longest = match kind {
        JobKind::Start => Duration::from_secs(15),
        JobKind::Poll | JobKind::Stop => Duration::from_secs(5),
        JobKind::Cleanup => Duration::from_mins(10),
    };
    let backoff = Backoff { first: FIRST, longest };
    backoff.delay(failures, retry_after, random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_from_half_a_second_to_the_limit_of_the_kind() {
        let middle = |kind, failures| delay(kind, failures, None, 0.5);
        assert_eq!(middle(JobKind::Poll, 1), Duration::from_millis(500));
        assert_eq!(middle(JobKind::Poll, 2), Duration::from_secs(1));
        assert_eq!(middle(JobKind::Poll, 4), Duration::from_secs(4));
        assert_eq!(middle(JobKind::Stop, 5), Duration::from_secs(5));
        assert_eq!(middle(JobKind::Start, 30), Duration::from_secs(15));
        assert_eq!(middle(JobKind::Cleanup, u32::MAX), Duration::from_mins(10));
    }

    #[test]
    fn jitter_stays_within_a_fifth() {
        assert_eq!(delay(JobKind::Poll, 1, None, 0.0), Duration::from_millis(400));
        assert_eq!(delay(JobKind::Poll, 1, None, 1.0), Duration::from_millis(600));
    }

    #[test]
    fn waits_at_the_limit_are_spread_below_it() {
        assert_eq!(delay(JobKind::Poll, 20, None, 0.0), Duration::from_secs(4));
        assert_eq!(delay(JobKind::Poll, 20, None, 1.0), Duration::from_secs(5));
    }

    #[test]
    fn the_provider_s_retry_after_is_kept_and_spread() {
        let asked = Some(Duration::from_secs(30));
        assert_eq!(delay(JobKind::Poll, 1, asked, 0.0), Duration::from_secs(30));
        assert_eq!(delay(JobKind::Poll, 1, asked, 1.0), Duration::from_secs(36));
        assert_eq!(delay(JobKind::Cleanup, 20, asked, 0.5), Duration::from_mins(10));
    }
}
