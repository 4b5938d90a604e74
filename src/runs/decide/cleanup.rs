//! What cleanup observed: whether anything of an ended run is left on its box.

use chrono::TimeDelta;
use serde_json::json;

use super::{Activity, CallFailure, Heard, Next, Step, When, end_with_box};
use crate::runs::update::{End, RunUpdate};
use crate::runs::{Event, FailureReason, Run};

/// What the stop script found of a run that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CleanupSeen {
    /// Nothing of it is alive.
    NothingLeft,
    StillAlive,
    Failed(CallFailure),
}

/// However short the retention, a box is asked for so long.
const PATIENCE_MIN: TimeDelta = TimeDelta::hours(1);
/// A box that was stopped can come back after weeks, and with it what the run left there.
const STOPPED_BOX_PATIENCE: TimeDelta = TimeDelta::days(30);

const DONE: Next = Next {
    activity: None,
    when: When::Now,
    heard: Heard::Answer,
};

/// Decides after a kill on behalf of a run that ended without its end being verified.
#[must_use]
pub fn after_cleanup(run: &Run, seen: CleanupSeen, retention: TimeDelta) -> Step {
    match seen {
        CleanupSeen::NothingLeft => Step::new(
            RunUpdate::end_verified(run),
            Event::new("end_verified"),
            Next::to(Activity::Cleanup, When::Retention, Heard::Answer),
        ),
        CleanupSeen::StillAlive => again(
            run,
            CallFailure::unusable("a process of the run would not die"),
            retention,
        ),
        CleanupSeen::Failed(failure) => box_ended(run, &failure).unwrap_or_else(|| again(run, failure, retention)),
    }
}

/// Decides after the removal of the run directory was tried: `Ok` is the box's word that it is gone.
#[must_use]
pub fn after_removal(run: &Run, removed: Result<(), CallFailure>, retention: TimeDelta) -> Step {
    match removed {
        Ok(()) => Step::new(RunUpdate::directory_removed(run), Event::new("directory_removed"), DONE),
        // As long again as the directory was kept, then nobody asks any more.
        Err(failure) => box_ended(run, &failure)
            .unwrap_or_else(|| again(run, failure, retention.checked_mul(2).unwrap_or(retention))),
    }
}

/// With its box, everything that the run left there is gone; a box that was only stopped can come back.
fn box_ended(run: &Run, failure: &CallFailure) -> Option<Step> {
    let reason = failure
        .box_end()
        .filter(|reason| end_with_box(*reason) == End::Verified)?;
    let event = Event::with("cleanup_ended", json!({"reason": reason.as_str()}));
    Some(Step::new(RunUpdate::end_verified(run), event, DONE))
}

fn again(run: &Run, failure: CallFailure, patience: TimeDelta) -> Step {
    let patience = patience.max(match failure.box_end() {
        Some(FailureReason::BoxStopped) => STOPPED_BOX_PATIENCE,
        Some(_) | None => PATIENCE_MIN,
    });
    let ended_at = run.finished_at.unwrap_or(run.read_at);
    if run.read_at - ended_at < patience {
        return Step::quiet(RunUpdate::of(run), Next::retry(Activity::Cleanup, failure.fault));
    }
    Step::new(
        RunUpdate::cleanup_given_up(run),
        Event::with("cleanup_given_up", json!({"code": failure.fault.code})),
        DONE,
    )
}
