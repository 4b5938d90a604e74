//! What a run needs, from its record alone.

use super::Activity;
use crate::runs::{Run, RunState};

/// What is to be done for a run, looked at in this order: it has ended, its exit is known, a cancel is asked for, its
/// deadline has passed. `None`: nothing, ever again.
#[must_use]
pub fn duty(run: &Run) -> Option<Activity> {
    match run.state {
        RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::TimedOut | RunState::Lost => {
            run.is_claimed().then_some(Activity::Cleanup)
        }
        RunState::Admitted | RunState::Dispatched | RunState::Running => Some(live_duty(run)),
    }
}

fn live_duty(run: &Run) -> Activity {
    if run.exit_status.is_some() {
        Activity::Poll
    } else if run.cancellation_requested_at.is_some() || run.read_at >= run.deadline_at {
        Activity::Stop
    } else if run.state == RunState::Admitted {
        Activity::Start
    } else {
        Activity::Poll
    }
}
