//! The API as OpenAPI, made from the handlers themselves.

use axum::extract::State;
use axum::response::Json;
use utoipa::openapi::link::LinkBuilder;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Content, OpenApi as Document, Ref, RefOr, Required};
use utoipa::{Modify, OpenApi};

use super::app::App;
use super::problem::ErrorBody;
use super::{conversations, runs, stream, webhooks};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "boxrun",
        description = "Runs long shell commands detached on remote boxes and follows each one durably until it ends. Every answer \
                       that is no success is `{\"error\": {\"code\", \"message\"}}`; programs decide by the code."
    ),
    paths(
        conversations::me, conversations::list_own, runs::list_own, runs::find,
        conversations::put, conversations::delete, conversations::attach, conversations::list, conversations::detach,
        runs::start, runs::list, runs::list_of_box, runs::get, runs::output, runs::timeline, runs::cancel, runs::ticket,
        stream::stream,
        webhooks::put, webhooks::list, webhooks::get, webhooks::delete, webhooks::list_deliveries, webhooks::redeliver,
    ),
    components(schemas(ErrorBody)),
    modifiers(&Tokens, &Errors, &RunsOfBoxes, &Links),
    security(("token" = []))
)]
struct Api;

/// `GET /openapi.json`
pub(super) async fn document(State(app): State<App>) -> Json<Document> {
    let mut document = Api::openapi();
    Limits(app.max_duration.as_secs()).modify(&mut document);
    Json(document)
}

/// How long a run may last is this process's own setting, in seconds.
struct Limits(u64);

impl Modify for Limits {
    fn modify(&self, document: &mut Document) {
        let schemas = document.components.get_or_insert_default();
        let start = schemas.schemas.get_mut("StartRun");
        if let Some(RefOr::T(Schema::Object(start))) = start
            && let Some(RefOr::T(Schema::Object(seconds))) = start.properties.get_mut("max_duration_seconds")
        {
            seconds.maximum = Some(self.0.into());
        }
    }
}

/// Everything asks for a token.
struct Tokens;

impl Modify for Tokens {
    fn modify(&self, document: &mut Document) {
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    }
}

/// Every operation can be refused.
struct Errors;

impl Modify for Errors {
    fn modify(&self, document: &mut Document) {
        let refusal = ResponseBuilder::new()
            .description("refused or failed: `error.code` says why, `error.message` what to do")
            .content(
                "application/json",
                Content::new(Some(RefOr::Ref(Ref::from_schema_name("ErrorBody")))),
            )
            .build();
        for operation in document.paths.paths.values_mut().flat_map(operations) {
            operation
                .responses
                .responses
                .insert("default".to_owned(), RefOr::T(refusal.clone()));
        }
    }
}

/// What is done with one run works by way of its box too.
struct RunsOfBoxes;

const OF_CONVERSATION: &str = "/api/v1/conversations/{conversation_id}/runs/{run_id}";
const OF_BOX: &str = "/api/v1/conversations/{conversation_id}/boxes/{box_id}/runs/{run_id}";

impl Modify for RunsOfBoxes {
    fn modify(&self, document: &mut Document) {
        let of_box: Vec<(String, PathItem)> = document
            .paths
            .paths
            .iter()
            .filter_map(|(path, item)| Some((format!("{OF_BOX}{}", path.strip_prefix(OF_CONVERSATION)?), item.clone())))
            .collect();
        for (path, mut item) in of_box {
            for operation in operations(&mut item) {
                if let Some(id) = &mut operation.operation_id {
                    id.push_str("OfBox");
                }
                operation
                    .parameters
                    .get_or_insert_default()
                    .insert(1, RefOr::T(box_parameter()));
            }
            document.paths.paths.insert(path, item);
        }
    }
}

/// What an answer names is asked for next: the conversation that was made, the run that was started.
struct Links;

impl Modify for Links {
    fn modify(&self, document: &mut Document) {
        let conversation = [("conversation_id", "$request.path.conversation_id")];
        let webhook = [("name", "$request.path.name")];
        let started = [
            ("conversation_id", "$request.path.conversation_id"),
            ("box_id", "$request.path.box_id"),
            ("run_id", "$response.body#/run/id"),
        ];
        let mut taking: Vec<(String, Vec<String>)> = Vec::new();
        for operation in document.paths.paths.values_mut().flat_map(operations) {
            let id = operation.operation_id.clone().unwrap_or_default();
            taking.push((id, path_parameters(operation)));
        }
        for operation in document.paths.paths.values_mut().flat_map(operations) {
            let (status, known): (&str, &[(&str, &str)]) = match operation.operation_id.as_deref() {
                Some("putConversation") => ("200", &conversation),
                Some("putWebhook") => ("201", &webhook),
                Some("startRun") => ("202", &started),
                _ => continue,
            };
            let Some(RefOr::T(response)) = operation.responses.responses.get_mut(status) else {
                continue;
            };
            for (target, names) in &taking {
                let takes_what_is_new = known
                    .last()
                    .is_some_and(|(new, _)| names.iter().any(|name| name == new));
                if takes_what_is_new {
                    let given = known.iter().filter(|(name, _)| names.iter().any(|taken| taken == name));
                    let link = given.fold(LinkBuilder::new().operation_id(target), |link, (name, value)| {
                        link.parameter(*name, *value)
                    });
                    response.links.insert(target.clone(), RefOr::T(link.build()));
                }
            }
        }
    }
}

fn path_parameters(operation: &Operation) -> Vec<String> {
    let parameters = operation.parameters.iter().flatten();
    let of_path = parameters.filter_map(|parameter| match parameter {
        RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Path => Some(parameter.name.clone()),
        _ => None,
    });
    of_path.collect()
}

fn box_parameter() -> Parameter {
    ParameterBuilder::new()
        .name("box_id")
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .schema(Some(
            ObjectBuilder::new()
                .schema_type(Type::String)
                .pattern(Some("^bx_[23456789abcdefghjkmnpqrstuvwxyz]{8}$"))
                .build(),
        ))
        .example(Some("bx_8bhkse3n".into()))
        .build()
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete]
        .into_iter()
        .flatten()
}
