//! Reading `Retry-After`: of the provider, and of receivers of webhooks.

use std::time::{Duration, SystemTime};

/// How long a server asks us to wait, as seconds or as an HTTP date (RFC 9110, 10.2.3), at most `longest`: a week in a
/// header must not hold us back for a week.
///
/// Zero and a date that has passed mean "at once"; anything else that is not understood is as if it were not there.
#[must_use]
pub fn parse_retry_after(value: &str, now: SystemTime, longest: Duration) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // Digits that no u64 holds are more than the cap, not garbage.
        let seconds = value.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(longest));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    Some(at.duration_since(now).unwrap_or(Duration::ZERO).min(longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date_and_is_capped() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let seconds = |n| Some(Duration::from_secs(n));
        for (value, expected) in [
            ("0", seconds(0)),
            ("7", seconds(7)),
            (" 7 ", seconds(7)),
            ("604800", seconds(60)),
            ("99999999999999999999999", seconds(60)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", seconds(10)),
            ("Sun, 13 Nov 1994 08:49:37 GMT", seconds(60)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", seconds(0)),
            ("Sunday, 06-Nov-94 08:49:47 GMT", seconds(10)),
            ("-5", None),
            ("+5", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(
                parse_retry_after(value, now, Duration::from_secs(60)),
                expected,
                "{value:?}"
            );
        }
    }
}
