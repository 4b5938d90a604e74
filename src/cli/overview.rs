//! `boxrun queue`, `jobs`, `workers`: the queue as it stands.

use std::process::ExitCode;

use comfy_table::{Table, presets};

use super::desk::Desk;
use super::print::say;
use crate::queue::overview::{self, JobFilter, WORKER_SILENCE_SECONDS};
use crate::runs::view::rfc3339;

/// Characters of an error in a list.
const ERROR_WIDTH: usize = 80;

pub(super) async fn queue(json: bool) -> anyhow::Result<ExitCode> {
    let desk = Desk::open().await?;
    let kinds = overview::kinds(&desk.pool).await?;
    if json {
        say!("{}", serde_json::to_string_pretty(&kinds)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = table(&["KIND", "DUE", "SCHEDULED", "LEASED", "FAILING", "OLDEST DUE", "PAUSED"]);
    for kind in &kinds {
        let paused = match (kind.paused_at, &kind.paused_by, &kind.pause_reason) {
            (Some(at), Some(by), Some(reason)) => format!("since {} by {by}: {reason}", rfc3339(at)),
            _ => String::new(),
        };
        table.add_row([
            kind.kind.to_string(),
            kind.due.to_string(),
            kind.scheduled.to_string(),
            kind.leased.to_string(),
            kind.failing.to_string(),
            kind.oldest_due_seconds.map(age).unwrap_or_default(),
            paused,
        ]);
    }
    say!("{table}");
    if kinds.iter().all(|kind| kind.due + kind.scheduled + kind.leased == 0) {
        eprintln!("boxrun: no job is waiting; `boxrun run --box BOX -- COMMAND` makes one");
    } else if kinds.iter().any(|kind| kind.due > 0) && !desk.has_worker().await? {
        eprintln!("boxrun: no worker is running; start one with `boxrun worker`");
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn jobs(filter: JobFilter, json: bool) -> anyhow::Result<ExitCode> {
    let desk = Desk::open().await?;
    let jobs = overview::jobs(&desk.pool, filter).await?;
    if json {
        say!("{}", serde_json::to_string_pretty(&jobs)?);
        return Ok(ExitCode::SUCCESS);
    }
    if jobs.is_empty() {
        match (filter.failing, filter.kind) {
            (true, _) => eprintln!("boxrun: no job is failing; `boxrun jobs` lists all"),
            (false, Some(kind)) => eprintln!("boxrun: there is no {kind} job; `boxrun jobs` lists all"),
            (false, None) => eprintln!("boxrun: no job is waiting; `boxrun run --box BOX -- COMMAND` makes one"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = table(&["RUN", "STATE", "KIND", "DUE IN", "LEASED BY", "ATTEMPTS", "LAST ERROR"]);
    for job in jobs {
        let error = match (job.last_error_code, job.last_error) {
            (Some(code), Some(text)) if text.starts_with(&code) => text,
            (Some(code), Some(text)) => format!("{code}: {text}"),
            (code, text) => code.or(text).unwrap_or_default(),
        };
        table.add_row([
            job.run_id.to_string(),
            job.state,
            job.kind.to_string(),
            age(job.due_in_seconds),
            job.leased_by.unwrap_or_default(),
            job.attempts.to_string(),
            cut(&error),
        ]);
    }
    say!("{table}");
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn workers(json: bool) -> anyhow::Result<ExitCode> {
    let desk = Desk::open().await?;
    let workers = overview::workers(&desk.pool).await?;
    if json {
        say!("{}", serde_json::to_string_pretty(&workers)?);
        return Ok(ExitCode::SUCCESS);
    }
    if workers.is_empty() {
        eprintln!("boxrun: no worker is running; start one with `boxrun worker`");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = table(&["WORKER", "HOST", "VERSION", "STARTED", "HEARTBEAT", "IN HAND", "STATUS"]);
    for worker in workers {
        let status = if worker.heartbeat_age_seconds > WORKER_SILENCE_SECONDS {
            "gone"
        } else if worker.stopping {
            "stopping"
        } else if worker.drain_requested_at.is_some() {
            "draining"
        } else {
            "working"
        };
        table.add_row([
            worker.id,
            worker.host,
            worker.version,
            rfc3339(worker.started_at),
            format!("{} ago", age(worker.heartbeat_age_seconds)),
            worker.jobs_in_hand.to_string(),
            status.to_owned(),
        ]);
    }
    say!("{table}");
    Ok(ExitCode::SUCCESS)
}

pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    table
}

/// Seconds as people say them; tenths below a minute.
fn age(seconds: f64) -> String {
    let whole = seconds.abs();
    let sign = if seconds < 0.0 { "-" } else { "" };
    match whole {
        s if s < 60.0 => format!("{sign}{s:.1}s"),
        s if s < 3600.0 => format!("{sign}{:.0}m", s / 60.0),
        s if s < 2.0 * 86400.0 => format!("{sign}{:.1}h", s / 3600.0),
        s => format!("{sign}{:.0}d", s / 86400.0),
    }
}

/// One line of an error.
fn cut(error: &str) -> String {
    let mut line: String = error.lines().next().unwrap_or_default().to_owned();
    if let Some((at, _)) = line.char_indices().nth(ERROR_WIDTH) {
        line.truncate(at);
        line.push('…');
    }
    line
}
