//! The record of a run, as small as can be; the product's own functions see a whole [`Run`] made of it.

use std::sync::LazyLock;

use boxrun::ids::{ConversationId, RunId};
use boxrun::runs::{FailureReason, Run, RunState};
use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

/// Beside the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Asked {
    BeforeDeadline,
    AfterDeadline,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a column")]
pub struct Row {
    pub state: RunState,
    pub claimed: bool,
    pub probed: bool,
    pub exit: Option<u8>,
    pub final_log_size: Option<u8>,
    pub log_offset: u8,
    pub reason: Option<FailureReason>,
    pub cancel: Option<Asked>,
    pub end_verified: bool,
    pub past_deadline: bool,
}

impl Row {
    pub const ADMITTED: Self = Self {
        state: RunState::Admitted,
        claimed: false,
        probed: false,
        exit: None,
        final_log_size: None,
        log_offset: 0,
        reason: None,
        cancel: None,
        end_verified: false,
        past_deadline: false,
    };

    pub fn is_over(&self) -> bool {
        self.state.is_terminal()
    }

    /// What the product would read.
    pub fn run(&self) -> Run {
        let at = |happened: bool| happened.then_some(EARLY.0);
        let over = self.is_over();
        Run {
            state: self.state,
            exit_status: self.exit.map(i16::from),
            timed_out: self.state == RunState::TimedOut,
            failure_reason: self.reason.map(|reason| reason.as_str().to_owned()),
            log_offset: i64::from(self.log_offset),
            final_log_size: self.final_log_size.map(i64::from),
            dispatch_attempted_at: at(self.claimed),
            probe_attempted_at: at(self.probed),
            exit_learnt_at: at(self.exit.is_some()),
            finished_at: at(over),
            cancellation_requested_at: self.cancel.map(|asked| match asked {
                Asked::BeforeDeadline => EARLY.0,
                Asked::AfterDeadline => late(),
            }),
            cancellation_effective_at: at(self.state == RunState::Cancelled),
            end_verified_at: at(self.end_verified),
            read_at: if self.past_deadline { late() } else { EARLY.0 },
            ..EARLY.1.clone()
        }
    }

    /// What is left of what the product wrote; `reason` is the update's, which has it as a value.
    pub fn of(run: &Run, reason: Option<FailureReason>) -> Self {
        let small = |size: i64| u8::try_from(size).expect("logs are short here");
        Self {
            state: run.state,
            claimed: run.is_claimed(),
            probed: run.probe_attempted_at.is_some(),
            exit: run
                .exit_status
                .map(|status| u8::try_from(status).expect("an exit status")),
            final_log_size: run.final_log_size.map(small),
            log_offset: small(run.log_offset),
            reason,
            cancel: run.cancellation_requested_at.map(|at| {
                if at < run.deadline_at {
                    Asked::BeforeDeadline
                } else {
                    Asked::AfterDeadline
                }
            }),
            end_verified: run.end_verified_at.is_some(),
            past_deadline: run.read_at >= run.deadline_at,
        }
    }
}

/// Any time before the deadline, and a run that was just admitted then.
static EARLY: LazyLock<(DateTime<Utc>, Run)> = LazyLock::new(|| {
    let at = DateTime::UNIX_EPOCH;
    (at, admitted(at))
});

/// Any time after the deadline.
pub fn late() -> DateTime<Utc> {
    EARLY.1.deadline_at + TimeDelta::seconds(1)
}

fn admitted(at: DateTime<Utc>) -> Run {
    Run {
        id: RunId(Uuid::nil()),
        conversation_id: ConversationId(Uuid::nil()),
        box_id: "bx_22222222".parse().expect("a box id"),
        principal_type: String::new(),
        principal_id: None,
        command: String::new(),
        idempotency_key: String::new(),
        cwd: None,
        env: sqlx::types::Json(std::collections::BTreeMap::new()),
        run_directory: String::new(),
        state: RunState::Admitted,
        exit_status: None,
        timed_out: false,
        failure_reason: None,
        pid: None,
        log_offset: 0,
        log_carried: String::new(),
        log_epoch: 0,
        final_log_size: None,
        last_output_offset: 0,
        output_base_offset: 0,
        box_checked_at: Some(at),
        admitted_at: at,
        dispatch_attempted_at: None,
        probe_attempted_at: None,
        dispatched_at: None,
        started_at: None,
        exit_learnt_at: None,
        progressed_at: None,
        finished_at: None,
        cancellation_requested_at: None,
        cancellation_effective_at: None,
        deadline_at: at + TimeDelta::seconds(10),
        end_verified_at: None,
        has_secrets: false,
        updated_at: at,
        next_poll_at: None,
        last_seen_at: None,
        attempts: None,
        last_error: None,
        last_error_code: None,
        worker: None,
        read_at: at,
    }
}
