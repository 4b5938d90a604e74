//! Cleaning a box before it is given up: nothing of its runs stays on it, or what stayed is written down.
//!
//! The same script as a worker's cleanup sends; it may be sent by both at once, and says the same each time. Each run that
//! is clean is committed by itself, so that a request that takes too long goes on where it stood when it is repeated.

use std::time::Duration;

use axum::http::StatusCode;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::json;

use super::app::App;
use super::problem::Problem;
use crate::box_api::answers::{CleanupAnswer, Printed, read_cleanup};
use crate::box_api::scripts::{self, RunPlace};
use crate::box_api::{BoxError, BoxErrorCode};
use crate::ids::{BoxId, ConversationId};
use crate::queue;
use crate::runs::update::{self, RunUpdate};
use crate::runs::{Event, Run, conversations, events};

/// Directories that are removed at a time.
const AT_A_TIME: usize = 8;
/// Directories that are looked at in one statement.
const PAGE: i64 = 100;
/// A request that is not done within this may be repeated.
const PATIENCE: Duration = Duration::from_secs(50);
/// Who did it, in the timeline.
const BY: &str = "web";

/// Cleans all boxes of a conversation.
pub(super) async fn clean_conversation(app: &App, id: ConversationId, force: bool) -> Result<(), Problem> {
    let mut conn = app.connection().await?;
    let boxes = conversations::boxes_with_leftovers(&mut conn, id).await?;
    drop(conn);
    for box_id in boxes {
        clean_box(app, &box_id, force).await?;
    }
    Ok(())
}

/// Removes what the ended runs of a box left there.
///
/// # Errors
/// Where the box is stopped or does not answer; with `force` that is recorded instead.
pub(super) async fn clean_box(app: &App, id: &BoxId, force: bool) -> Result<(), Problem> {
    let cleaned = tokio::time::timeout(PATIENCE, clean(app, id, force)).await;
    cleaned.unwrap_or_else(|_| Err(Problem::busy("the box is still being cleaned; ask again")))
}

async fn clean(app: &App, id: &BoxId, force: bool) -> Result<(), Problem> {
    let mut after = None;
    loop {
        let mut conn = app.connection().await?;
        let runs = conversations::leftovers_on(&mut conn, id, after, PAGE).await?;
        drop(conn);
        let Some(last) = runs.last() else { return Ok(()) };
        after = Some(last.id);
        let removals: Vec<_> = runs
            .into_iter()
            .map(|run| remove(app.clone(), run, force).boxed())
            .collect();
        let mut removals = futures::stream::iter(removals).buffer_unordered(AT_A_TIME);
        while let Some(removed) = removals.next().await {
            removed?;
        }
    }
}

async fn remove(app: App, run: Run, force: bool) -> Result<(), Problem> {
    let (app, run) = (&app, &run);
    match ask(app, run).await {
        Ok(event) => record(app, run, Some(RunUpdate::directory_removed(run)), event).await,
        Err(problem) if force => {
            let event = Event::with("left_on_box", json!({"code": problem.code}));
            record(app, run, None, event).await
        }
        Err(problem) => Err(problem),
    }
}

/// Sends the cleanup script; the event says why nothing is left.
async fn ask(app: &App, run: &Run) -> Result<Event, Problem> {
    let script = scripts::cleanup(&RunPlace {
        run_id: run.id,
        run_directory: &run.run_directory,
    });
    let sent = app.client.run_command(&run.box_id, &script).await;
    match sent {
        Ok(output) => {
            let printed = Printed {
                stdout: &output.stdout,
                exit_code: output.exit_code,
                stdout_truncated: output.stdout_truncated,
            };
            match read_cleanup(&printed) {
                CleanupAnswer::Removed => Ok(Event::new("directory_removed")),
                CleanupAnswer::Unclear => {
                    let message = "the box did not say that a run directory is gone; try again, or force it";
                    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "box_unreachable", message).after(1))
                }
            }
        }
        Err(error) if is_gone(app, run, &error).await => {
            Ok(Event::with("directory_removed", json!({"box": error.code.as_str()})))
        }
        Err(error) => Err(error.into()),
    }
}

/// With its box, everything on it is gone. That a box is not found counts once the provider confirms it.
async fn is_gone(app: &App, run: &Run, error: &BoxError) -> bool {
    match error.code {
        BoxErrorCode::BoxGone => true,
        BoxErrorCode::BoxNotFound => {
            let confirmed = app.client.get_box(&run.box_id).await;
            matches!(confirmed, Err(error) if error.code == BoxErrorCode::BoxNotFound)
        }
        _ => false,
    }
}

async fn record(app: &App, run: &Run, update: Option<RunUpdate>, event: Event) -> Result<(), Problem> {
    let pool = app.pool.get();
    let mut tx = pool.begin().await?;
    if let Some(update) = update {
        // No row: a worker has written it down meanwhile, which is as good.
        update::apply(&mut tx, run, &update, i64::MAX).await?;
        queue::end_unheld(&mut tx, run.id).await?;
    }
    events::append(&mut tx, run.id, BY, &[event]).await?;
    tx.commit().await?;
    Ok(())
}
