//! Conversations and the boxes attached to them.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::access::Caller;
use super::app::App;
use super::detach;
use super::extract::{Asked, BoxPlace, ConversationPlace};
use super::problem::{ErrorBody, Problem};
use super::runs::ready;
use super::tokens::Scope;
use crate::ids::ConversationId;
use crate::runs::Principal;
use crate::runs::conversations::{self, AttachedBox};

#[derive(Serialize, ToSchema)]
pub(super) struct ConversationBody {
    conversation: ConversationView,
}

#[derive(Serialize, ToSchema)]
struct ConversationView {
    #[schema(value_type = Uuid)]
    id: ConversationId,
    /// Its owner, for ever.
    principal: Principal,
}

#[derive(Serialize, ToSchema)]
pub(super) struct BoxBody {
    #[serde(rename = "box")]
    attached: AttachedBox,
}

#[derive(Serialize, ToSchema)]
pub(super) struct BoxesBody {
    boxes: Vec<AttachedBox>,
}

#[utoipa::path(put, path = "/api/v1/conversations/{conversation_id}", tag = "conversations", operation_id = "putConversation",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10", description = "chosen by the caller")),
    responses((status = 200, description = "made, or there already", body = ConversationBody)))]
pub(super) async fn put(
    State(app): State<App>,
    caller: Caller,
    ConversationPlace(id): ConversationPlace,
) -> Result<Json<ConversationBody>, Problem> {
    caller.may(Scope::RunsWrite)?;
    let mut conn = app.connection().await?;
    conversations::put_conversation(&mut conn, id, &caller.principal).await?;
    let conversation = ConversationView {
        id,
        principal: caller.principal,
    };
    Ok(Json(ConversationBody { conversation }))
}

#[utoipa::path(delete, path = "/api/v1/conversations/{conversation_id}", tag = "conversations",
    operation_id = "deleteConversation",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"), DetachQuery),
    responses((status = 204, description = "its runs, their output and timelines are erased, its boxes detached"),
              (status = 409, description = "a run is active, or a box could not be cleaned", body = ErrorBody)))]
pub(super) async fn delete(
    State(app): State<App>,
    caller: Caller,
    ConversationPlace(id): ConversationPlace,
    Asked(query): Asked<DetachQuery>,
) -> Result<StatusCode, Problem> {
    caller.may(Scope::RunsWrite)?;
    let mut conn = app.connection().await?;
    caller.own(&mut conn, id).await?;
    if let Some(active) = conversations::active_run(&mut conn, id).await? {
        return Err(Problem::run_in_progress(active));
    }
    drop(conn);
    detach::clean_conversation(&app, id, query.force()).await?;
    let pool = app.pool.get();
    let mut tx = pool.begin().await?;
    conversations::erase(&mut tx, id).await?;
    tx.commit().await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(put, path = "/api/v1/conversations/{conversation_id}/boxes/{box_id}", tag = "boxes",
    operation_id = "attachBox",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"), ("box_id" = String, Path, pattern = "^bx_[23456789abcdefghjkmnpqrstuvwxyz]{8}$", example = "bx_8bhkse3n")),
    responses((status = 200, description = "attached, or attached here already", body = BoxBody),
              (status = 409, description = "attached to another conversation of the same principal, or it does not take commands", body = ErrorBody)))]
pub(super) async fn attach(State(app): State<App>, caller: Caller, place: BoxPlace) -> Result<Json<BoxBody>, Problem> {
    caller.may(Scope::BoxesWrite)?;
    let mut conn = app.connection().await?;
    caller.own(&mut conn, place.conversation_id).await?;
    drop(conn);
    ready(&app, &place.box_id).await?;
    let pool = app.pool.get();
    let mut tx = pool.begin().await?;
    conversations::attach_box(&mut tx, place.conversation_id, &place.box_id, &caller.principal).await?;
    let attached = conversations::boxes_of(&mut tx, place.conversation_id).await?;
    tx.commit().await?;
    let attached = attached.into_iter().find(|attached| attached.id == place.box_id);
    let attached = attached.ok_or_else(Problem::no_such_box)?;
    Ok(Json(BoxBody { attached }))
}

#[utoipa::path(get, path = "/api/v1/conversations/{conversation_id}/boxes", tag = "boxes", operation_id = "listBoxes",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10")), responses((status = 200, body = BoxesBody)))]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    ConversationPlace(id): ConversationPlace,
) -> Result<Json<BoxesBody>, Problem> {
    caller.may(Scope::RunsRead)?;
    let mut conn = app.connection().await?;
    caller.own(&mut conn, id).await?;
    let boxes = conversations::boxes_of(&mut conn, id).await?;
    Ok(Json(BoxesBody { boxes }))
}

#[utoipa::path(get, path = "/api/v1/boxes", tag = "boxes", operation_id = "listOwnBoxes",
    responses((status = 200, description = "of all conversations of the principal", body = BoxesBody,
        example = json!({"boxes": [{"id": "bx_8bhkse3n", "conversation_id": "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10",
                                     "attached_at": "2026-01-31T12:00:00.000000Z"}]}))))]
pub(super) async fn list_own(State(app): State<App>, caller: Caller) -> Result<Json<BoxesBody>, Problem> {
    caller.may(Scope::RunsRead)?;
    let mut conn = app.connection().await?;
    let boxes = conversations::list_boxes(&mut conn, &caller.principal).await?;
    Ok(Json(BoxesBody { boxes }))
}

#[derive(Serialize, ToSchema)]
pub(super) struct MeBody {
    principal: Principal,
    #[schema(example = json!(["runs:read", "runs:write"]))]
    scopes: Vec<String>,
    /// Of a principal who names none: the same on the command line.
    #[schema(value_type = Uuid)]
    default_conversation_id: ConversationId,
}

#[utoipa::path(get, path = "/api/v1/me", tag = "access", operation_id = "whoAmI",
    responses((status = 200, description = "whom the token stands for, and what it allows", body = MeBody,
        example = json!({"principal": {"type": "user", "id": "42"}, "scopes": ["runs:read", "runs:write"],
                         "default_conversation_id": "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"}))))]
pub(super) async fn me(caller: Caller) -> Json<MeBody> {
    Json(MeBody {
        default_conversation_id: conversations::default_conversation(&caller.principal),
        scopes: caller.scopes().iter().map(ToString::to_string).collect(),
        principal: caller.principal,
    })
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DetachQuery {
    /// Also while a box can't be cleaned; what stays on it is recorded in the runs' timelines.
    force: Option<bool>,
}

impl DetachQuery {
    fn force(&self) -> bool {
        self.force.unwrap_or(false)
    }
}

#[utoipa::path(delete, path = "/api/v1/conversations/{conversation_id}/boxes/{box_id}", tag = "boxes",
    operation_id = "detachBox",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"), ("box_id" = String, Path, pattern = "^bx_[23456789abcdefghjkmnpqrstuvwxyz]{8}$", example = "bx_8bhkse3n"), DetachQuery),
    responses((status = 204, description = "nothing of its runs is left on the box, or with `force` what stayed is recorded"),
              (status = 409, description = "a run is active, or the box is stopped", body = ErrorBody),
              (status = 503, description = "the box does not answer", body = ErrorBody)))]
pub(super) async fn detach(
    State(app): State<App>,
    caller: Caller,
    place: BoxPlace,
    Asked(query): Asked<DetachQuery>,
) -> Result<StatusCode, Problem> {
    caller.may(Scope::BoxesWrite)?;
    let mut conn = app.connection().await?;
    caller.own(&mut conn, place.conversation_id).await?;
    let attached = conversations::conversation_of_box(&mut conn, &place.box_id, &caller.principal).await?;
    if attached != Some(place.conversation_id) {
        return Err(Problem::no_such_box());
    }
    if let Some(active) = conversations::active_run_on(&mut conn, &place.box_id).await? {
        return Err(Problem::run_in_progress(active));
    }
    drop(conn);
    detach::clean_box(&app, &place.box_id, query.force()).await?;
    let pool = app.pool.get();
    let mut tx = pool.begin().await?;
    conversations::detach_box(&mut tx, &place.box_id, &caller.principal).await?;
    tx.commit().await?;
    Ok(StatusCode::NO_CONTENT)
}
