//! Conversations and the boxes attached to them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;
use uuid::Uuid;

use super::run::{Principal, Run, load};
use crate::ids::{BoxId, ConversationId, RunId};

/// Why a box or conversation could not be had. Each begins with its stable code.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("conversation_not_found: there is no such conversation here")]
    ConversationNotFound,
    #[error("box_not_found: there is no such box here")]
    BoxNotFound,
    #[error("box_already_attached: the box is attached to conversation {0}; detach it there first")]
    AlreadyAttached(ConversationId),
    #[error("box_run_in_progress: a run is active on the box; wait for it or cancel it")]
    RunInProgress,
    #[error("the attachment could not be written to the database")]
    Database(#[from] sqlx::Error),
}

/// A box and where it is attached.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AttachedBox {
    #[schema(value_type = String, example = "bx_8bhkse3n")]
    pub id: BoxId,
    #[schema(value_type = Uuid)]
    pub conversation_id: ConversationId,
    #[serde(serialize_with = "super::view::time_if_any")]
    pub attached_at: Option<DateTime<Utc>>,
}

/// The conversation of a principal who did not name one: the same for the same principal, on every machine.
#[must_use]
pub fn default_conversation(principal: &Principal) -> ConversationId {
    // A namespace of our own, so that the ids meet nobody else's version 5 UUIDs.
    const NAMESPACE: Uuid = Uuid::from_u128(0x2f4b_9a3c_6d1e_5f70_8b92_a4c6_e8d0_1357);
    ConversationId(Uuid::new_v5(&NAMESPACE, principal.to_string().as_bytes()))
}

/// Creates a conversation, or finds it; it is owned by one principal for ever.
///
/// # Errors
/// [`AttachError::ConversationNotFound`] where it belongs to another principal.
pub async fn put_conversation(
    conn: &mut PgConnection,
    id: ConversationId,
    owner: &Principal,
) -> Result<(), AttachError> {
    sqlx::query!(
        "insert into boxrun.conversations (id, principal_type, principal_id) values ($1, $2, $3) on conflict do nothing",
        id.0,
        owner.kind,
        owner.id
    )
    .execute(&mut *conn)
    .await?;
    let ours = sqlx::query_scalar!(
        r#"select true as "ours!" from boxrun.conversations where id = $1 and principal_type = $2 and principal_id = $3"#,
        id.0,
        owner.kind,
        owner.id
    )
    .fetch_optional(conn)
    .await?;
    ours.map(drop).ok_or(AttachError::ConversationNotFound)
}

/// Attaches a box to a conversation of `owner`; attached there already, nothing changes.
///
/// # Errors
/// [`AttachError::AlreadyAttached`] names the owner's other conversation; a box of somebody else's is
/// [`AttachError::BoxNotFound`].
pub async fn attach_box(
    conn: &mut PgConnection,
    conversation_id: ConversationId,
    box_id: &BoxId,
    owner: &Principal,
) -> Result<(), AttachError> {
    put_conversation(conn, conversation_id, owner).await?;
    let attached = sqlx::query!(
        "insert into boxrun.boxes as b (id, conversation_id, attached_at) values ($1, $2, clock_timestamp())
         on conflict (id) do update set conversation_id = $2, attached_at = clock_timestamp()
          where b.conversation_id is null",
        box_id.as_str(),
        conversation_id.0
    )
    .execute(&mut *conn)
    .await?;
    if attached.rows_affected() == 1 {
        return Ok(());
    }
    let holder = sqlx::query!(
        r#"select c.id as "id: ConversationId", c.principal_type, c.principal_id
             from boxrun.boxes b join boxrun.conversations c on c.id = b.conversation_id where b.id = $1"#,
        box_id.as_str()
    )
    .fetch_optional(conn)
    .await?
    .ok_or(AttachError::BoxNotFound)?;
    if holder.id == conversation_id {
        Ok(())
    } else if holder.principal_type == owner.kind && holder.principal_id == owner.id {
        Err(AttachError::AlreadyAttached(holder.id))
    } else {
        Err(AttachError::BoxNotFound)
    }
}

/// Detaches a box from the conversation of `owner` that has it.
///
/// # Errors
/// [`AttachError::RunInProgress`] while a run is active on it; [`AttachError::BoxNotFound`] where it is not attached to a
/// conversation of `owner`.
pub async fn detach_box(conn: &mut PgConnection, box_id: &BoxId, owner: &Principal) -> Result<(), AttachError> {
    let found = sqlx::query_scalar!(
        r#"select true as "found!" from boxrun.boxes b join boxrun.conversations c on c.id = b.conversation_id
            where b.id = $1 and c.principal_type = $2 and c.principal_id = $3 for update of b"#,
        box_id.as_str(),
        owner.kind,
        owner.id
    )
    .fetch_optional(&mut *conn)
    .await?;
    found.ok_or(AttachError::BoxNotFound)?;
    let detached = sqlx::query!(
        "update boxrun.boxes b set conversation_id = null, attached_at = null
          where b.id = $1 and not exists (select from boxrun.runs r
            where r.box_id = b.id and r.state in ('admitted', 'dispatched', 'running'))",
        box_id.as_str()
    )
    .execute(conn)
    .await?;
    if detached.rows_affected() == 1 {
        Ok(())
    } else {
        Err(AttachError::RunInProgress)
    }
}

/// Lists the boxes attached to conversations of `owner`, by id.
///
/// # Errors
/// Only the database's.
pub async fn list_boxes(conn: &mut PgConnection, owner: &Principal) -> sqlx::Result<Vec<AttachedBox>> {
    sqlx::query_as!(
        AttachedBox,
        r#"select b.id as "id: BoxId", c.id as "conversation_id: ConversationId", b.attached_at
             from boxrun.boxes b join boxrun.conversations c on c.id = b.conversation_id
            where c.principal_type = $1 and c.principal_id = $2 order by b.id"#,
        owner.kind,
        owner.id
    )
    .fetch_all(conn)
    .await
}

/// The conversation of `owner` that has this box.
///
/// # Errors
/// Only the database's.
pub async fn conversation_of_box(
    conn: &mut PgConnection,
    box_id: &BoxId,
    owner: &Principal,
) -> sqlx::Result<Option<ConversationId>> {
    sqlx::query_scalar!(
        r#"select c.id as "id: ConversationId" from boxrun.boxes b join boxrun.conversations c on c.id = b.conversation_id
            where b.id = $1 and c.principal_type = $2 and c.principal_id = $3"#,
        box_id.as_str(),
        owner.kind,
        owner.id
    )
    .fetch_optional(conn)
    .await
}

/// The boxes attached to one conversation, by id.
///
/// # Errors
/// Only the database's.
pub async fn boxes_of(conn: &mut PgConnection, id: ConversationId) -> sqlx::Result<Vec<AttachedBox>> {
    sqlx::query_as!(
        AttachedBox,
        r#"select id as "id: BoxId", conversation_id as "conversation_id!: ConversationId", attached_at
             from boxrun.boxes where conversation_id = $1 order by id"#,
        id.0
    )
    .fetch_all(conn)
    .await
}

/// A run of the conversation that has not ended.
///
/// # Errors
/// Only the database's.
pub async fn active_run(conn: &mut PgConnection, id: ConversationId) -> sqlx::Result<Option<RunId>> {
    sqlx::query_scalar!(
        r#"select id as "id: RunId" from boxrun.runs
            where conversation_id = $1 and state in ('admitted', 'dispatched', 'running') limit 1"#,
        id.0
    )
    .fetch_optional(conn)
    .await
}

/// The run that is active on a box.
///
/// # Errors
/// Only the database's.
pub async fn active_run_on(conn: &mut PgConnection, box_id: &BoxId) -> sqlx::Result<Option<RunId>> {
    sqlx::query_scalar!(
        r#"select id as "id: RunId" from boxrun.runs
            where box_id = $1 and state in ('admitted', 'dispatched', 'running') limit 1"#,
        box_id.as_str()
    )
    .fetch_optional(conn)
    .await
}

/// The boxes on which ended runs of the conversation may have left something.
///
/// # Errors
/// Only the database's.
pub async fn boxes_with_leftovers(conn: &mut PgConnection, id: ConversationId) -> sqlx::Result<Vec<BoxId>> {
    sqlx::query_scalar!(
        r#"select distinct box_id as "box_id!: BoxId" from boxrun.runs
            where conversation_id = $1 and dispatch_attempted_at is not null and directory_removed_at is null
            order by 1"#,
        id.0
    )
    .fetch_all(conn)
    .await
}

/// Ended runs that may have left something on a box: at most `limit`, those after `after`.
///
/// # Errors
/// Only the database's.
pub(crate) async fn leftovers_on(
    conn: &mut PgConnection,
    box_id: &BoxId,
    after: Option<RunId>,
    limit: i64,
) -> sqlx::Result<Vec<Run>> {
    let ids = sqlx::query_scalar!(
        "select id from boxrun.runs
          where box_id = $1 and dispatch_attempted_at is not null and directory_removed_at is null
            and state not in ('admitted', 'dispatched', 'running') and ($2::uuid is null or id > $2)
          order by id limit $3",
        box_id.as_str(),
        after.map(|id| id.0),
        limit
    )
    .fetch_all(&mut *conn)
    .await?;
    load(conn, &ids).await
}

/// Erases a conversation with its runs, their output, timelines, jobs, tickets and deliveries to webhooks; its boxes are attached to none then.
///
/// # Errors
/// [`AttachError::RunInProgress`] while a run is active in it, or may be alive on its box still: the next run there has to
/// know of it. Nothing is erased then.
pub async fn erase(conn: &mut PgConnection, id: ConversationId) -> Result<(), AttachError> {
    // Whoever admits a run holds the box's row; with the boxes detached nobody admits one any more.
    sqlx::query!(
        "update boxrun.boxes set conversation_id = null, attached_at = null where conversation_id = $1",
        id.0
    )
    .execute(&mut *conn)
    .await?;
    let alive = sqlx::query_scalar!(
        r#"select exists (select from boxrun.runs where conversation_id = $1
             and (state in ('admitted', 'dispatched', 'running')
                  or state in ('cancelled', 'timed_out', 'lost') and dispatch_attempted_at is not null
                     and end_verified_at is null and cleanup_given_up_at is null)) as "alive!""#,
        id.0
    );
    if alive.fetch_one(&mut *conn).await? {
        return Err(AttachError::RunInProgress);
    }
    sqlx::query!("delete from boxrun.runs where conversation_id = $1", id.0)
        .execute(&mut *conn)
        .await?;
    sqlx::query!("delete from boxrun.conversations where id = $1", id.0)
        .execute(conn)
        .await?;
    Ok(())
}
