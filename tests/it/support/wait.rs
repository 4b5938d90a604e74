//! Waiting for what sends no signal: another process's end, a file, a row.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Ample on a loaded machine that stands still at times; a test that passes does not wait for it.
const PATIENCE: Duration = Duration::from_secs(180);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Looks again and again until `wanted` holds of what is seen, and returns it; fails with what was expected and the last
/// thing seen.
pub async fn wait_until<T: Debug>(expected: &str, mut look: impl AsyncFnMut() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let give_up = Instant::now() + PATIENCE;
    let mut looks = tokio::time::interval(BETWEEN_LOOKS);
    loop {
        looks.tick().await;
        let seen = look().await;
        if wanted(&seen) {
            return seen;
        }
        assert!(
            Instant::now() < give_up,
            "waited {PATIENCE:?} until {expected}; last seen: {seen:?}"
        );
    }
}

/// As [`wait_until`], for tests without a runtime.
pub fn wait_until_blocking<T: Debug>(expected: &str, mut look: impl FnMut() -> T, wanted: impl Fn(&T) -> bool) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let seen = look();
        if wanted(&seen) {
            return seen;
        }
        assert!(
            Instant::now() < give_up,
            "waited {PATIENCE:?} until {expected}; last seen: {seen:?}"
        );
        std::thread::park_timeout(BETWEEN_LOOKS);
    }
}
