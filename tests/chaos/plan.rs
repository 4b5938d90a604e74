//! What is asked for: commands that count themselves as they start, and of which is known what they print and how they end.

use std::fmt::Write as _;
use std::time::Duration;

use boxrun::runs::RunState;
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _};

pub const SECRET_VARIABLE: &str = "CHAOS_SECRET";
/// What stands in the output in a secret's place.
const REDACTED: &str = "[REDACTED]";
/// For most runs: far longer than any of them takes, outages included.
pub const LONG_DEADLINE: Duration = Duration::from_secs(240);

#[derive(Debug, Clone)]
pub struct Plan {
    pub lines: u32,
    /// In the middle of each line, where it cuts a character in two.
    pub pause: Duration,
    /// In each line.
    pub fill_bytes: usize,
    pub exit_status: u8,
    pub secret: Option<String>,
    /// The state upon which the run is asked to end.
    pub cancel_when: Option<RunState>,
    pub deadline: Duration,
    pub rivals: Rivals,
}

/// Transactions at the same time that ask for the same run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rivals {
    None,
    Commits,
    RollsBack,
}

impl Plan {
    /// Nothing special.
    pub fn short() -> Self {
        Self {
            lines: 2,
            pause: Duration::from_millis(50),
            fill_bytes: 0,
            exit_status: 0,
            secret: None,
            cancel_when: None,
            deadline: LONG_DEADLINE,
            rivals: Rivals::None,
        }
    }

    pub fn random(random: &mut StdRng) -> Self {
        let mut plan = Self {
            lines: random.random_range(2..10),
            pause: Duration::from_millis(random.random_range(20..500)),
            fill_bytes: 0,
            exit_status: if random.random_bool(0.25) {
                random.random_range(1..=255)
            } else {
                0
            },
            secret: random
                .random_bool(0.2)
                .then(|| format!("chaos-secret-{:016x}", random.next_u64())),
            cancel_when: None,
            deadline: LONG_DEADLINE,
            rivals: match random.random_range(0..8) {
                0 => Rivals::Commits,
                1 => Rivals::RollsBack,
                _ => Rivals::None,
            },
        };
        match random.random_range(0..20) {
            0 | 1 => plan.fill_bytes = random.random_range(3000..8000),
            2 => plan.cancel_when = Some(RunState::Admitted),
            3 => plan.cancel_when = Some(RunState::Dispatched),
            4 => plan.cancel_when = Some(RunState::Running),
            5 => plan.deadline = Duration::from_secs(random.random_range(2..8)),
            _ => {}
        }
        if plan.is_cut_short() {
            plan.lines *= 8;
        }
        plan
    }

    /// Asked to last longer than it may.
    fn is_cut_short(&self) -> bool {
        self.cancel_when.is_some() || self.deadline < LONG_DEADLINE
    }

    pub fn command(&self) -> String {
        let Self { lines, exit_status, .. } = self;
        let pause = self.pause.as_secs_f64();
        let secret = match self.secret {
            Some(_) => format!("printf 'key %s.' \"${SECRET_VARIABLE}\"; "),
            None => String::new(),
        };
        let fill = match self.fill_bytes {
            0 => String::new(),
            bytes => format!("printf '%0{bytes}d' $i; "),
        };
        // A kill may end the pause before the shell, which would say so and print on.
        format!(
            "exec 2>/dev/null; trap 'exit 143' TERM; echo \"$BOXRUN_RUN_ID\" >> \"$BOXRUN_SIM_STARTS\"; i=0; while [ $i -lt {lines} ]; do i=$((i+1)); \
             printf 'line %s of {lines}: gr\\303\\274\\303\\237e \\360\\237' $i; sleep {pause:.3}; \
             printf '\\246\\200 '; {secret}{fill}echo; done; exit {exit_status}"
        )
    }

    /// All that is to be read of it.
    pub fn output(&self) -> String {
        let lines = self.lines;
        (1..=lines).fold(String::new(), |mut text, line| {
            let _ = write!(text, "line {line} of {lines}: grüße 🦀 ");
            if self.secret.is_some() {
                let _ = write!(text, "key {REDACTED}.");
            }
            if self.fill_bytes > 0 {
                let _ = write!(text, "{line:0width$}", width = self.fill_bytes);
            }
            text.push('\n');
            text
        })
    }
}
