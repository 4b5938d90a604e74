//! What follows from what was observed: pure functions from (run, observation) to a [`Step`].
//!
//! Nothing here reads a clock, a random number, the network or the database. `duty` says what a run needs before anything
//! is observed; one module an activity says what its observation means.

mod cleanup;
mod duty;
mod poll;
mod start;
mod stop;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use cleanup::{CleanupSeen, after_cleanup, after_removal};
pub use duty::duty;
pub use poll::{LogRead, PollSeen, after_poll};
pub use start::{BoxSeen, DispatchSeen, ProbeSeen, after_box_check, after_dispatch, after_probe, secrets_unreadable};
pub use stop::{StopSeen, after_stop, without_claim};

use super::events::Event;
use super::update::{End, RunUpdate};
use super::{FailureReason, RunState};

/// What a worker does for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activity {
    /// Dispatch it, or ask whether it was dispatched.
    Start,
    /// Read its output and whether it ended.
    Poll,
    /// End it.
    Stop,
    /// Leave nothing behind.
    Cleanup,
}

/// When the next activity is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Now,
    /// After the poll interval.
    Interval,
    After(Duration),
    /// After a delay that grows with the failures in a row.
    Backoff,
    /// When the retention of run directories has passed since the run's end.
    Retention,
}

/// What the box had to say, for the job's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// It was not asked, or what it said counts neither way.
    Nothing,
    /// A usable answer: the failures in a row end.
    Answer,
    Failure(Fault),
    /// The answer was cut by the provider: ask for less from now on.
    Cut,
}

/// One more failure in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub code: &'static str,
    /// For people; never contains output, commands or secrets.
    pub text: String,
    /// The provider asked for this much patience.
    pub retry_after: Option<Duration>,
}

/// The run's next activity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Next {
    /// `None`: there is nothing left to do for the run.
    pub activity: Option<Activity>,
    pub when: When,
    pub heard: Heard,
}

impl Next {
    fn to(activity: Activity, when: When, heard: Heard) -> Self {
        Self {
            activity: Some(activity),
            when,
            heard,
        }
    }

    fn retry(activity: Activity, fault: Fault) -> Self {
        Self::to(activity, When::Backoff, Heard::Failure(fault))
    }

    /// After the end: cleanup, at once where something may be left alive.
    fn cleanup(update: &RunUpdate) -> Self {
        let when = if update.verifies_end() {
            When::Retention
        } else {
            When::Now
        };
        Self::to(Activity::Cleanup, when, Heard::Answer)
    }
}

/// What a decision asks for; committed in one transaction, fenced by the job's lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub update: RunUpdate,
    pub events: Vec<Event>,
    pub next: Next,
}

impl Step {
    fn new(update: RunUpdate, event: Event, next: Next) -> Self {
        Self {
            update,
            events: vec![event],
            next,
        }
    }

    fn quiet(update: RunUpdate, next: Next) -> Self {
        Self {
            update,
            events: Vec::new(),
            next,
        }
    }

    /// The run ends with `update`; its job becomes cleanup.
    fn ended(update: RunUpdate, event: Event) -> Self {
        let next = Next::cleanup(&update);
        Self {
            update,
            events: vec![event],
            next,
        }
    }
}

/// Whether the command of a failed call can have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    MaySendAgain,
    DidNotRun,
    MayHaveRun,
}

/// A call to the box that brought no usable answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFailure {
    pub effect: Effect,
    pub fault: Fault,
}

impl CallFailure {
    /// The box answered, and the answer says nothing.
    #[must_use]
    pub fn unusable(text: &str) -> Self {
        Self {
            effect: Effect::MayHaveRun,
            fault: Fault {
                code: "box_response_invalid",
                text: text.to_owned(),
                retry_after: None,
            },
        }
    }

    /// The end of the run that follows when its box is no more. A box that is not found counts only once confirmed: then
    /// the effect is [`Effect::DidNotRun`].
    fn box_end(&self) -> Option<FailureReason> {
        match (self.effect, self.fault.code) {
            (Effect::DidNotRun, "box_stopped") => Some(FailureReason::BoxStopped),
            (Effect::DidNotRun, "box_gone") => Some(FailureReason::BoxGone),
            (Effect::DidNotRun, "box_not_found") => Some(FailureReason::BoxNotFound),
            _ => None,
        }
    }
}

/// A box that is gone took the run's processes with it; one that was stopped can come back.
fn end_with_box(reason: FailureReason) -> End {
    match reason {
        FailureReason::BoxGone | FailureReason::BoxNotFound => End::Verified,
        _ => End::Unverified,
    }
}

/// The event of a run that reached a terminal state: its name is the state's.
fn ending(state: RunState, detail: serde_json::Value) -> Event {
    Event::with(state.as_str(), detail)
}
