//! What a request is for. The simulator knows boxrun's scripts by their markers only, so that it stays independent of them.

use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RequestKind {
    /// `GET /boxes/{id}`
    Info,
    /// `GET /boxes/{id}/commands/{processId}`
    Status,
    Dispatch,
    Probe,
    Poll,
    Stop,
    Cleanup,
    /// Any other command.
    Other,
}

impl RequestKind {
    /// The kind of a command, by the markers that stand in one script alone.
    pub fn of_script(script: &str) -> Self {
        let has = |marker: &str| script.contains(marker);
        if has("OPENAGENTS_RUN_EXISTS") {
            Self::Dispatch
        } else if has("OA_REMOVED") {
            Self::Cleanup
        } else if has("OA_CANCELLED") {
            Self::Stop
        } else if has("OA_SIZE") {
            Self::Poll
        } else if has("OA_PRESENT") && has("OA_PID") {
            Self::Probe
        } else {
            Self::Other
        }
    }
}

/// The run that a script is about, by the run directory that it names.
pub(super) fn run_of_script(script: &str) -> Option<&str> {
    static RUN: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new("/box-runs/users/[A-Za-z0-9_-]{1,64}/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
            .expect("a pattern")
    });
    RUN.captures(script)
        .and_then(|found| found.get(1))
        .map(|id| id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_known_by_their_markers() {
        for (script, kind) in [
            (
                "mkdir x || echo OPENAGENTS_RUN_EXISTS; echo OA_TOMBSTONE=1",
                RequestKind::Dispatch,
            ),
            ("echo OA_PRESENT=1; echo OA_PID=3", RequestKind::Probe),
            ("echo OA_PRESENT=1; echo OA_SIZE=3", RequestKind::Poll),
            ("echo OA_CANCELLED=1; echo OA_SIZE=3", RequestKind::Stop),
            ("echo OA_REMOVED=1", RequestKind::Cleanup),
            ("echo OA_PRESENT=1", RequestKind::Other),
            ("ls", RequestKind::Other),
        ] {
            assert_eq!(RequestKind::of_script(script), kind, "{script}");
        }
    }

    #[test]
    fn the_run_is_read_from_its_directory() {
        let script = "dir=\"$HOME/.openagents/box-runs/users/u1/0190b8a0-0000-7000-8000-000000000001\"";
        assert_eq!(run_of_script(script), Some("0190b8a0-0000-7000-8000-000000000001"));
        assert_eq!(run_of_script("ls"), None);
    }
}
