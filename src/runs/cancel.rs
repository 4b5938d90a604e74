//! Asking a run to end.

use sqlx::PgConnection;

use super::read::{RunNotFound, get_run};
use super::run::Run;
use crate::ids::{ConversationId, RunId};

/// Asks a run to end, inside the caller's transaction, and returns it as it is then.
///
/// A terminal run stays as it is. A run of which nothing was sent is `cancelled` here and now, without a word to the box:
/// the mirror image of the dispatch claim, which is only taken while no cancel is asked for. Any other run gets
/// `cancellation_requested_at`, once, and a worker ends it on the box within milliseconds of the commit.
///
/// # Errors
/// [`RunNotFound::NotFound`] also where the run belongs to another conversation.
pub async fn cancel(
    conn: &mut PgConnection,
    conversation_id: ConversationId,
    run_id: RunId,
) -> Result<Run, RunNotFound> {
    get_run(conn, conversation_id, run_id).await?;
    sqlx::query!("select boxrun.request_cancel($1)", run_id.0)
        .execute(&mut *conn)
        .await?;
    get_run(conn, conversation_id, run_id).await
}
