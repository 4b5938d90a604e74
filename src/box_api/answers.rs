//! Reading what the scripts printed.
//!
//! An answer is believed only if it is whole; anything else is `Unclear`, and the caller asks again. Markers are whole lines
//! `OA_NAME=value`. A login shell may print what it likes around them: only known names count, and of several lines with
//! one name the last, for ours come after a profile's. A run's own output can't forge one, for it comes as base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// What the provider says a script printed.
#[derive(Debug, Clone, Copy)]
pub struct Printed<'a> {
    pub stdout: &'a str,
    pub exit_code: Option<i64>,
    pub stdout_truncated: bool,
}

impl<'a> Printed<'a> {
    /// Without the line in which the provider cut it: half a number is a number, too.
    fn whole_lines(&self) -> &'a str {
        match (self.stdout_truncated, self.stdout.rfind('\n')) {
            (false, _) => self.stdout,
            (true, Some(end)) => &self.stdout[..end],
            (true, None) => "",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DispatchAnswer {
    /// The wrapper runs, or ran.
    Started { pid: i64 },
    /// The run directory was there: an earlier dispatch got through.
    AlreadyThere,
    /// A tombstone was there: it did not start and never will.
    Tombstone,
    /// The box can't start it, and did not.
    Refused { what: String },
    /// It may have run.
    Unclear,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeAnswer {
    /// It is not there, and a tombstone sees to it that it never will be.
    Absent,
    Present {
        pid: Option<i64>,
    },
    Unclear,
}

/// A part of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPart {
    /// Where `data` begins, in bytes.
    pub from: u64,
    /// How many bytes the log had.
    pub size: u64,
    /// Nothing beyond `size`; empty when `size` is not beyond `from`.
    pub data: Vec<u8>,
}

/// What a poll saw, in the order alive, exit, size, data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a marker of its own on the wire")]
pub struct PollReport {
    /// Where `data` begins, in bytes.
    pub from: u64,
    /// How many bytes the log had.
    pub size: u64,
    /// Nothing beyond `size`; empty when `size` is not beyond `from`.
    pub data: Vec<u8>,
    pub exit: Option<u8>,
    /// A kill request came before the exit.
    pub killed: bool,
    pub alive: bool,
    /// It has not started and never will.
    pub never_started: bool,
    /// The box is up with another boot id than when the run began.
    pub restarted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PollAnswer {
    Absent,
    Present(PollReport),
    /// The provider cut it: a smaller request may fit.
    Truncated,
    Unclear,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopAnswer {
    /// There is no run directory, and no process of the run.
    Absent,
    /// Nothing of it is left, and our request came before its end.
    Cancelled {
        log: Option<LogPart>,
        exit: Option<u8>,
    },
    /// With an exit it had ended by itself; without one something would not die.
    NotCancelled {
        exit: Option<u8>,
        log: Option<LogPart>,
    },
    Unclear,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanupAnswer {
    Removed,
    Unclear,
}

/// A refusal and a lock that was taken have exit codes of their own, a start has its pid as the last line.
#[must_use]
pub fn read_dispatch(printed: &Printed) -> DispatchAnswer {
    let markers = Markers::of(printed.whole_lines());
    let exists = printed
        .stdout
        .lines()
        .any(|line| line.trim_end() == "OPENAGENTS_RUN_EXISTS");
    let tombstone = markers.flag("TOMBSTONE");
    let refused = markers.get("REFUSED");
    match (printed.exit_code, refused) {
        (Some(74), what) => DispatchAnswer::Refused {
            what: refusal(what.unwrap_or_default()),
        },
        (None, Some(what)) => DispatchAnswer::Refused { what: refusal(what) },
        (Some(73) | None, _) if tombstone => DispatchAnswer::Tombstone,
        (Some(73), _) => DispatchAnswer::AlreadyThere,
        (None, _) if exists => DispatchAnswer::AlreadyThere,
        (Some(0) | None, None) if !exists && !tombstone => match last_line_pid(printed.whole_lines()) {
            Some(pid) => DispatchAnswer::Started { pid },
            None => DispatchAnswer::Unclear,
        },
        (_, _) => DispatchAnswer::Unclear,
    }
}

/// `OA_PRESENT` alone makes it whole.
#[must_use]
pub fn read_probe(printed: &Printed) -> ProbeAnswer {
    let markers = Markers::of(printed.whole_lines());
    match markers.get("PRESENT") {
        Some("0") => ProbeAnswer::Absent,
        Some("1") => ProbeAnswer::Present {
            pid: markers.get("PID").and_then(pid),
        },
        Some(_) | None => ProbeAnswer::Unclear,
    }
}

/// An answer without `OA_FROM` begins at `asked_offset`.
#[must_use]
pub fn read_poll(printed: &Printed, asked_offset: u64) -> PollAnswer {
    if printed.stdout_truncated {
        return PollAnswer::Truncated;
    }
    let markers = Markers::of(printed.whole_lines());
    match markers.get("PRESENT") {
        Some("0") => PollAnswer::Absent,
        Some("1") => poll_report(&markers, asked_offset).map_or(PollAnswer::Unclear, PollAnswer::Present),
        Some(_) | None => PollAnswer::Unclear,
    }
}

fn poll_report(markers: &Markers, asked_offset: u64) -> Option<PollReport> {
    let alive = match markers.get("ALIVE")? {
        "0" => false,
        "1" => true,
        _ => return None,
    };
    // Last, so that what was cut off lacks it.
    if !markers.is_last("ALIVE") {
        return None;
    }
    let LogPart { from, size, data } = log_part(markers, asked_offset)?;
    Some(PollReport {
        from,
        size,
        data,
        exit: exit(markers)?,
        killed: markers.flag("KILLED"),
        alive,
        never_started: markers.flag("NEVER_STARTED"),
        restarted: markers.flag("RESTARTED"),
    })
}

/// `OA_CANCELLED`, or `OA_PRESENT=0`, makes it whole; a log that did not come whole is left out.
#[must_use]
pub fn read_stop(printed: &Printed, asked_offset: u64) -> StopAnswer {
    let markers = Markers::of(printed.whole_lines());
    let Some(exit) = exit(&markers) else {
        return StopAnswer::Unclear;
    };
    let log = if printed.stdout_truncated {
        None
    } else {
        log_part(&markers, asked_offset)
    };
    match (markers.get("PRESENT"), markers.get("CANCELLED")) {
        (Some("0"), None) => StopAnswer::Absent,
        (None | Some("1"), Some("1")) => StopAnswer::Cancelled { log, exit },
        (None | Some("1"), Some("0")) => StopAnswer::NotCancelled { exit, log },
        (_, _) => StopAnswer::Unclear,
    }
}

#[must_use]
pub fn read_cleanup(printed: &Printed) -> CleanupAnswer {
    if Markers::of(printed.whole_lines()).flag("REMOVED") {
        CleanupAnswer::Removed
    } else {
        CleanupAnswer::Unclear
    }
}

/// The marker lines of an answer: name without `OA_`, and value.
struct Markers<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Markers<'a> {
    fn of(stdout: &'a str) -> Self {
        let marker = |line: &'a str| line.strip_prefix("OA_")?.split_once('=');
        Self(
            stdout
                .lines()
                .filter_map(marker)
                .map(|(name, value)| (name, value.trim_end()))
                .collect(),
        )
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.0
            .iter()
            .rev()
            .find(|(given, _)| *given == name)
            .map(|(_, value)| *value)
    }

    fn flag(&self, name: &str) -> bool {
        self.get(name) == Some("1")
    }

    fn is_last(&self, name: &str) -> bool {
        self.0.last().is_some_and(|(given, _)| *given == name)
    }
}

fn log_part(markers: &Markers, asked_offset: u64) -> Option<LogPart> {
    let size = number(markers.get("SIZE")?)?;
    let from = match markers.get("FROM") {
        Some(from) => number(from)?,
        None => asked_offset,
    };
    let mut data = STANDARD.decode(markers.get("DATA")?).ok()?;
    data.truncate(usize::try_from(size.saturating_sub(from)).unwrap_or(usize::MAX));
    Some(LogPart { from, size, data })
}

/// The exit status, if there is one; `None` when there is one that makes no sense.
#[expect(clippy::option_option, reason = "no exit, an exit, and nonsense are three things")]
fn exit(markers: &Markers) -> Option<Option<u8>> {
    match markers.get("EXIT") {
        Some(status) => Some(Some(u8::try_from(number(status)?).ok()?)),
        None => Some(None),
    }
}

/// Digits only, and no more than the database can keep.
fn number(text: &str) -> Option<u64> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse::<i64>().ok().and_then(|number| u64::try_from(number).ok())
}

/// Greater than 1, as every process id but init's, and within what Linux hands out.
fn pid(text: &str) -> Option<i64> {
    let pid = i64::try_from(number(text)?).ok()?;
    (pid > 1 && pid <= i64::from(i32::MAX)).then_some(pid)
}

fn last_line_pid(stdout: &str) -> Option<i64> {
    pid(stdout.lines().rev().map(str::trim).find(|line| !line.is_empty())?)
}

/// What was refused is shown to people: a short word, or nothing that the box made up.
fn refusal(what: &str) -> String {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if (1..=64).contains(&what.len()) && what.bytes().all(is_word) {
        what.to_owned()
    } else {
        "unknown".to_owned()
    }
}

#[cfg(test)]
mod tests;
