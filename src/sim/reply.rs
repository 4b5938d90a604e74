//! Answers in the provider's shapes.

use hyper::StatusCode;
use hyper::http::HeaderValue;
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use super::boxes::SimBoxState;
use super::detached::{DetachedCommand, StatusReport};
use super::exec::{Finished, Logs};
use crate::ids::BoxId;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const JSON_LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson");

/// What goes back to the client.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub status: StatusCode,
    pub content_type: HeaderValue,
    pub retry_after: Option<HeaderValue>,
    pub body: String,
}

impl Reply {
    pub fn json(body: &impl Serialize) -> Self {
        let body = serde_json::to_string(body).expect("our own answers are JSON");
        Self {
            status: StatusCode::OK,
            content_type: JSON,
            retry_after: None,
            body,
        }
    }

    pub fn json_lines(body: String) -> Self {
        Self {
            status: StatusCode::OK,
            content_type: JSON_LINES,
            retry_after: None,
            body,
        }
    }

    /// An error in its full shape. The status must be one that exists; codes come from here, statuses from rules checked before.
    pub fn error(status: u16, code: &str, message: &str) -> Self {
        let body = json!({
            "ok": false, "type": "box.error", "status": status, "code": code, "message": message,
            "requestId": format!("req_{}", Uuid::new_v4().simple()),
            "error": { "code": code, "message": message, "status": status, "details": {} },
        });
        Self {
            status: StatusCode::from_u16(status).expect("a status"),
            ..Self::json(&body)
        }
    }

    pub fn no_such_box() -> Self {
        Self::error(404, "box_not_found", "there is no such box")
    }

    pub fn no_such_process() -> Self {
        Self::error(
            404,
            "process_not_found",
            "there is no such detached command on this box",
        )
    }

    /// The provider's word for a command that may have reached its box.
    pub fn direct_failed(message: &str) -> Self {
        Self::error(502, "box_direct_failed", message)
    }

    /// Something between us and the client answers in our place.
    pub fn gateway(status: u16) -> Self {
        Self::error(status, "upstream_error", "the simulator was told to answer like this")
    }

    /// HTML, from something in between.
    pub fn page(status: StatusCode) -> Self {
        let body = "<!doctype html><title>Maintenance</title><p>Back soon.</p>\n".to_owned();
        Self {
            status,
            content_type: HTML,
            retry_after: None,
            body,
        }
    }

    pub fn with_retry_after(mut self, value: Option<&str>) -> Self {
        self.retry_after = value.and_then(|value| HeaderValue::from_str(value).ok());
        self
    }

    /// The first half of the body, its length stated truly: valid HTTP, invalid JSON.
    pub fn truncated(mut self) -> Self {
        let mut middle = self.body.len() / 2;
        while !self.body.is_char_boundary(middle) {
            middle -= 1;
        }
        self.body.truncate(middle);
        self
    }

    pub fn box_info(id: &BoxId, state: SimBoxState) -> Self {
        Self::json(&json!({
            "ok": true, "type": "box.info",
            "box": {
                "id": id, "name": format!("simulated {id}"), "state": state, "setupStatus": "done",
                "desktopAvailable": false, "snapshotAvailable": false,
            },
        }))
    }

    pub fn finished(finished: &Finished) -> Self {
        Self::json(&json!({
            "ok": true, "type": "command.finished",
            "success": finished.exit_code == Some(0),
            "exitCode": finished.exit_code, "signal": finished.signal.map(signal_name),
            "stdout": finished.stdout.text(), "stderr": finished.stderr.text(),
            "stdoutTruncated": finished.stdout.truncated, "stderrTruncated": finished.stderr.truncated,
            "timedOut": finished.timed_out, "cwd": finished.cwd,
            "startedAt": finished.started_at, "finishedAt": finished.ended_at,
        }))
    }

    pub fn detached(command: &DetachedCommand, logs: &Logs) -> Self {
        Self::json(&json!({
            "ok": true, "type": "command.started", "success": true,
            "processId": command.pid, "pid": command.pid, "command": command.command, "cwd": command.cwd,
            "startedAt": command.started_at, "logPath": logs.stdout, "errLogPath": logs.stderr,
        }))
    }

    /// What is not known of a command that the box forgot is left out.
    pub fn status(report: &StatusReport) -> Self {
        let (command, end) = (report.command.as_ref(), report.end.as_ref());
        let exit_code = end.and_then(|end| end.exit_code);
        Self::json(&json!({
            "ok": true, "type": "command.status", "success": report.running || exit_code == Some(0),
            "processId": report.pid, "pid": report.pid,
            "status": match (command, report.running) { (None, _) => "lost", (_, true) => "running", (_, false) => "exited" },
            "known": command.is_some(), "running": report.running,
            "exitCode": exit_code, "signal": end.and_then(|end| end.signal).map(signal_name),
            "command": command.map(|command| &command.command), "cwd": command.map(|command| &command.cwd),
            "startedAt": command.map(|command| &command.started_at), "finishedAt": end.map(|end| &end.finished_at),
            "stdout": report.stdout.text(), "stderr": report.stderr.text(),
            "stdoutTruncated": report.stdout.truncated, "stderrTruncated": report.stderr.truncated,
            "logPath": report.logs.stdout, "errLogPath": report.logs.stderr,
        }))
    }
}

fn signal_name(signal: i32) -> String {
    match signal {
        1 => "SIGHUP".to_owned(),
        2 => "SIGINT".to_owned(),
        9 => "SIGKILL".to_owned(),
        15 => "SIGTERM".to_owned(),
        other => format!("SIG{other}"),
    }
}
