//! Webhooks: put, read, delete; their deliveries, and asking for one again.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::access::Caller;
use super::app::App;
use super::extract::{Asked, Body, DeliveryPlace, WebhookPlace};
use super::problem::{ErrorBody, Problem};
use super::runs::{PAGE_DEFAULT, PAGE_MAX};
use super::tokens::Scope;
use crate::runs::Secret;
use crate::webhooks::WebhookUrl;
use crate::webhooks::deliveries::{self, DeliveryView};
use crate::webhooks::registry::{self, PutError, WebhookName, WebhookView};
use crate::webhooks::sign::SigningSecret;

/// A webhook that is asked for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"url": "https://app.example.com/hooks/boxrun"}))]
pub(super) struct PutWebhook {
    /// Called by POST when a run ends: http or https, without user, password and fragment. Its query is shown to nobody.
    #[schema(
        max_length = 2048,
        pattern = r"^[hH][tT][tT][pP][sS]?://[A-Za-z0-9.-]+(:[0-9]{1,5})?([/?][!-~]*)?$"
    )]
    url: String,
    /// Signs the deliveries: `whsec_` and 24 to 64 bytes in base64. Without it one is made, or the one there is stays; given
    /// for a webhook that there is, it replaces the old one at once.
    #[schema(value_type = Option<String>, pattern = "^whsec_([A-Za-z0-9+/]{4}){8,21}([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")]
    #[serde(default)]
    secret: Option<Secret>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct WebhookBody {
    webhook: WebhookView,
    /// The signing secret, shown this once: of a webhook that is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    secret: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct WebhooksBody {
    /// By name.
    webhooks: Vec<WebhookView>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct DeliveryBody {
    delivery: DeliveryView,
}

#[derive(Serialize, ToSchema)]
pub(super) struct DeliveriesBody {
    /// Newest first.
    deliveries: Vec<DeliveryView>,
    /// `?after=` of the next page; null: this is the last one.
    next: Option<Uuid>,
}

#[utoipa::path(put, path = "/api/v1/webhooks/{name}", tag = "webhooks", operation_id = "putWebhook", request_body = PutWebhook,
    params(("name" = String, Path, pattern = "^[a-z0-9][a-z0-9_-]{0,63}$", example = "ci", description = "chosen by the caller")),
    responses((status = 200, description = "there already: it has this URL now, is enabled, and keeps its secret unless one was given", body = WebhookBody),
              (status = 201, description = "made; the secret is shown this once", body = WebhookBody),
              (status = 409, description = "the principal has 20 webhooks already", body = ErrorBody)))]
pub(super) async fn put(
    State(app): State<App>,
    caller: Caller,
    place: WebhookPlace,
    Body(asked): Body<PutWebhook>,
) -> Result<(StatusCode, Json<WebhookBody>), Problem> {
    caller.may(Scope::RunsWrite)?;
    let name = place.0.parse::<WebhookName>().map_err(|fault| wrong("name", fault))?;
    let url = WebhookUrl::parse(&asked.url).map_err(|fault| wrong("url", fault))?;
    let secret = asked.secret.as_ref().map(SigningSecret::parse).transpose();
    let secret = secret.map_err(|fault| wrong("secret", fault))?;
    let keys = app.secret_keys.as_ref().ok_or_else(|| {
        let message = "webhooks are signed, and their secrets sealed at rest: set BOXRUN_SECRET_KEYS";
        Problem::invalid("secrets_not_configured", message)
    })?;
    let pool = app.pool.get();
    let mut tx = pool.begin().await?;
    let put = registry::put(&mut tx, keys, &caller.principal, &name, &url, secret.as_ref()).await?;
    tx.commit().await?;
    let status = match put.made {
        Some(_) => StatusCode::CREATED,
        None => StatusCode::OK,
    };
    let secret = put.made.map(|secret| secret.text().expose().to_owned());
    let webhook = put.webhook;
    Ok((status, Json(WebhookBody { webhook, secret })))
}

#[utoipa::path(get, path = "/api/v1/webhooks", tag = "webhooks", operation_id = "listWebhooks",
    responses((status = 200, description = "of the principal", body = WebhooksBody,
        example = json!({"webhooks": [{"name": "ci", "url": "https://app.example.com/hooks/boxrun", "event": "run.finished",
                                        "disabled_at": null, "created_at": "2026-01-31T12:00:00.000000Z",
                                        "updated_at": "2026-01-31T12:00:00.000000Z"}]}))))]
pub(super) async fn list(State(app): State<App>, caller: Caller) -> Result<Json<WebhooksBody>, Problem> {
    caller.may(Scope::RunsRead)?;
    let mut conn = app.connection().await?;
    let webhooks = registry::list(&mut conn, &caller.principal).await?;
    Ok(Json(WebhooksBody { webhooks }))
}

#[utoipa::path(get, path = "/api/v1/webhooks/{name}", tag = "webhooks", operation_id = "getWebhook",
    params(("name" = String, Path, pattern = "^[a-z0-9][a-z0-9_-]{0,63}$", example = "ci")),
    responses((status = 200, body = WebhookBody)))]
pub(super) async fn get(
    State(app): State<App>,
    caller: Caller,
    place: WebhookPlace,
) -> Result<Json<WebhookBody>, Problem> {
    caller.may(Scope::RunsRead)?;
    let mut conn = app.connection().await?;
    let (_, webhook) = own(&mut conn, &caller, &place).await?;
    Ok(Json(WebhookBody { webhook, secret: None }))
}

#[utoipa::path(delete, path = "/api/v1/webhooks/{name}", tag = "webhooks", operation_id = "deleteWebhook",
    params(("name" = String, Path, pattern = "^[a-z0-9][a-z0-9_-]{0,63}$", example = "ci")),
    responses((status = 204, description = "gone with its deliveries, also those that are pending")))]
pub(super) async fn delete(State(app): State<App>, caller: Caller, place: WebhookPlace) -> Result<StatusCode, Problem> {
    caller.may(Scope::RunsWrite)?;
    let name = place.name()?;
    let mut conn = app.connection().await?;
    if registry::delete(&mut conn, &caller.principal, &name).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Problem::no_such_webhook())
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeliveriesQuery {
    /// At most so many, 1 to 200; 50 where nothing is said.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u16>,
    /// The `next` of the page before.
    #[param(value_type = Option<Uuid>)]
    after: Option<String>,
}

#[utoipa::path(get, path = "/api/v1/webhooks/{name}/deliveries", tag = "webhooks", operation_id = "listDeliveries",
    params(("name" = String, Path, pattern = "^[a-z0-9][a-z0-9_-]{0,63}$", example = "ci"), DeliveriesQuery),
    responses((status = 200, description = "ended ones for 30 days", body = DeliveriesBody)))]
pub(super) async fn list_deliveries(
    State(app): State<App>,
    caller: Caller,
    place: WebhookPlace,
    Asked(query): Asked<DeliveriesQuery>,
) -> Result<Json<DeliveriesBody>, Problem> {
    caller.may(Scope::RunsRead)?;
    let limit = query.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::invalid_request(format!("limit: 1 to {PAGE_MAX}")));
    }
    let after = query.after.as_deref().map(read_cursor).transpose()?;
    let mut conn = app.connection().await?;
    let (id, _) = own(&mut conn, &caller, &place).await?;
    let mut found = deliveries::list(&mut conn, id, after, limit + 1).await?;
    let more = found.len() > usize::from(limit);
    found.truncate(usize::from(limit));
    let next = found.last().filter(|_| more).map(|delivery| delivery.id);
    Ok(Json(DeliveriesBody {
        deliveries: found,
        next,
    }))
}

#[utoipa::path(post, path = "/api/v1/webhooks/{name}/deliveries/{delivery_id}/redeliver", tag = "webhooks",
    operation_id = "redeliver",
    params(("name" = String, Path, pattern = "^[a-z0-9][a-z0-9_-]{0,63}$", example = "ci"),
           ("delivery_id" = Uuid, Path, example = "01a23066-542e-7e22-aced-84a3182a8e14")),
    responses((status = 202, description = "due now, with all its attempts before it and the same id; one that is being attempted, right after that", body = DeliveryBody)))]
pub(super) async fn redeliver(
    State(app): State<App>,
    caller: Caller,
    place: DeliveryPlace,
) -> Result<(StatusCode, Json<DeliveryBody>), Problem> {
    caller.may(Scope::RunsWrite)?;
    let mut conn = app.connection().await?;
    let (webhook_id, _) = own(&mut conn, &caller, &place.webhook).await?;
    let id = place.delivery_id.ok_or_else(Problem::no_such_delivery)?;
    let delivery = deliveries::redeliver(&mut conn, webhook_id, id).await?;
    let delivery = delivery.ok_or_else(Problem::no_such_delivery)?;
    Ok((StatusCode::ACCEPTED, Json(DeliveryBody { delivery })))
}

/// The webhook of the caller's that the address names.
async fn own(
    conn: &mut sqlx::PgConnection,
    caller: &Caller,
    place: &WebhookPlace,
) -> Result<(Uuid, WebhookView), Problem> {
    let found = registry::find(conn, &caller.principal, &place.name()?).await?;
    found.ok_or_else(Problem::no_such_webhook)
}

fn read_cursor(text: &str) -> Result<Uuid, Problem> {
    let id = text.parse();
    id.map_err(|_| Problem::invalid_request("after: it is not the `next` of a page"))
}

fn wrong(field: &str, fault: impl std::fmt::Display) -> Problem {
    Problem::invalid_request(format!("{field}: {fault}"))
}

impl From<PutError> for Problem {
    fn from(error: PutError) -> Self {
        match error {
            PutError::LimitReached => {
                let message = format!(
                    "a principal has at most {} webhooks; delete one first",
                    registry::WEBHOOKS_MAX
                );
                Self::new(StatusCode::CONFLICT, "webhook_limit_reached", message)
            }
            PutError::Database(error) => error.into(),
        }
    }
}
