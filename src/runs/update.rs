//! Writing what a decision changes of a run: one statement that names the state and the log offset it expects.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::masking::Carried;
use super::output::{self, Released};
use super::{FailureReason, Happening, Run, RunState};

#[cfg(test)]
mod tests;

/// The change of a dispatch claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Kept as it is.
    Keep,
    /// Taken: only while admitted, unclaimed, and no cancel is asked for.
    Take,
    /// Given back, because the command certainly did not run: only while admitted and unprobed.
    Release,
}

/// What changes of a run; made by the constructor named after what happened.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a column that is set, or left as it is"
)]
pub struct RunUpdate {
    expected_state: RunState,
    expected_log_offset: i64,
    expected_log_epoch: i64,
    state: RunState,
    claim: Claim,
    probe_attempted: bool,
    box_checked: bool,
    pid: Option<i64>,
    exit_status: Option<u8>,
    final_log_size: Option<i64>,
    failure_reason: Option<FailureReason>,
    cancellation_effective: bool,
    end_verified: bool,
    cleanup_given_up: bool,
    directory_removed: bool,
    log_restarted: bool,
    released: Released,
}

impl RunUpdate {
    /// Nothing changes yet; the run stays in its state.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        Self {
            expected_state: run.state,
            expected_log_offset: run.log_offset,
            expected_log_epoch: run.log_epoch,
            state: run.state,
            ..Self::nothing()
        }
    }

    fn nothing() -> Self {
        Self {
            expected_state: RunState::Admitted,
            expected_log_offset: 0,
            expected_log_epoch: 0,
            state: RunState::Admitted,
            claim: Claim::Keep,
            probe_attempted: false,
            box_checked: false,
            pid: None,
            exit_status: None,
            final_log_size: None,
            failure_reason: None,
            cancellation_effective: false,
            end_verified: false,
            cleanup_given_up: false,
            directory_removed: false,
            log_restarted: false,
            released: Released::nothing(),
        }
    }

    /// Before a dispatch to a box that takes commands: from here on the command may reach it.
    #[must_use]
    pub fn claim_dispatch(run: &Run) -> Self {
        Self {
            claim: Claim::Take,
            box_checked: true,
            ..Self::of(run)
        }
    }

    /// After a dispatch that certainly did not run.
    #[must_use]
    pub fn release_dispatch(run: &Run) -> Self {
        Self {
            claim: Claim::Release,
            ..Self::of(run)
        }
    }

    /// Before a probe: it is never dispatched again from here on.
    #[must_use]
    pub fn probe_attempted(run: &Run) -> Self {
        Self {
            probe_attempted: true,
            ..Self::of(run)
        }
    }

    /// The box has it.
    #[must_use]
    pub fn dispatched(run: &Run, pid: Option<i64>) -> Self {
        Self {
            pid,
            ..Self::happened(run, Happening::Dispatched)
        }
    }

    /// A poll saw it; `released` is the output that it brought.
    #[must_use]
    pub fn seen(run: &Run, released: Released) -> Self {
        Self {
            released,
            ..Self::happened(run, Happening::Seen)
        }
    }

    /// Its log shrank or was replaced: it is read from its start; `mark` is what readers see there.
    #[must_use]
    pub fn log_restarted(run: &Run, mark: String) -> Self {
        let released = Released {
            text: mark,
            carried: Some(Carried::default()),
            ..Released::nothing()
        };
        Self {
            log_restarted: true,
            ..Self::seen(run, released)
        }
    }

    /// Its exit was learnt, and output is still to be read up to `final_log_size`.
    #[must_use]
    pub fn exit_learnt(run: &Run, exit_status: u8, final_log_size: Option<i64>, released: Released) -> Self {
        Self {
            exit_status: Some(exit_status),
            final_log_size,
            ..Self::seen(run, released)
        }
    }

    /// It ended by itself, and its output was read as far as it can be.
    #[must_use]
    pub fn exited(run: &Run, exit_status: u8, final_log_size: Option<i64>, released: Released) -> Self {
        Self {
            exit_status: Some(exit_status),
            final_log_size,
            released,
            end_verified: true,
            ..Self::happened(run, Happening::Exited(exit_status))
        }
    }

    /// It was refused and never ran.
    #[must_use]
    pub fn refused(run: &Run, reason: FailureReason) -> Self {
        Self {
            failure_reason: Some(reason),
            end_verified: true,
            ..Self::happened(run, Happening::Refused)
        }
    }

    /// It was killed because a cancel was asked for, or nothing of it was ever sent.
    #[must_use]
    pub fn cancelled(run: &Run, released: Released) -> Self {
        Self {
            cancellation_effective: true,
            end_verified: true,
            released,
            ..Self::happened(run, Happening::Cancelled)
        }
    }

    /// Its deadline passed.
    #[must_use]
    pub fn timed_out(run: &Run, reason: FailureReason, end: End, released: Released) -> Self {
        Self {
            failure_reason: Some(reason),
            end_verified: end == End::Verified,
            released,
            ..Self::happened(run, Happening::TimedOut)
        }
    }

    /// What became of it can't be known.
    #[must_use]
    pub fn lost(run: &Run, reason: FailureReason, end: End, released: Released) -> Self {
        Self {
            failure_reason: Some(reason),
            end_verified: end == End::Verified,
            released,
            ..Self::happened(run, Happening::Lost)
        }
    }

    /// Cleanup found no process of it left.
    #[must_use]
    pub fn end_verified(run: &Run) -> Self {
        Self {
            end_verified: true,
            ..Self::of(run)
        }
    }

    /// Cleanup gave up: the box did not answer until the retention had passed.
    #[must_use]
    pub fn cleanup_given_up(run: &Run) -> Self {
        Self {
            cleanup_given_up: true,
            ..Self::of(run)
        }
    }

    /// Its directory on the box is gone.
    #[must_use]
    pub fn directory_removed(run: &Run) -> Self {
        Self {
            directory_removed: true,
            end_verified: true,
            ..Self::of(run)
        }
    }

    /// The state that the run has afterwards.
    #[must_use]
    pub fn state(&self) -> RunState {
        self.state
    }

    /// Bytes of the log that are skipped.
    #[must_use]
    pub fn skipped_bytes(&self) -> i64 {
        self.released.skipped
    }

    /// Bytes of output that readers get, also where older ones are not kept.
    #[must_use]
    pub fn released_bytes(&self) -> usize {
        self.released.text.len()
    }

    /// Whether it is then known that nothing of the run is left alive.
    #[must_use]
    pub fn verifies_end(&self) -> bool {
        self.end_verified
    }

    /// Why the run ended so, where it did not simply exit.
    #[must_use]
    pub fn failure_reason(&self) -> Option<FailureReason> {
        self.failure_reason
    }

    /// Whether anything is written at all: a quiet poll of a running run changes nothing.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let unchanged = Self {
            expected_state: self.expected_state,
            expected_log_offset: self.expected_log_offset,
            expected_log_epoch: self.expected_log_epoch,
            state: self.expected_state,
            ..Self::nothing()
        };
        *self == unchanged
    }

    /// What [`apply`] makes of the run at `at`, or `None` where the run is not as expected: the same rules without a
    /// database, but for the offsets of the output kept, which depend on what is stored.
    #[must_use]
    pub fn applied_to(&self, run: &Run, at: DateTime<Utc>) -> Option<Run> {
        let as_expected = run.state == self.expected_state
            && run.log_offset == self.expected_log_offset
            && run.log_epoch == self.expected_log_epoch
            && run.updated_at <= at;
        let claim_may_change = match self.claim {
            Claim::Keep => true,
            Claim::Take => !run.is_claimed() && run.cancellation_requested_at.is_none(),
            Claim::Release => run.probe_attempted_at.is_none(),
        };
        if !as_expected || !claim_may_change {
            return None;
        }
        let once = |before: Option<DateTime<Utc>>, now: bool| before.or(now.then_some(at));
        let learns_exit = self.exit_status.is_some();
        let progressed = self.released.log_bytes > 0 || self.log_restarted;
        Some(Run {
            state: self.state,
            dispatch_attempted_at: match self.claim {
                Claim::Keep => run.dispatch_attempted_at,
                Claim::Take => Some(at),
                Claim::Release => None,
            },
            probe_attempted_at: once(run.probe_attempted_at, self.probe_attempted),
            box_checked_at: once(run.box_checked_at, self.box_checked),
            pid: run.pid.or(self.pid),
            exit_status: run.exit_status.or(self.exit_status.map(i16::from)),
            exit_learnt_at: once(run.exit_learnt_at, learns_exit),
            final_log_size: run.final_log_size.or(self.final_log_size),
            failure_reason: run
                .failure_reason
                .clone()
                .or(self.failure_reason.map(|reason| reason.as_str().to_owned())),
            cancellation_effective_at: if self.cancellation_effective {
                Some(at)
            } else {
                run.cancellation_effective_at
            },
            end_verified_at: once(run.end_verified_at, self.end_verified),
            log_offset: if self.log_restarted {
                0
            } else {
                run.log_offset + self.released.log_bytes
            },
            log_epoch: run.log_epoch + i64::from(self.log_restarted),
            log_carried: self
                .released
                .carried
                .map_or_else(|| run.log_carried.clone(), Carried::to_words),
            progressed_at: if progressed { Some(at) } else { run.progressed_at },
            dispatched_at: once(run.dispatched_at, self.state == RunState::Dispatched),
            started_at: once(
                run.started_at,
                self.state == RunState::Running || (run.exit_status.is_none() && learns_exit),
            ),
            timed_out: self.state == RunState::TimedOut,
            finished_at: if self.state.is_terminal() {
                run.finished_at.or(Some(at))
            } else {
                None
            },
            updated_at: at,
            ..run.clone()
        })
    }

    /// # Panics
    /// Where the domain says that this can't happen to the run: a decision that ignores the run's state is a bug.
    fn happened(run: &Run, happening: Happening) -> Self {
        let state = run.state.after(happening);
        let state = state.unwrap_or_else(|| panic!("{happening:?} can't happen to a run that is {}", run.state));
        Self { state, ..Self::of(run) }
    }
}

/// Whether it is known that nothing of the run is left alive on its box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Verified,
    Unverified,
}

/// Writes `update`, and its output, of at most `output_max_bytes` kept in all.
///
/// Returns when it was written, by the database's clock; `None` where the run was not as expected, and nothing is to be
/// committed.
pub(crate) async fn apply(
    conn: &mut PgConnection,
    run: &Run,
    update: &RunUpdate,
    output_max_bytes: i64,
) -> sqlx::Result<Option<DateTime<Utc>>> {
    let appended = output::place(conn, run, &update.released, output_max_bytes).await?;
    let updated = sqlx::query_file!(
        "src/runs/sql/update.sql",
        run.id.0,
        update.expected_state.as_str(),
        update.expected_log_offset,
        update.state.as_str(),
        update.claim == Claim::Take,
        update.claim == Claim::Release,
        update.probe_attempted,
        update.box_checked,
        update.pid,
        update.exit_status.map(i16::from),
        update.final_log_size,
        update.failure_reason.map(FailureReason::as_str),
        update.cancellation_effective,
        update.end_verified,
        update.cleanup_given_up,
        update.directory_removed,
        update.released.log_bytes,
        appended.last_output_offset,
        appended.output_base_offset,
        update.state.is_terminal(),
        update.released.carried.map(Carried::to_words),
        update.log_restarted,
        update.expected_log_epoch,
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(updated) = updated else { return Ok(None) };
    output::store(conn, run, &appended).await?;
    Ok(Some(updated.updated_at))
}
