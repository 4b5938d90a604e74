//! `boxrun ls`, `show`, `logs`, `cancel`.

use std::process::ExitCode;

use comfy_table::{ContentArrangement, Table, presets};

use crate::ids::RunId;
use crate::runs::RunView;
use crate::runs::view::rfc3339;

use super::LsArgs;
use super::follow::{Narration, ending, exit_status, follow};
use super::place::Place;
use super::print;
use super::print::say;

/// Characters of a command in a list.
const COMMAND_WIDTH: usize = 60;

pub(super) async fn ls(args: LsArgs) -> anyhow::Result<ExitCode> {
    let place = Place::open().await?;
    let views = place.list(args.state, args.all, args.limit).await?;
    if args.json {
        say!("{}", serde_json::to_string_pretty(&views)?);
        return Ok(ExitCode::SUCCESS);
    }
    if views.is_empty() {
        eprintln!("boxrun: no runs here yet; start one with `boxrun run --box BOX -- COMMAND`");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["RUN", "STATE", "BOX", "ADMITTED", "EXIT", "COMMAND"]);
    for view in views {
        table.add_row([
            view.id.to_string(),
            view.state.to_string(),
            view.box_id.to_string(),
            view.admitted_at.format("%Y-%m-%d %H:%M:%S").to_string(),
            view.exit_status
                .map(|status| status.to_string())
                .or(view.failure_reason)
                .unwrap_or_default(),
            one_line(&view.command),
        ]);
    }
    say!("{table}");
    Ok(ExitCode::SUCCESS)
}

fn one_line(command: &str) -> String {
    let line: String = command
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(COMMAND_WIDTH + 1)
        .collect();
    match line.char_indices().nth(COMMAND_WIDTH) {
        Some((cut, _)) => format!("{}…", &line[..cut]),
        None => line,
    }
}

pub(super) async fn show(id: RunId, json: bool) -> anyhow::Result<ExitCode> {
    let place = Place::open().await?;
    let view = place.find(id).await?;
    let timeline = place.timeline(&view).await?;
    if json {
        say!(
            "{}",
            serde_json::to_string_pretty(&serde_json::json!({"run": view, "events": timeline}))?
        );
        return Ok(ExitCode::SUCCESS);
    }
    let mut facts = Table::new();
    facts.load_style(presets::NOTHING);
    for (name, value) in facts_of(&view) {
        facts.add_row([name.to_owned(), value]);
    }
    say!("{facts}\n");
    let mut events = Table::new();
    events
        .load_style(presets::NOTHING)
        .set_header(["AT", "EVENT", "DETAIL", "WORKER"]);
    for entry in timeline {
        let detail = if entry.detail == serde_json::json!({}) {
            String::new()
        } else {
            entry.detail.to_string()
        };
        events.add_row([rfc3339(entry.at), entry.event, detail, entry.worker.unwrap_or_default()]);
    }
    say!("{events}");
    Ok(ExitCode::SUCCESS)
}

fn facts_of(view: &RunView) -> Vec<(&'static str, String)> {
    let state = if view.state.is_terminal() {
        ending(view)
    } else {
        view.state.to_string()
    };
    let output = match view.output_base_offset {
        0 => format!("{} bytes", view.output_offset),
        base => format!("{} bytes, the first {base} no longer kept", view.output_offset),
    };
    let some = |name, value: Option<String>| value.map(|value| (name, value));
    [
        Some(("run", view.id.to_string())),
        Some(("state", state)),
        Some(("box", view.box_id.to_string())),
        Some(("conversation", view.conversation_id.to_string())),
        Some(("principal", view.principal.to_string())),
        Some(("key", view.idempotency_key.clone())),
        Some(("command", view.command.clone())),
        some("directory", view.cwd.clone()),
        Some(("output", output)),
        Some(("admitted", rfc3339(view.admitted_at))),
        some("started", view.started_at.map(rfc3339)),
        some("finished", view.finished_at.map(rfc3339)),
        Some(("deadline", rfc3339(view.deadline_at))),
        some("cancel asked", view.cancellation_requested_at.map(rfc3339)),
        some("last seen", view.last_seen_at.map(rfc3339)),
        some("next poll", view.next_poll_at.map(rfc3339)),
        some(
            "failures",
            view.attempts
                .filter(|attempts| *attempts > 0)
                .map(|attempts| format!("{attempts} in a row")),
        ),
        some("last error", view.last_error.clone()),
        some("worker", view.worker.clone()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

pub(super) async fn logs(id: RunId, follow_on: bool, offset: i64, json: bool) -> anyhow::Result<ExitCode> {
    if offset < 0 {
        anyhow::bail!("invalid_output_offset: an offset is 0 or more");
    }
    let place = Place::open().await?;
    let run = place.find(id).await?;
    if follow_on {
        let ended = follow(&place, &run, offset, Narration::Silent).await?;
        eprintln!("boxrun: {}", ending(&ended));
        return Ok(ExitCode::from(exit_status(&ended)));
    }
    let read = place.output(&run, offset).await?;
    if json {
        say!("{}", serde_json::to_string_pretty(&read)?);
    } else {
        if read.truncated {
            eprintln!(
                "boxrun: {} bytes of output are no longer kept",
                read.output_base_offset - offset
            );
        }
        print::text(&read.output);
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn cancel(id: RunId, wait: bool, json: bool) -> anyhow::Result<ExitCode> {
    let place = Place::open().await?;
    let mut run = place.cancel(&place.find(id).await?).await?;
    if wait && !run.state.is_terminal() {
        run = follow(&place, &run, i64::MAX, Narration::Silent).await?;
    }
    if json {
        say!("{}", serde_json::to_string_pretty(&run)?);
    } else if run.state.is_terminal() {
        eprintln!("boxrun: {}", ending(&run));
    } else {
        eprintln!("boxrun: asked to end; a worker does it within moments");
    }
    Ok(ExitCode::SUCCESS)
}
