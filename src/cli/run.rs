//! `boxrun run`: admits a run and follows it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use crate::runs::{FailureReason, RunView};

use super::RunArgs;
use super::follow::{Narration, ending, exit_status, follow};
use super::place::Place;
use super::print::say;
use super::remote::Wanted;

/// How long a second Ctrl-C cancels the run instead of only detaching.
const SECOND_CTRL_C: Duration = Duration::from_secs(2);

pub(super) async fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let place = Place::open().await?;
    let (detach, json) = (args.detach, args.json);
    let run = place.start(wanted(&place, args).await?).await?;
    if !run.state.is_terminal() && !place.has_worker().await? {
        eprintln!("boxrun: no worker is running; the run waits until one is started with `boxrun worker`");
    }
    if detach {
        if json {
            say!("{}", serde_json::to_string_pretty(&run)?);
        } else {
            say!("{}", run.id);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let ended = if json {
        eprintln!("boxrun: run {} is admitted", run.id);
        // Nothing is printed: the offset lies beyond any output.
        follow_or_detach(&place, &run, i64::MAX, Narration::Silent).await?
    } else {
        follow_or_detach(&place, &run, 0, Narration::States).await?
    };
    let Some(ended) = ended else {
        return Ok(ExitCode::from(130));
    };
    if json {
        say!("{}", serde_json::to_string_pretty(&ended)?);
    } else {
        eprintln!("boxrun: {}", ending(&ended));
        say_what_was_refused(&place, &ended).await?;
    }
    Ok(ExitCode::from(exit_status(&ended)))
}

/// Of a run that the box refused to start: what it said.
async fn say_what_was_refused(place: &Place, run: &RunView) -> anyhow::Result<()> {
    if run.failure_reason.as_deref() != Some(FailureReason::LaunchRefused.as_str()) {
        return Ok(());
    }
    let timeline = place.timeline(run).await?;
    match timeline.iter().rev().find_map(|entry| entry.detail["refused"].as_str()) {
        Some("cwd") => eprintln!(
            "boxrun: there is no directory {} on the box",
            run.cwd.as_deref().unwrap_or("?")
        ),
        Some(what) => eprintln!("boxrun: the box refused it: {what}"),
        None => {}
    }
    Ok(())
}

async fn wanted(place: &Place, args: RunArgs) -> anyhow::Result<Wanted> {
    // The conversation asked for, the one that has the box, or the default one.
    let conversation = match args.conversation {
        Some(conversation) => conversation,
        None => match place.conversation_of(&args.box_id).await? {
            Some(conversation) => conversation,
            None => place.default_conversation(),
        },
    };
    Ok(Wanted {
        conversation,
        box_id: args.box_id,
        command: shell_text(args.command)?,
        key: args.key.unwrap_or_else(|| format!("cli-{}", Uuid::now_v7())),
        cwd: args.cwd,
        env: args.env.into_iter().collect(),
        max_duration: args.max_duration,
    })
}

/// One argument is shell text as it is; several are words, quoted so that the shell sees them as they were.
fn shell_text(mut arguments: Vec<String>) -> anyhow::Result<String> {
    if arguments.len() == 1 {
        return Ok(arguments.remove(0));
    }
    shlex::try_join(arguments.iter().map(String::as_str)).context("invalid_command: an argument has a NUL in it")
}

/// Follows the run; Ctrl-C once detaches, twice cancels. `None`: detached.
async fn follow_or_detach(
    place: &Place,
    run: &RunView,
    offset: i64,
    narration: Narration,
) -> anyhow::Result<Option<RunView>> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut following = Box::pin(follow(place, run, offset, narration));
    tokio::select! {
        ended = &mut following => return ended.map(Some),
        _ = interrupts.recv() => {}
    }
    eprintln!("\nboxrun: detached; the run goes on. Ctrl-C again now to cancel it; to follow it again:");
    eprintln!("    boxrun logs -f {}", run.id);
    if tokio::time::timeout(SECOND_CTRL_C, interrupts.recv()).await.is_err() {
        return Ok(None);
    }
    place.cancel(run).await?;
    eprintln!("boxrun: cancelling");
    tokio::select! {
        ended = &mut following => ended.map(Some),
        _ = interrupts.recv() => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_argument_is_shell_text_and_several_are_words() {
        let text = |words: &[&str]| shell_text(words.iter().map(ToString::to_string).collect()).unwrap();
        assert_eq!(text(&["echo $HOME && ls"]), "echo $HOME && ls");
        assert_eq!(text(&["echo", "a b", "$HOME"]), "echo 'a b' '$HOME'");
    }
}
