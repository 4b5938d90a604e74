//! The lives whose steps are looked at: together they have jobs of all kinds.

use std::time::Duration;

use boxrun::runs::RunState;

use super::cell::Ended;
use super::tap::{Fault, Step};
use crate::crash::command::{OnTerm, Printing};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Over before its first poll.
    Short,
    /// Polled while it runs; fails with a status.
    Long,
    Cancelled,
    PastDeadline,
    /// It runs, and nobody was told: it is asked for.
    DispatchUnanswered,
}

impl Life {
    pub fn command(self) -> Printing {
        match self {
            Self::Short | Self::DispatchUnanswered => Printing::over(2, Duration::from_millis(20)),
            Self::Long => Printing {
                exit_status: 17,
                ..Printing::over(6, Duration::from_millis(900))
            },
            Self::Cancelled | Self::PastDeadline => Printing {
                on_term: OnTerm::Ends,
                ..Printing::over(300, Duration::from_secs(60))
            },
        }
    }

    /// Whether the step is this life's to look at; others have it as well.
    pub fn is_about(self, step: &Step) -> bool {
        let of_stop = step.what == "stop" || step.after == "stop" || step.after == "removal" || step.what == "removal";
        match self {
            Self::Short => true,
            Self::Long => step.after == "poll" && !step.what.starts_with("removal"),
            Self::Cancelled | Self::PastDeadline => of_stop,
            Self::DispatchUnanswered => step.what == "probe" || step.after == "probe",
        }
    }

    /// What is wrong with its end, after this fault at this step or without any.
    pub fn faults(self, ended: &Ended, met: Option<(&Step, Fault)>) -> Vec<String> {
        let Ended { run, .. } = ended;
        let command = self.command();
        let sent_twice = met.is_some_and(|(step, fault)| fault == Fault::Twice && step.what == "dispatch");
        // A claim that nobody can tell the outcome of, of a run that its box does not have.
        let was_given_up = met.is_some_and(|(step, _)| may_keep_from_starting(step))
            && run.state == RunState::Lost
            && run.failure_reason.as_deref() == Some("dispatch_ambiguous");
        let state_is_right = match self {
            Self::Short | Self::DispatchUnanswered => run.state == RunState::Completed,
            Self::Long => run.state == RunState::Failed && run.exit_status == Some(17),
            Self::Cancelled => run.state == RunState::Cancelled,
            Self::PastDeadline => run.state == RunState::TimedOut,
        };
        let output_is_right = match self {
            _ if was_given_up => ended.output.is_empty(),
            Self::Short | Self::Long | Self::DispatchUnanswered => ended.output == command.output(),
            Self::Cancelled | Self::PastDeadline => command.printed_so_far(&ended.output),
        };
        let rules = [
            (state_is_right || was_given_up, "the end that it has without the fault"),
            (output_is_right, "all its output, once"),
            (ended.starts == usize::from(!was_given_up), "one start"),
            (ended.dispatches <= 1 + usize::from(sent_twice), "one dispatch at most"),
            (ended.terminal_events == 1, "one end in its timeline"),
            (ended.directory_is_removed, "nothing left on its box"),
            (!ended.a_worker_panicked, "no panic"),
        ];
        let broken = rules.into_iter().filter(|(holds, _)| !holds);
        broken.map(|(_, rule)| format!("not: {rule}")).collect()
    }
}

/// From the claim of a dispatch until it has arrived: whoever takes over can only ask the box, and finds nothing.
fn may_keep_from_starting(step: &Step) -> bool {
    step.after == "GET box"
}
