//! Reading runs.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::run::{Run, load};
use super::{Principal, RunState};
use crate::ids::{BoxId, ConversationId, RunId};

/// There is no such run in the conversation; a foreign run and a missing one look alike.
#[derive(Debug, thiserror::Error)]
pub enum RunNotFound {
    #[error("box_run_not_found: there is no such run here")]
    NotFound,
    #[error("the run could not be read from the database")]
    Database(#[from] sqlx::Error),
}

/// Reads one run of a conversation.
///
/// # Errors
/// [`RunNotFound::NotFound`] also where the run belongs to another conversation.
pub async fn get_run(
    conn: &mut PgConnection,
    conversation_id: ConversationId,
    run_id: RunId,
) -> Result<Run, RunNotFound> {
    find(conn, run_id)
        .await?
        .filter(|run| run.conversation_id == conversation_id)
        .ok_or(RunNotFound::NotFound)
}

/// Reads one run of whatever conversation: for workers and operators.
///
/// # Errors
/// Only the database's.
pub async fn find(conn: &mut PgConnection, run_id: RunId) -> sqlx::Result<Option<Run>> {
    Ok(load(conn, &[run_id.0]).await?.pop())
}

/// Reads one run of whichever conversation of `owner` has it.
///
/// # Errors
/// Only the database's.
pub async fn find_own(conn: &mut PgConnection, run_id: RunId, owner: &Principal) -> sqlx::Result<Option<Run>> {
    let own = sqlx::query_scalar!(
        r#"select r.id from boxrun.runs r join boxrun.conversations c on c.id = r.conversation_id
            where r.id = $1 and c.principal_type = $2 and c.principal_id = $3"#,
        run_id.0,
        owner.kind,
        owner.id
    );
    let own = own.fetch_optional(&mut *conn).await?;
    Ok(load(conn, own.as_slice()).await?.pop())
}

/// Which runs to list; an empty filter lists all.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    pub conversation_id: Option<ConversationId>,
    /// Only runs in conversations that this principal owns.
    pub owner: Option<Principal>,
    pub box_id: Option<BoxId>,
    pub state: Option<RunState>,
    /// Only live runs (admitted, dispatched, running).
    pub active: bool,
    pub idempotency_key: Option<String>,
    /// Only runs older than this one: the last of the page before.
    pub after: Option<(DateTime<Utc>, RunId)>,
}

/// Lists at most `limit` runs, newest first.
///
/// # Errors
/// Only the database's.
pub async fn list_runs(conn: &mut PgConnection, filter: &RunFilter, limit: u16) -> sqlx::Result<Vec<Run>> {
    let (after_at, after_id) = filter.after.map(|(at, id)| (at, id.0)).unzip();
    let ids = sqlx::query_file_scalar!(
        "src/runs/sql/list.sql",
        filter.conversation_id.map(|id| id.0),
        filter.box_id.as_ref().map(BoxId::as_str),
        filter.state.map(RunState::as_str),
        filter.active,
        filter.idempotency_key,
        filter.owner.as_ref().map(|owner| owner.kind.as_str()),
        filter.owner.as_ref().map(|owner| owner.id.as_str()),
        after_at,
        after_id,
        i64::from(limit),
    )
    .fetch_all(&mut *conn)
    .await?;
    let mut runs = load(conn, &ids).await?;
    runs.sort_by_key(|run| std::cmp::Reverse((run.admitted_at, run.id)));
    Ok(runs)
}
