//! What a stop observed.

use serde_json::json;

use super::poll::{LogRead, learn_exit, log_restarted, lost, with_skip};
use super::{Activity, CallFailure, Heard, Next, Step, end_with_box, ending};
use crate::runs::output::Released;
use crate::runs::update::{End, RunUpdate};
use crate::runs::{FailureReason, Run, RunState};

/// What a stop saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopSeen {
    /// The box does not have the run, nothing of it is alive, and a tombstone holds its place.
    Absent,
    /// Nothing of it is alive, and our request came before its end.
    Killed {
        log: Option<LogRead>,
    },
    /// It had ended by itself.
    EndedBefore {
        exit: u8,
        log: Option<LogRead>,
    },
    /// Something of it would not die.
    StillAlive,
    Failed(CallFailure),
}

/// Decides after a stop was answered, or not.
#[must_use]
pub fn after_stop(run: &Run, seen: StopSeen) -> Step {
    match seen {
        StopSeen::Killed { log } => killed(run, log),
        // Its end is asked for again, with the log that there is now.
        StopSeen::EndedBefore { log: Some(log), .. } if log.size < run.log_offset => {
            log_restarted(run, log.size, Activity::Stop)
        }
        StopSeen::EndedBefore { exit, log } => with_skip(learn_exit(run, exit, log)),
        StopSeen::Absent if run.state == RunState::Admitted => lost(
            run,
            FailureReason::DispatchAmbiguous,
            End::Verified,
            Released::nothing(),
        ),
        StopSeen::Absent => lost(
            run,
            FailureReason::RunDirectoryMissing,
            End::Verified,
            Released::nothing(),
        ),
        StopSeen::StillAlive => not_yet(run, CallFailure::unusable("a process of the run would not die")),
        StopSeen::Failed(failure) => match failure.box_end() {
            Some(reason) => lost(run, reason, end_with_box(reason), Released::nothing()),
            None => not_yet(run, failure),
        },
    }
}

/// Decides where no claim stands: nothing was sent, and nothing will be. `last_failure` is the code of the last try to start.
#[must_use]
pub fn without_claim(run: &Run, last_failure: Option<&str>) -> Step {
    let update = if run.cancel_wins() {
        RunUpdate::cancelled(run, Released::nothing())
    } else {
        match last_failure {
            Some("box_unauthorized") => RunUpdate::refused(run, FailureReason::BoxUnauthorized),
            Some("box_billing_required") => RunUpdate::refused(run, FailureReason::BoxBillingRequired),
            _ => RunUpdate::timed_out(run, FailureReason::NotStartedInTime, End::Verified, Released::nothing()),
        }
    };
    let event = ending(update.state(), why(&update));
    Step::new(
        update,
        event,
        Next {
            activity: None,
            when: super::When::Now,
            heard: Heard::Nothing,
        },
    )
}

fn killed(run: &Run, log: Option<LogRead>) -> Step {
    let mut events = Vec::new();
    let released = log.map_or(Released::nothing(), |log| {
        let size = log.size;
        log.cut(run, size, &mut events)
    });
    let update = if run.cancel_wins() {
        RunUpdate::cancelled(run, released)
    } else {
        RunUpdate::timed_out(run, FailureReason::RunDurationExceeded, End::Verified, released)
    };
    events.push(ending(update.state(), why(&update)));
    with_skip(Step {
        next: Next::cleanup(&update),
        update,
        events,
    })
}

/// The box did not say that all is dead: a cancel is tried again until the deadline; at the deadline the run is timed out
/// and the kill goes on as cleanup.
fn not_yet(run: &Run, failure: CallFailure) -> Step {
    if run.read_at < run.deadline_at {
        return Step::quiet(RunUpdate::of(run), Next::retry(Activity::Stop, failure.fault));
    }
    let reason = FailureReason::RunDurationExceeded;
    let update = RunUpdate::timed_out(run, reason, End::Unverified, Released::nothing());
    let detail = json!({"reason": reason.as_str(), "kill": failure.fault.code});
    let mut step = Step::ended(update, ending(RunState::TimedOut, detail));
    step.next.when = super::When::Backoff;
    step.next.heard = Heard::Failure(failure.fault);
    step
}

/// The reason, where there is one besides the state itself.
fn why(update: &RunUpdate) -> serde_json::Value {
    update
        .failure_reason()
        .map_or(json!({}), |reason| json!({"reason": reason.as_str()}))
}
