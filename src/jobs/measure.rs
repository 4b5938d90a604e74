//! What a worker counts of the outcomes that it commits: afterwards, so that what was rolled back counts nowhere.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::runs::decide::Step;
use crate::runs::{Run, RunState};
use crate::telemetry;

/// Times a transaction that finishes a job; `name` is the word for its result. One that fails is tried again, and counted then.
pub(super) async fn timed<T>(
    work: impl Future<Output = sqlx::Result<T>>,
    name: impl FnOnce(&T) -> &'static str,
) -> sqlx::Result<T> {
    let began = Instant::now();
    let done = work.await?;
    telemetry::commit_ended(name(&done), began.elapsed());
    Ok(done)
}

/// Counts what `step` has made of `run`, as it was before, at a time of the database.
pub(super) fn committed(run: &Run, step: &Step, at: DateTime<Utc>) {
    let state = step.update.state();
    if run.state == RunState::Admitted && matches!(state, RunState::Dispatched | RunState::Running) {
        let delay = (at - run.admitted_at).to_std().unwrap_or(Duration::ZERO);
        telemetry::run_dispatched(delay);
    }
    if state.is_terminal() && !run.state.is_terminal() {
        telemetry::run_finished(state.as_str());
    }
    let skipped_bytes = u64::try_from(step.update.skipped_bytes()).unwrap_or(0);
    telemetry::output_released(step.update.released_bytes(), skipped_bytes);
}
