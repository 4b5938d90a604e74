//! What start observed: the provider's word on the box, the answer to a dispatch, the answer to a probe.

use std::time::Duration;

use serde_json::json;

use super::{Activity, CallFailure, Effect, Fault, Heard, Next, Step, When, end_with_box, ending};
use crate::runs::output::Released;
use crate::runs::secrets::OpenError;
use crate::runs::update::{End, RunUpdate};
use crate::runs::{Event, FailureReason, Run, RunState};

/// How long a probe waits after the dispatch it asks about: most answers that are lost come back within it.
const PROBE_DELAY: Duration = Duration::from_millis(500);

/// What the provider says of a box that does not take commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoxSeen {
    /// It may take commands later.
    Starting,
    /// It takes no commands any more.
    Stopped,
    Failed(CallFailure),
}

/// What became of a dispatch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DispatchSeen {
    Started {
        pid: i64,
    },
    /// The run directory was there already: an earlier dispatch arrived.
    AlreadyThere,
    /// A tombstone was there: the run never started and never will.
    Tombstone,
    /// The box could not create, write or start it.
    Refused {
        what: String,
    },
    Failed(CallFailure),
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeSeen {
    /// The box does not have the run, and holds a tombstone in its place.
    Absent,
    Present {
        pid: Option<i64>,
    },
    Failed(CallFailure),
}

/// Before a dispatch, for a run that was admitted without asking the provider, whose box does not take it now.
#[must_use]
pub fn after_box_check(run: &Run, seen: BoxSeen) -> Step {
    match seen {
        BoxSeen::Starting => {
            let fault = Fault {
                code: "box_not_ready",
                text: "the box is starting".to_owned(),
                retry_after: None,
            };
            Step::quiet(RunUpdate::of(run), Next::retry(Activity::Start, fault))
        }
        BoxSeen::Stopped => refused(run, FailureReason::BoxStopped, json!({"box": "box_stopped"})),
        BoxSeen::Failed(failure) => match failure.box_end() {
            Some(reason) => refused(run, reason, json!({"box": failure.fault.code})),
            None => Step::quiet(RunUpdate::of(run), Next::retry(Activity::Start, failure.fault)),
        },
    }
}

/// Before a dispatch, for a run whose secrets can't be opened: without them it would not be the run that was asked for.
#[must_use]
pub fn secrets_unreadable(run: &Run, error: &OpenError) -> Step {
    refused(
        run,
        FailureReason::SecretUnreadable,
        json!({"message": error.to_string()}),
    )
}

/// After a dispatch was sent under a claim.
#[must_use]
pub fn after_dispatch(run: &Run, seen: DispatchSeen) -> Step {
    match seen {
        DispatchSeen::Started { pid } => found(run, Some(pid), "dispatched"),
        DispatchSeen::AlreadyThere => found(run, None, "found_on_box"),
        DispatchSeen::Tombstone => never_started(run, "tombstone"),
        DispatchSeen::Refused { what } => refused(run, FailureReason::LaunchRefused, json!({"refused": what})),
        DispatchSeen::Failed(failure) => after_failed_dispatch(run, failure),
    }
}

fn after_failed_dispatch(run: &Run, failure: CallFailure) -> Step {
    let detail = json!({"code": failure.fault.code, "message": failure.fault.text});
    match failure.effect {
        Effect::MaySendAgain => Step::new(
            RunUpdate::release_dispatch(run),
            Event::with("dispatch_released", detail),
            Next::retry(Activity::Start, failure.fault),
        ),
        Effect::DidNotRun => refused(
            run,
            failure.box_end().unwrap_or(FailureReason::BoxRequestRefused),
            json!({"box": failure.fault.code}),
        ),
        Effect::MayHaveRun => Step::new(
            RunUpdate::of(run),
            Event::with("dispatch_unanswered", detail),
            Next::to(Activity::Start, When::After(PROBE_DELAY), Heard::Failure(failure.fault)),
        ),
    }
}

/// After a probe, sent because a claim stands whose outcome is not known. There is no way back to a dispatch from here.
#[must_use]
pub fn after_probe(run: &Run, seen: ProbeSeen) -> Step {
    match seen {
        ProbeSeen::Present { pid } => found(run, pid, "found_on_box"),
        ProbeSeen::Absent => never_started(run, "absent"),
        ProbeSeen::Failed(failure) => match failure.box_end() {
            Some(reason) => Step::ended(
                RunUpdate::lost(run, reason, end_with_box(reason), Released::nothing()),
                ending(RunState::Lost, json!({"reason": reason.as_str()})),
            ),
            None => Step::quiet(RunUpdate::of(run), Next::retry(Activity::Start, failure.fault)),
        },
    }
}

fn found(run: &Run, pid: Option<i64>, event: &'static str) -> Step {
    Step::new(
        RunUpdate::dispatched(run, pid),
        Event::with(event, json!({"pid": pid})),
        Next::to(Activity::Poll, When::Interval, Heard::Answer),
    )
}

fn never_started(run: &Run, box_said: &str) -> Step {
    let reason = FailureReason::DispatchAmbiguous;
    Step::ended(
        RunUpdate::lost(run, reason, End::Verified, Released::nothing()),
        ending(RunState::Lost, json!({"reason": reason.as_str(), "box": box_said})),
    )
}

fn refused(run: &Run, reason: FailureReason, mut detail: serde_json::Value) -> Step {
    detail["reason"] = json!(reason.as_str());
    Step::ended(RunUpdate::refused(run, reason), ending(RunState::Failed, detail))
}
