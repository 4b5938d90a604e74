//! Commands that count themselves as they start and print what a test can tell from the outside.

use std::fmt::Write as _;
use std::time::Duration;

/// A command that prints numbered lines, each with a character that is cut in two by a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Printing {
    pub lines: u32,
    /// In the middle of each line.
    pub pause: Duration,
    pub exit_status: u8,
    pub on_term: OnTerm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTerm {
    Ends,
    /// Only SIGKILL ends it, so that a stop lasts as long as its grace period.
    GoesOn,
}

impl Printing {
    /// `lines` lines in about this time, then exit status 0.
    pub fn over(lines: u32, duration: Duration) -> Self {
        Self {
            lines,
            pause: duration / lines,
            exit_status: 0,
            on_term: OnTerm::Ends,
        }
    }

    pub fn command(self) -> String {
        let Self {
            lines,
            pause,
            exit_status,
            on_term,
        } = self;
        let trap = match on_term {
            // A kill may end the pause before the shell, which would say so and print on.
            OnTerm::Ends => "exec 2>/dev/null; trap 'exit 143' TERM; ",
            OnTerm::GoesOn => "trap '' TERM; ",
        };
        let pause = pause.as_secs_f64();
        format!(
            "{trap}echo \"$BOXRUN_RUN_ID\" >> \"$BOXRUN_SIM_STARTS\"; i=0; while [ $i -lt {lines} ]; do i=$((i+1)); \
             printf 'line %s of {lines}: gr\\303\\274\\303\\237e \\360\\237' $i; sleep {pause:.3}; \
             printf '\\246\\200\\n'; done; exit {exit_status}"
        )
    }

    /// All that the command prints.
    pub fn output(self) -> String {
        let lines = self.lines;
        (1..=lines).fold(String::new(), |mut text, line| {
            writeln!(text, "line {line} of {lines}: grüße 🦀").expect("a String takes everything");
            text
        })
    }

    /// Whether `output` is what the command has printed when it was ended at some moment.
    pub fn printed_so_far(self, output: &str) -> bool {
        // The half of a character that was written when it ended.
        let whole = output.strip_suffix('\u{fffd}').unwrap_or(output);
        self.output().starts_with(whole)
    }
}
