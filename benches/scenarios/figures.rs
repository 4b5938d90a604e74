//! From what the provider saw to figures: rates, lateness, and how long it took to be as before.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::provider::Poll;

const BUCKET: Duration = Duration::from_millis(500);
/// Of the rate before, and so many times its lateness: back to normal.
const NORMAL_RATE: f64 = 0.9;
const NORMAL_LATENESS: f64 = 2.0;
/// Lateness below it is normal anywhere.
const LATENESS_UNHEEDED_MS: f64 = 250.0;

/// The polls of one phase.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Phase {
    /// Median over half seconds.
    pub polls_per_second: f64,
    /// How much later than its interval a poll came.
    pub lateness_ms_p50: f64,
    pub lateness_ms_p99: f64,
    pub start_ms_p50: f64,
    pub start_ms_p99: f64,
}

impl Phase {
    /// `starts`: how long each start that was admitted in the phase took.
    pub fn of(polls: &[Poll], starts: &[Duration], from: Instant, to: Instant, interval: Duration) -> Self {
        let within: Vec<&Poll> = polls.iter().filter(|poll| poll.at >= from && poll.at < to).collect();
        let lateness: Vec<Duration> = within.iter().map(|poll| poll.after.saturating_sub(interval)).collect();
        Self {
            polls_per_second: median_rate(polls, from, to),
            lateness_ms_p50: percentile(&lateness, 50),
            lateness_ms_p99: percentile(&lateness, 99),
            start_ms_p50: percentile(starts, 50),
            start_ms_p99: percentile(starts, 99),
        }
    }
}

/// From `end` until rate and lateness are as in `before` for a second; `None`: not until `to`.
pub fn recovery(polls: &[Poll], before: &Phase, end: Instant, to: Instant, interval: Duration) -> Option<Duration> {
    let is_normal = |from: Instant| {
        let bucket: Vec<&Poll> = polls
            .iter()
            .filter(|poll| poll.at >= from && poll.at < from + BUCKET)
            .collect();
        let late: Vec<Duration> = bucket.iter().map(|poll| poll.after.saturating_sub(interval)).collect();
        let rate = rate_of(bucket.len());
        let bearable = (before.lateness_ms_p99 * NORMAL_LATENESS).max(LATENESS_UNHEEDED_MS);
        rate >= before.polls_per_second * NORMAL_RATE && percentile(&late, 99) <= bearable
    };
    let buckets = (0..)
        .map(|number| end + BUCKET * number)
        .take_while(|from| *from + 2 * BUCKET <= to);
    let mut normal = buckets.filter(|from| is_normal(*from) && is_normal(*from + BUCKET));
    normal.next().map(|from| from - end)
}

fn median_rate(polls: &[Poll], from: Instant, to: Instant) -> f64 {
    let buckets = (0..)
        .map(|number| from + BUCKET * number)
        .take_while(|start| *start + BUCKET <= to);
    let mut rates: Vec<f64> = buckets
        .map(|start| {
            rate_of(
                polls
                    .iter()
                    .filter(|poll| poll.at >= start && poll.at < start + BUCKET)
                    .count(),
            )
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

fn rate_of(polls_in_bucket: usize) -> f64 {
    f64::from(u32::try_from(polls_in_bucket).unwrap_or(u32::MAX)) / BUCKET.as_secs_f64()
}

/// In milliseconds: the smallest value that `percent` of all do not exceed.
fn percentile(measured: &[Duration], percent: usize) -> f64 {
    let mut sorted = measured.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map_or(0.0, |value| value.as_secs_f64() * 1000.0)
}
