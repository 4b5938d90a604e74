//! The words of a box: its answers in the short notation of the scenario table, and what a request asks for.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::scripted_box::{Answer, Request};

/// What a request asks for, told by the markers of its script alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sent {
    GetBox,
    Dispatch,
    Probe,
    Poll,
    Stop,
    Cleanup,
}

impl Sent {
    pub fn of(request: &Request) -> Self {
        let Some(script) = &request.command else {
            return Self::GetBox;
        };
        let has = |marker: &str| script.contains(marker);
        let markers = [
            ("OPENAGENTS_RUN_EXISTS", Self::Dispatch),
            ("OA_REMOVED", Self::Cleanup),
            ("OA_CANCELLED", Self::Stop),
            ("OA_SIZE", Self::Poll),
            ("OA_PRESENT", Self::Probe),
        ];
        let found = markers.into_iter().find(|(marker, _)| has(marker));
        found.unwrap_or_else(|| panic!("a script without a marker: {script}")).1
    }
}

/// The offset that a poll or stop asks for.
pub fn offset_of(request: &Request) -> usize {
    let script = request.command.as_deref().unwrap_or_default();
    let line = script.lines().find_map(|line| line.strip_prefix("offset="));
    line.expect("a poll or stop names its offset")
        .parse()
        .expect("a number")
}

/// The box took the command.
pub fn started(pid: u32) -> Answer {
    Answer::stdout(format!("{pid}\n"))
}

/// Marker lines, written as `PRESENT=1 SIZE=5 DATA=hello ALIVE=1`; the data in plain.
pub fn says(markers: &str) -> Answer {
    let lines = markers.split_whitespace().map(|marker| {
        let (name, value) = marker.split_once('=').expect("a marker is NAME=value");
        match name {
            "DATA" => format!("OA_DATA={}\n", STANDARD.encode(value)),
            _ => format!("OA_{name}={value}\n"),
        }
    });
    Answer::stdout(lines.collect::<String>())
}

/// A poll's answer with `data`, which may be any bytes; `rest` as in [`says`].
pub fn log(size: usize, data: &[u8], rest: &str) -> Answer {
    let mut stdout = format!("OA_PRESENT=1\nOA_SIZE={size}\nOA_DATA={}\n", STANDARD.encode(data));
    for marker in rest.split_whitespace() {
        let _ = writeln!(stdout, "OA_{marker}");
    }
    Answer::stdout(stdout)
}

/// An error of the provider's, with a code of its own.
pub fn refuses(status: u16, code: &str) -> Answer {
    Answer::status(status, &serde_json::json!({ "ok": false, "code": code }))
}

/// An error of something in between.
pub fn fails(status: u16) -> Answer {
    Answer::raw(status, "text/html", "<html>Bad Gateway</html>")
}
