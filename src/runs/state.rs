//! The states of a run and the one function that says which follows which.

use serde::{Deserialize, Serialize};

/// Where a run stands.
///
/// ```text
/// admitted ──dispatched──▶ dispatched ──seen──▶ running ──▶ completed | failed | cancelled | timed_out | lost
///     └──────────────seen──────────────────────────▲
/// ```
/// Every state on the left also leads to every terminal one directly; nothing leads out of a terminal one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, sqlx::Type, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[sqlx(type_name = "text", rename_all = "snake_case")]
pub enum RunState {
    /// Durable, and not known to have reached the box.
    Admitted,
    /// The box has it.
    Dispatched,
    /// A poll has seen it.
    Running,
    /// Exit status 0.
    Completed,
    /// Another exit status, or refused without ever having run.
    Failed,
    /// Ended because it was asked for, verified on the box, or before anything was sent.
    Cancelled,
    /// The deadline passed.
    TimedOut,
    /// What became of it can't be known.
    Lost,
}

/// What happened to a run, as far as its state is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// The box took the command, or was found to have it.
    Dispatched,
    /// A poll found it on the box.
    Seen,
    /// It ended by itself with this exit status, and its output was read.
    Exited(u8),
    /// It was refused and never ran.
    Refused,
    /// A cancel took effect.
    Cancelled,
    /// The deadline passed.
    TimedOut,
    /// What became of it can't be known.
    Lost,
}

impl RunState {
    /// All states, in the order of a run's life.
    pub const ALL: [Self; 8] = [
        Self::Admitted,
        Self::Dispatched,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::TimedOut,
        Self::Lost,
    ];

    /// The word used in SQL, HTTP and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Dispatched => "dispatched",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
            Self::Lost => "lost",
        }
    }

    /// Whether nothing can happen to the run any more.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Admitted | Self::Dispatched | Self::Running => false,
            Self::Completed | Self::Failed | Self::Cancelled | Self::TimedOut | Self::Lost => true,
        }
    }

    /// The state after `happening`; `None` where it can't happen.
    #[must_use]
    pub fn after(self, happening: Happening) -> Option<Self> {
        match self {
            Self::Admitted => match happening {
                Happening::Dispatched => Some(Self::Dispatched),
                Happening::Seen => Some(Self::Running),
                Happening::Exited(status) => Some(Self::from_exit(status)),
                Happening::Refused => Some(Self::Failed),
                Happening::Cancelled => Some(Self::Cancelled),
                Happening::TimedOut => Some(Self::TimedOut),
                Happening::Lost => Some(Self::Lost),
            },
            Self::Dispatched => match happening {
                Happening::Dispatched => Some(Self::Dispatched),
                Happening::Seen => Some(Self::Running),
                Happening::Exited(status) => Some(Self::from_exit(status)),
                Happening::Cancelled => Some(Self::Cancelled),
                Happening::TimedOut => Some(Self::TimedOut),
                Happening::Lost => Some(Self::Lost),
                Happening::Refused => None,
            },
            Self::Running => match happening {
                Happening::Seen => Some(Self::Running),
                Happening::Exited(status) => Some(Self::from_exit(status)),
                Happening::Cancelled => Some(Self::Cancelled),
                Happening::TimedOut => Some(Self::TimedOut),
                Happening::Lost => Some(Self::Lost),
                Happening::Dispatched | Happening::Refused => None,
            },
            Self::Completed | Self::Failed | Self::Cancelled | Self::TimedOut | Self::Lost => None,
        }
    }

    fn from_exit(status: u8) -> Self {
        if status == 0 { Self::Completed } else { Self::Failed }
    }
}

impl std::fmt::Display for RunState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for RunState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| {
                let known: Vec<_> = Self::ALL.iter().map(|state| state.as_str()).collect();
                format!("there is no state `{text}`; the states are {}", known.join(", "))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAPPENINGS: [Happening; 8] = [
        Happening::Dispatched,
        Happening::Seen,
        Happening::Exited(0),
        Happening::Exited(17),
        Happening::Refused,
        Happening::Cancelled,
        Happening::TimedOut,
        Happening::Lost,
    ];

    #[test]
    fn nothing_leads_out_of_a_terminal_state() {
        for state in RunState::ALL.into_iter().filter(|state| state.is_terminal()) {
            for happening in HAPPENINGS {
                assert_eq!(state.after(happening), None, "{state} after {happening:?}");
            }
        }
    }

    #[test]
    fn every_live_state_leads_to_every_terminal_one_that_can_be_meant() {
        for state in [RunState::Admitted, RunState::Dispatched, RunState::Running] {
            assert_eq!(state.after(Happening::Exited(0)), Some(RunState::Completed));
            assert_eq!(state.after(Happening::Exited(17)), Some(RunState::Failed));
            assert_eq!(state.after(Happening::Cancelled), Some(RunState::Cancelled));
            assert_eq!(state.after(Happening::TimedOut), Some(RunState::TimedOut));
            assert_eq!(state.after(Happening::Lost), Some(RunState::Lost));
        }
    }

    #[test]
    fn no_run_goes_back() {
        let rank = |state: RunState| RunState::ALL.iter().position(|other| *other == state);
        for state in RunState::ALL {
            for next in HAPPENINGS.into_iter().filter_map(|happening| state.after(happening)) {
                assert!(rank(next) >= rank(state), "{state} to {next}");
            }
        }
    }
}
