//! What a poll observed.

use chrono::TimeDelta;
use serde_json::{Value, json};

use super::{Activity, CallFailure, Heard, Next, Step, When, end_with_box, ending};
use crate::runs::masking::Carried;
use crate::runs::output::Released;
use crate::runs::update::{End, RunUpdate};
use crate::runs::{Event, FailureReason, Run, RunState};

/// After its exit was learnt, or its deadline if that is later, a log that brings nothing for this long is not waited for.
const PATIENCE_AFTER_EXIT: TimeDelta = TimeDelta::seconds(60);

/// More of a log that waits is not read, but skipped.
const BACKLOG_MAX_BYTES: i64 = 1024 * 1024;
/// So much of it is read all the same, from a line on.
const BACKLOG_KEPT_BYTES: i64 = 256 * 1024;

/// What a whole answer says of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRead {
    /// Bytes in the log on the box.
    pub size: i64,
    /// Bytes read, from the run's `log_offset` on.
    pub read: i64,
    /// What is released of them.
    pub released: Released,
    /// What is released of them if nothing is read after them.
    pub last: Released,
}

impl LogRead {
    /// Bytes that wait for the next poll, of a log that is read up to `end`.
    fn waiting(&self, run: &Run, end: i64) -> i64 {
        end - run.log_offset - self.released.log_bytes
    }

    /// What is released if the run goes on: where too much waits it is skipped, with what this poll brought of it.
    fn going_on(&self, run: &Run, end: i64) -> Released {
        if self.waiting(run, end) <= BACKLOG_MAX_BYTES {
            return self.released.clone();
        }
        let skipped = end - BACKLOG_KEPT_BYTES - run.log_offset;
        Released {
            log_bytes: skipped,
            skipped,
            text: String::new(),
            carried: Some(Carried::after_skip()),
        }
    }

    /// What is released if nothing is read after it; what is left unread is marked with its size.
    pub(super) fn cut(self, run: &Run, end: i64, events: &mut Vec<Event>) -> Released {
        // Of a log that began anew, nothing was read.
        let read = if end < run.log_offset {
            0
        } else {
            run.log_offset + self.last.log_bytes
        };
        mark_cut(self.last, end - read, events)
    }
}

/// Marks that so much of the log could not be read.
fn mark_cut(mut released: Released, missing: i64, events: &mut Vec<Event>) -> Released {
    if missing > 0 {
        events.push(Event::with("output_cut", json!({"bytes": missing})));
        let mark = format!("\n[boxrun: {missing} bytes of output could not be read]\n");
        released.text.push_str(&mark);
    }
    released
}

/// What a poll saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PollSeen {
    /// The run directory is not there.
    Absent,
    Present {
        log: LogRead,
        exit: Option<u8>,
        /// A kill was asked for before the exit.
        killed: bool,
        alive: bool,
        /// It never started, and now never will.
        never_started: bool,
        /// The box was restarted since the start.
        restarted: bool,
    },
    /// The provider cut the answer.
    Cut,
    Failed(CallFailure),
}

/// Decides after a poll. Whatever is not a whole answer leaves the run untouched.
#[must_use]
pub fn after_poll(run: &Run, seen: PollSeen) -> Step {
    let step = match known_exit(run) {
        Some(status) => read_on(run, status, seen),
        None => not_ended_yet(run, seen),
    };
    with_skip(step)
}

/// Whatever is skipped stands in the timeline, with its size.
pub(super) fn with_skip(mut step: Step) -> Step {
    let bytes = step.update.skipped_bytes();
    if bytes > 0 {
        step.events
            .insert(0, Event::with("output_skipped", json!({"bytes": bytes})));
    }
    step
}

fn not_ended_yet(run: &Run, seen: PollSeen) -> Step {
    match seen {
        PollSeen::Absent => lost(
            run,
            FailureReason::RunDirectoryMissing,
            End::Unverified,
            Released::nothing(),
        ),
        // What else the answer says is asked again.
        PollSeen::Present { log, .. } if log.size < run.log_offset => log_restarted(run, log.size, Activity::Poll),
        PollSeen::Present {
            log,
            exit: Some(_),
            killed: true,
            ..
        } if verdict_is_stops(run) => Step::quiet(
            RunUpdate::seen(run, log.going_on(run, log.size)),
            Next::to(Activity::Stop, When::Now, Heard::Answer),
        ),
        PollSeen::Present {
            log,
            exit: Some(status),
            ..
        } => learn_exit(run, status, Some(log)),
        PollSeen::Present {
            log,
            exit: None,
            alive: true,
            ..
        } => still_running(run, &log),
        PollSeen::Present {
            log,
            exit: None,
            alive: false,
            never_started: true,
            ..
        } => lost_with(run, FailureReason::DispatchAmbiguous, log),
        PollSeen::Present {
            log,
            exit: None,
            alive: false,
            never_started: false,
            restarted: true,
            ..
        } => lost_with(run, FailureReason::BoxRestarted, log),
        PollSeen::Present {
            log,
            exit: None,
            alive: false,
            never_started: false,
            restarted: false,
            ..
        } => lost_with(run, FailureReason::ProcessMissingWithoutExitSentinel, log),
        PollSeen::Cut => Step::quiet(RunUpdate::of(run), Next::to(Activity::Poll, When::Backoff, Heard::Cut)),
        PollSeen::Failed(failure) => match failure.box_end() {
            Some(reason) => lost(run, reason, end_with_box(reason), Released::nothing()),
            None => Step::quiet(RunUpdate::of(run), Next::retry(Activity::Poll, failure.fault)),
        },
    }
}

/// An exit that follows a kill is stop's to judge while somebody wants the run ended; otherwise it is an ordinary exit.
fn verdict_is_stops(run: &Run) -> bool {
    run.cancellation_requested_at.is_some() || run.read_at >= run.deadline_at
}

fn still_running(run: &Run, log: &LogRead) -> Step {
    let more = log.size > run.log_offset + log.read;
    let when = if more && log.released.log_bytes > 0 {
        When::Now
    } else {
        When::Interval
    };
    let next = Next::to(Activity::Poll, when, Heard::Answer);
    let update = RunUpdate::seen(run, log.going_on(run, log.size));
    if run.state == RunState::Running {
        Step::quiet(update, next)
    } else {
        Step::new(update, Event::new("running"), next)
    }
}

/// A log that shrank, or was replaced by a shorter one, is read again from its start; what was not read of it is lost.
pub(super) fn log_restarted(run: &Run, size: i64, then: Activity) -> Step {
    let mark = "\n[boxrun: the log was cut or replaced here; what follows is read from its start]\n";
    Step::new(
        RunUpdate::log_restarted(run, mark.to_owned()),
        Event::with("log_restarted", json!({"read": run.log_offset, "log_size": size})),
        Next::to(then, When::Now, Heard::Answer),
    )
}

/// Its own end is known: what is left is reading its output up to where the log ended.
pub(super) fn learn_exit(run: &Run, status: u8, log: Option<LogRead>) -> Step {
    let size = log.as_ref().map(|log| log.size);
    let learnt = Event::with("exit_learnt", json!({"exit_status": status, "log_size": size}));
    let released = match log {
        Some(log) if log.waiting(run, log.size) <= 0 => {
            let update = RunUpdate::exited(run, status, size, log.last);
            let ended = ending(update.state(), json!({"exit_status": status}));
            return Step {
                next: Next::cleanup(&update),
                update,
                events: vec![learnt, ended],
            };
        }
        Some(log) => log.going_on(run, log.size),
        None => Released::nothing(),
    };
    Step::new(
        RunUpdate::exit_learnt(run, status, size, released),
        learnt,
        Next::to(Activity::Poll, When::Now, Heard::Answer),
    )
}

fn known_exit(run: &Run) -> Option<u8> {
    run.exit_status.and_then(|status| u8::try_from(status).ok())
}

/// The exit is known and fixes the outcome: nothing that is seen now changes it any more.
fn read_on(run: &Run, status: u8, seen: PollSeen) -> Step {
    match seen {
        PollSeen::Present { log, .. } => {
            let end = run.final_log_size.map_or(log.size, |size| size.min(log.size));
            let released = log.going_on(run, end);
            let progress = released.log_bytes > 0;
            if log.waiting(run, end) <= 0 || (!progress && out_of_patience(run)) {
                finish(run, status, log)
            } else if progress {
                let update = RunUpdate::exit_learnt(run, status, Some(log.size), released);
                Step::quiet(update, Next::to(Activity::Poll, When::Now, Heard::Answer))
            } else {
                let failure = CallFailure::unusable("the log ends before its size");
                Step::quiet(RunUpdate::of(run), Next::retry(Activity::Poll, failure.fault))
            }
        }
        PollSeen::Absent => finish_unread(run, status),
        PollSeen::Failed(failure) if failure.box_end().is_some() => finish_unread(run, status),
        PollSeen::Cut | PollSeen::Failed(_) if out_of_patience(run) => finish_unread(run, status),
        PollSeen::Cut => Step::quiet(RunUpdate::of(run), Next::to(Activity::Poll, When::Backoff, Heard::Cut)),
        PollSeen::Failed(failure) => Step::quiet(RunUpdate::of(run), Next::retry(Activity::Poll, failure.fault)),
    }
}

fn out_of_patience(run: &Run) -> bool {
    let since = [run.exit_learnt_at, run.progressed_at, Some(run.deadline_at)]
        .into_iter()
        .flatten()
        .max();
    since.is_some_and(|since| run.read_at - since > PATIENCE_AFTER_EXIT)
}

/// Ends the run by its own exit, with the last that was read.
fn finish(run: &Run, status: u8, log: LogRead) -> Step {
    let mut events = Vec::new();
    let released = mark_unread(run, log.last, &mut events);
    finished(run, status, released, events)
}

/// Ends the run by its own exit, where its log can't be read any more.
fn finish_unread(run: &Run, status: u8) -> Step {
    let mut events = Vec::new();
    let released = mark_unread(run, Released::nothing(), &mut events);
    finished(run, status, released, events)
}

/// Of the log as it was when the exit was learnt, what was not read is marked.
fn mark_unread(run: &Run, released: Released, events: &mut Vec<Event>) -> Released {
    let read = run.log_offset + released.log_bytes;
    let missing = run.final_log_size.map_or(0, |size| size - read);
    mark_cut(released, missing, events)
}

fn finished(run: &Run, status: u8, released: Released, mut events: Vec<Event>) -> Step {
    let update = RunUpdate::exited(run, status, None, released);
    events.push(ending(update.state(), json!({"exit_status": status})));
    Step {
        next: Next::cleanup(&update),
        update,
        events,
    }
}

/// Lost, with the last that the log brought.
fn lost_with(run: &Run, reason: FailureReason, log: LogRead) -> Step {
    let mut events = Vec::new();
    let size = log.size;
    let released = log.cut(run, size, &mut events);
    let mut step = lost(run, reason, End::Unverified, released);
    step.events.splice(0..0, events);
    step
}

pub(super) fn lost(run: &Run, reason: FailureReason, end: End, released: Released) -> Step {
    let detail: Value = json!({"reason": reason.as_str()});
    Step::ended(
        RunUpdate::lost(run, reason, end, released),
        ending(RunState::Lost, detail),
    )
}
