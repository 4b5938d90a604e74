//! What an attempt means for its delivery: delivered, tried again later, or given up. Pure.

use std::time::Duration;

use crate::queue::Backoff;

/// 10 s, 20 s, 40 s … 2 h 50 min, then every 4 hours: with [`ATTEMPTS_MAX`] about a day in all.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(10),
    longest: Duration::from_secs(4 * 3600),
};
/// After so many it is given up.
pub(super) const ATTEMPTS_MAX: i32 = 17;
/// A receiver holds a delivery back for no longer, whatever it asks for.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// What an attempt saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Observed {
    /// The receiver answered.
    Answer {
        status: u16,
        retry_after: Option<Duration>,
    },
    /// The host has none but private addresses; nothing was sent.
    TargetRefused,
    /// No connection was made; why, without the URL.
    Unreachable(String),
    /// The connection broke before an answer; how, without the URL.
    Broken(String),
    TimedOut,
    /// The webhook was disabled meanwhile; nothing was sent.
    Disabled,
    /// The signing secret can't be opened; nothing was sent.
    SecretUnreadable(String),
}

/// What becomes of the delivery.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    pub next: Next,
    pub status: Option<u16>,
    pub failure: Option<Failure>,
    /// The receiver wants nothing any more.
    pub disables_webhook: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Next {
    Delivered,
    Retry(Duration),
    Failed,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// A stable code.
    pub code: &'static str,
    /// For people.
    pub text: String,
}

/// Decides after an attempt; `attempts` came before it, `random` is from 0 to 1.
pub(super) fn after(attempts: i32, observed: Observed, random: f64) -> Outcome {
    let (status, retry_after) = match observed {
        Observed::Answer { status, retry_after } => (Some(status), retry_after),
        Observed::TargetRefused
        | Observed::Unreachable(_)
        | Observed::Broken(_)
        | Observed::TimedOut
        | Observed::Disabled
        | Observed::SecretUnreadable(_) => (None, None),
    };
    let (gone, disabled) = (status == Some(410), observed == Observed::Disabled);
    let Some(failure) = failure_of(observed) else {
        return Outcome {
            next: Next::Delivered,
            status,
            failure: None,
            disables_webhook: false,
        };
    };
    let made = attempts.saturating_add(1);
    let next = if gone || disabled || made >= ATTEMPTS_MAX {
        Next::Failed
    } else {
        let asked = retry_after.map(|wait| wait.min(RETRY_AFTER_MAX));
        Next::Retry(BACKOFF.delay(u32::try_from(made).unwrap_or(1), asked, random))
    };
    Outcome {
        next,
        status,
        failure: Some(failure),
        disables_webhook: gone,
    }
}

/// `None`: it was delivered.
fn failure_of(observed: Observed) -> Option<Failure> {
    let (code, text) = match observed {
        Observed::Answer { status: 200..=299, .. } => return None,
        Observed::Answer { status: 410, .. } => (
            "gone",
            "the receiver answered 410 Gone; the webhook is disabled until it is put again".to_owned(),
        ),
        Observed::Answer {
            status: status @ 300..=399,
            ..
        } => (
            "redirected",
            format!("the receiver answered {status}; redirects are not followed, so put the webhook with the new URL"),
        ),
        Observed::Answer { status, .. } => (
            "status_refused",
            format!("the receiver answered {status}, which is not 2xx"),
        ),
        Observed::TargetRefused => (
            "target_refused",
            "the URL's host has no public address; private ones are not called".to_owned(),
        ),
        Observed::Unreachable(why) => ("unreachable", format!("no connection to the receiver was made: {why}")),
        Observed::Broken(how) => ("connection_broken", format!("the receiver gave no answer: {how}")),
        Observed::TimedOut => ("timed_out", "the receiver gave no answer in time".to_owned()),
        Observed::Disabled => (
            "webhook_disabled",
            "the receiver answered 410 Gone before; put the webhook again, then ask for a redelivery".to_owned(),
        ),
        Observed::SecretUnreadable(why) => ("secret_unreadable", why),
    };
    Some(Failure { code, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16) -> Observed {
        Observed::Answer {
            status,
            retry_after: None,
        }
    }

    fn code(observed: Observed) -> Option<&'static str> {
        after(0, observed, 0.5).failure.map(|failure| failure.code)
    }

    #[test]
    fn two_hundreds_deliver_and_nothing_else_does() {
        for status in [200, 201, 202, 204, 299] {
            let outcome = after(3, answer(status), 0.5);
            assert_eq!(
                (outcome.next, outcome.status, outcome.failure),
                (Next::Delivered, Some(status), None)
            );
        }
        for (status, expected) in [
            (100, "status_refused"),
            (301, "redirected"),
            (307, "redirected"),
            (400, "status_refused"),
            (404, "status_refused"),
            (429, "status_refused"),
            (500, "status_refused"),
            (999, "status_refused"),
        ] {
            assert_eq!(code(answer(status)), Some(expected), "{status}");
            assert!(matches!(after(0, answer(status), 0.5).next, Next::Retry(_)), "{status}");
        }
        assert_eq!(code(Observed::TargetRefused), Some("target_refused"));
        assert_eq!(code(Observed::TimedOut), Some("timed_out"));
    }

    #[test]
    fn it_is_tried_for_about_a_day_and_then_given_up() {
        let waits = |random: f64| {
            let mut waits = Vec::new();
            for attempts in 0.. {
                match after(attempts, answer(500), random).next {
                    Next::Retry(wait) => waits.push(wait),
                    Next::Failed => return waits,
                    Next::Delivered => unreachable!("500 delivers nothing"),
                }
            }
            waits
        };
        let middle = waits(0.5);
        assert_eq!(middle.len() + 1, usize::try_from(ATTEMPTS_MAX).unwrap());
        assert_eq!(middle[..4], [10, 20, 40, 80].map(Duration::from_secs));
        assert_eq!(middle.last(), Some(&Duration::from_secs(4 * 3600)));
        for random in [0.0, 0.5, 1.0] {
            let hours = waits(random).iter().sum::<Duration>().as_secs() / 3600;
            assert!((20..=28).contains(&hours), "{hours} hours at {random}");
        }
    }

    #[test]
    fn a_410_ends_the_delivery_and_disables_the_webhook() {
        let outcome = after(0, answer(410), 0.5);
        assert_eq!((outcome.next, outcome.disables_webhook), (Next::Failed, true));
        let later = after(0, Observed::Disabled, 0.5);
        assert_eq!((later.next, later.disables_webhook), (Next::Failed, false));
    }

    #[test]
    fn a_retry_after_is_obeyed_up_to_an_hour() {
        let wait = |seconds| {
            let observed = Observed::Answer {
                status: 503,
                retry_after: Some(Duration::from_secs(seconds)),
            };
            after(0, observed, 0.0).next
        };
        assert_eq!(wait(1), Next::Retry(Duration::from_secs(8)));
        assert_eq!(wait(120), Next::Retry(Duration::from_secs(120)));
        assert_eq!(wait(7 * 86400), Next::Retry(RETRY_AFTER_MAX));
    }
}
