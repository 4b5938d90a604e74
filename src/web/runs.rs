//! Runs: start, read, list, cancel, their output and timelines.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Json;
use chrono::DateTime;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::access::{Caller, Reader};
use super::app::App;
use super::extract::{Asked, Body, BoxPlace, ConversationPlace, RunName, RunPlace, WholeSeconds};
use super::problem::{ErrorBody, Problem};
use super::tokens::{self, Scope};
use crate::box_api::Readiness;
use crate::ids::{BoxId, ConversationId, RunId};
use crate::runs::view::rfc3339;
use crate::runs::{
    self, GitCredential, NewRun, OutputRead, Run, RunFilter, RunSecrets, RunState, RunView, Secret, TimelineEntry,
    conversations, events, output,
};
use crate::telemetry;

pub(super) const PAGE_DEFAULT: u16 = 50;
pub(super) const PAGE_MAX: u16 = 200;
/// The longest `?wait=`, in seconds.
const WAIT_MAX_SECONDS: u64 = 60;

/// A run that is asked for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"command": "make test", "idempotency_key": "build-42", "max_duration_seconds": 600}))]
pub(super) struct StartRun {
    /// Shell text, 1 to 8000 bytes of UTF-8, not blank, without NUL.
    #[schema(min_length = 1, max_length = 8000, pattern = r"^[^\x00]*[^\s\x00][^\x00]*$")]
    command: String,
    /// 1 to 256 bytes; the same key, box and command is the same run. The header `Idempotency-Key` serves too.
    #[schema(
        min_length = 1,
        max_length = 256,
        pattern = r"^[^\x00]+$",
        required,
        nullable = false
    )]
    idempotency_key: Option<String>,
    /// A shorter deadline than this process's own.
    #[schema(value_type = Option<u64>, minimum = 1)]
    max_duration_seconds: Option<WholeSeconds>,
    /// Absolute, or relative to the box's home directory.
    #[schema(min_length = 1, max_length = 4096, pattern = r"^[^\x00\n]+$")]
    cwd: Option<String>,
    /// Added to the command's environment; shown to everybody who may read the run.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<VariableName, VariableValue>>)]
    env: Option<BTreeMap<String, String>>,
    /// Added to the command's environment; sealed at rest, shown to nobody, masked in the output. At least 8 bytes each.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<VariableName, SecretValue>>)]
    secret_env: Option<BTreeMap<String, Secret>>,
    git_credential: Option<GitLogin>,
}

/// User and password for one git host, for as long as the run lasts.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct GitLogin {
    #[schema(example = "github.com", pattern = r"^[A-Za-z0-9.:\[\]-]{1,255}$")]
    host: String,
    #[schema(pattern = r"^[^\x00\r\n]+$")]
    username: String,
    #[schema(value_type = String, pattern = r"^[^\x00\r\n]{8,}$")]
    password: Secret,
}

/// A name of the command's environment.
#[derive(ToSchema)]
#[schema(pattern = "^(?!BOXRUN_)[A-Za-z_][A-Za-z0-9_]*$", max_length = 255)]
#[expect(dead_code, reason = "only its description is used")]
struct VariableName(String);

/// A value of the command's environment.
#[derive(ToSchema)]
#[schema(pattern = r"^[^\x00]*$")]
#[expect(dead_code, reason = "only its description is used")]
struct VariableValue(String);

/// A value that nobody is shown.
#[derive(ToSchema)]
#[schema(pattern = r"^[^\x00]{8,}$", min_length = 8)]
#[expect(dead_code, reason = "only its description is used")]
struct SecretValue(String);

#[derive(Serialize, ToSchema)]
pub(super) struct RunBody {
    run: RunView,
}

#[derive(Serialize, ToSchema)]
pub(super) struct RunsBody {
    /// Newest first.
    runs: Vec<RunView>,
    /// `?after=` of the next page; null: this is the last one.
    next: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct OutputBody {
    #[schema(value_type = Uuid)]
    run_id: RunId,
    output: OutputRead,
}

#[derive(Serialize, ToSchema)]
pub(super) struct EventsBody {
    /// Oldest first.
    events: Vec<TimelineEntry>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct TicketBody {
    #[schema(value_type = Uuid)]
    run_id: RunId,
    /// For `?ticket=` on the run, its output and its stream.
    ticket: String,
    #[schema(value_type = String, format = DateTime)]
    expires_at: String,
}

#[utoipa::path(post, path = "/api/v1/conversations/{conversation_id}/boxes/{box_id}/runs", tag = "runs",
    operation_id = "startRun", request_body = StartRun,
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"), ("box_id" = String, Path, pattern = "^bx_[23456789abcdefghjkmnpqrstuvwxyz]{8}$", example = "bx_8bhkse3n")),
    responses((status = 202, description = "admitted durably; a repeat of the same key, box and command gets the same run", body = RunBody),
              (status = 409, description = "another run is active on the box (`box_run_in_progress`), the key was used for another box or command, or the box does not take commands", body = ErrorBody)))]
pub(super) async fn start(
    State(app): State<App>,
    caller: Caller,
    place: BoxPlace,
    headers: HeaderMap,
    Body(asked): Body<StartRun>,
) -> Result<(StatusCode, Json<RunBody>), Problem> {
    caller.may(Scope::RunsWrite)?;
    let new = new_run(&app, &caller, place, &headers, asked)?;
    let admitted = admit(&app, &caller, new).await;
    telemetry::admission(match &admitted {
        Ok(Admitted::Now(_)) => "admitted",
        Ok(Admitted::Before(_)) => "repeated",
        Err(problem) => problem.code,
    });
    let (Admitted::Now(run) | Admitted::Before(run)) = admitted?;
    Ok((StatusCode::ACCEPTED, Json(RunBody { run: app.view(&run) })))
}

fn new_run(
    app: &App,
    caller: &Caller,
    place: BoxPlace,
    headers: &HeaderMap,
    asked: StartRun,
) -> Result<NewRun, Problem> {
    let key = idempotency_key(headers, asked.idempotency_key)?;
    let git_credential = asked.git_credential.map(|login| GitCredential {
        host: login.host,
        username: login.username,
        password: login.password,
    });
    Ok(NewRun {
        cwd: asked.cwd,
        env: asked.env.unwrap_or_default(),
        secrets: RunSecrets {
            env: asked.secret_env.unwrap_or_default(),
            git_credential,
        },
        secret_keys: app.secret_keys.clone(),
        max_duration: asked.max_duration_seconds.map(|seconds| Duration::from_secs(seconds.0)),
        limit: app.max_duration,
        ..NewRun::new(
            place.conversation_id,
            place.box_id,
            caller.principal.clone(),
            asked.command,
            key,
        )
    })
}

/// The key of the body or of the header; of both, when they are the same.
fn idempotency_key(headers: &HeaderMap, in_body: Option<String>) -> Result<String, Problem> {
    let wrong = |message: &str| Problem::invalid("invalid_idempotency_key", message);
    let in_header = headers
        .get("idempotency-key")
        .map(|value| std::str::from_utf8(value.as_bytes()).map(ToOwned::to_owned))
        .transpose()
        .map_err(|_| wrong("the header Idempotency-Key is UTF-8"))?;
    match (in_body, in_header) {
        (Some(body), Some(header)) if body != header => Err(wrong(
            "the header Idempotency-Key and idempotency_key in the body differ; send one of them",
        )),
        (Some(key), _) | (None, Some(key)) => Ok(key),
        (None, None) => Err(wrong(
            "send an idempotency key: idempotency_key in the body or the header Idempotency-Key, 1 to 256 bytes; the same key is the same run",
        )),
    }
}

/// A run that is durable.
enum Admitted {
    Now(Run),
    /// By an earlier call with the same key, box and command.
    Before(Run),
}

/// An exact repeat gets its run, also while the provider is down. Otherwise the provider is asked before anything is stored.
async fn admit(app: &App, caller: &Caller, mut new: NewRun) -> Result<Admitted, Problem> {
    runs::admission::check(&new)?;
    let mut conn = app.connection().await?;
    caller.own(&mut conn, new.conversation_id).await?;
    if let Some(run) = repeated(&mut conn, &new).await? {
        return Ok(Admitted::Before(run));
    }
    let attached = conversations::conversation_of_box(&mut conn, &new.box_id, &caller.principal).await?;
    if attached != Some(new.conversation_id) {
        return Err(Problem::no_such_box());
    }
    // No connection is kept while the provider thinks.
    drop(conn);
    ready(app, &new.box_id).await?;
    new.box_checked = true;
    let pool = app.pool.get();
    let mut tx = pool.begin().await?;
    let run = runs::start_run(&mut tx, new).await?;
    tx.commit().await?;
    Ok(Admitted::Now(run))
}

async fn repeated(conn: &mut sqlx::PgConnection, new: &NewRun) -> Result<Option<Run>, Problem> {
    let filter = RunFilter {
        conversation_id: Some(new.conversation_id),
        idempotency_key: Some(new.idempotency_key.clone()),
        ..RunFilter::default()
    };
    let known = runs::list_runs(conn, &filter, 1).await?;
    Ok(known
        .into_iter()
        .find(|run| run.box_id == new.box_id && run.command == new.command))
}

/// That the provider has the box, and that it takes commands.
pub(super) async fn ready(app: &App, id: &BoxId) -> Result<(), Problem> {
    match app.client.get_box(id).await?.readiness() {
        Readiness::Ready => Ok(()),
        Readiness::Starting => {
            let message = "the box is starting; try again in a moment";
            Err(Problem::new(StatusCode::CONFLICT, "box_not_ready", message))
        }
        Readiness::Stopped => {
            let message = "the box is stopped; start it at the provider, or use another";
            Err(Problem::new(StatusCode::CONFLICT, "box_stopped", message))
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OneRunQuery {
    /// Answer at the next change of the run, or after so many seconds (at most 60); a run that has ended at once.
    #[param(minimum = 0, maximum = 60)]
    wait: Option<u64>,
    /// Instead of a token.
    ticket: Option<String>,
}

#[utoipa::path(get, path = "/api/v1/conversations/{conversation_id}/runs/{run_id}", tag = "runs", operation_id = "getRun",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"), ("run_id" = Uuid, Path, example = "01a23066-542e-7e22-aced-84a3182a8e13"), OneRunQuery),
    responses((status = 200, body = RunBody)))]
pub(super) async fn get(
    State(app): State<App>,
    caller: Option<Caller>,
    place: RunPlace,
    Asked(query): Asked<OneRunQuery>,
) -> Result<Json<RunBody>, Problem> {
    let reader = Reader::of(&app, caller, query.ticket).await?;
    let wait = match query.wait {
        Some(seconds) if seconds > WAIT_MAX_SECONDS => {
            return Err(Problem::invalid_request(format!(
                "wait: 0 to {WAIT_MAX_SECONDS} seconds"
            )));
        }
        seconds => Duration::from_secs(seconds.unwrap_or(0)),
    };
    let mut conn = app.connection().await?;
    let mut run = reader.run(&mut conn, &place).await?;
    if !wait.is_zero() && !run.state.is_terminal() {
        drop(conn);
        let mut follower = app.followers.follow(&run)?;
        tokio::select! {
            () = follower.changed_since(&run) => {}
            () = tokio::time::sleep(wait) => {}
            () = app.stopping.cancelled() => {}
        }
        let mut conn = app.connection().await?;
        run = place.find(&mut conn).await?;
    }
    Ok(Json(RunBody { run: app.view(&run) }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only runs in this state.
    #[param(value_type = Option<RunState>, inline, example = "running")]
    state: Option<String>,
    /// Only runs on this box.
    #[param(pattern = "^bx_[23456789abcdefghjkmnpqrstuvwxyz]{8}$", example = "bx_8bhkse3n")]
    box_id: Option<String>,
    /// Only the run with this key.
    #[param(pattern = r"^[^\x00]*$")]
    idempotency_key: Option<String>,
    /// At most so many, 1 to 200; 50 where nothing is said.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u16>,
    /// The `next` of the page before.
    #[param(pattern = "^[0-9]{16}\\.[0-9a-f]{32}$")]
    after: Option<String>,
}

#[utoipa::path(get, path = "/api/v1/conversations/{conversation_id}/runs", tag = "runs", operation_id = "listRuns",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"), ListQuery), responses((status = 200, body = RunsBody)))]
pub(super) async fn list(
    State(app): State<App>,
    caller: Caller,
    ConversationPlace(conversation): ConversationPlace,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<RunsBody>, Problem> {
    page(&app, &caller, Some(conversation), None, query).await
}

#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", operation_id = "listOwnRuns", params(ListQuery),
    responses((status = 200, description = "of all conversations of the principal", body = RunsBody)))]
pub(super) async fn list_own(
    State(app): State<App>,
    caller: Caller,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<RunsBody>, Problem> {
    page(&app, &caller, None, None, query).await
}

#[utoipa::path(get, path = "/api/v1/runs/{run_id}", tag = "runs", operation_id = "findRun",
    params(("run_id" = Uuid, Path, example = "01a23066-542e-7e22-aced-84a3182a8e13")),
    responses((status = 200, description = "whichever conversation of the principal has it", body = RunBody)))]
pub(super) async fn find(
    State(app): State<App>,
    caller: Caller,
    RunName(id): RunName,
) -> Result<Json<RunBody>, Problem> {
    caller.may(Scope::RunsRead)?;
    let mut conn = app.connection().await?;
    let run = runs::read::find_own(&mut conn, id, &caller.principal).await?;
    let run = run.ok_or_else(Problem::no_such_run)?;
    Ok(Json(RunBody { run: app.view(&run) }))
}

#[utoipa::path(get, path = "/api/v1/conversations/{conversation_id}/boxes/{box_id}/runs", tag = "runs",
    operation_id = "listRunsOfBox",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"), ("box_id" = String, Path, pattern = "^bx_[23456789abcdefghjkmnpqrstuvwxyz]{8}$", example = "bx_8bhkse3n"), ListQuery),
    responses((status = 200, body = RunsBody)))]
pub(super) async fn list_of_box(
    State(app): State<App>,
    caller: Caller,
    place: BoxPlace,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<RunsBody>, Problem> {
    page(&app, &caller, Some(place.conversation_id), Some(place.box_id), query).await
}

async fn page(
    app: &App,
    caller: &Caller,
    conversation: Option<ConversationId>,
    of_box: Option<BoxId>,
    query: ListQuery,
) -> Result<Json<RunsBody>, Problem> {
    caller.may(Scope::RunsRead)?;
    let limit = query.limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::invalid_request(format!("limit: 1 to {PAGE_MAX}")));
    }
    let state = query.state.as_deref().map(state).transpose()?;
    let asked_box = query.box_id.map(|id| id.parse::<BoxId>()).transpose();
    let asked_box = asked_box.map_err(|wrong| Problem::invalid("invalid_box_id", wrong.to_string()))?;
    if query.idempotency_key.as_deref().is_some_and(|key| key.contains('\0')) {
        return Err(Problem::invalid("invalid_idempotency_key", "a key has no NUL"));
    }
    let after = query.after.as_deref().map(read_cursor).transpose()?;
    let filter = RunFilter {
        conversation_id: conversation,
        owner: conversation.is_none().then(|| caller.principal.clone()),
        box_id: of_box.clone().or_else(|| asked_box.clone()),
        state,
        idempotency_key: query.idempotency_key,
        after,
        ..RunFilter::default()
    };
    let mut conn = app.connection().await?;
    if let Some(conversation) = conversation {
        caller.own(&mut conn, conversation).await?;
    }
    // Of two boxes there is no run.
    let is_empty = of_box.is_some() && asked_box.is_some() && of_box != asked_box;
    let mut found = if is_empty {
        Vec::new()
    } else {
        runs::list_runs(&mut conn, &filter, limit + 1).await?
    };
    let more = found.len() > usize::from(limit);
    found.truncate(usize::from(limit));
    let next = found.last().filter(|_| more).map(cursor);
    let runs = found.iter().map(|run| app.view(run)).collect();
    Ok(Json(RunsBody { runs, next }))
}

fn state(text: &str) -> Result<RunState, Problem> {
    let known = RunState::ALL.iter().find(|state| state.as_str() == text);
    known.copied().ok_or_else(|| {
        let names: Vec<_> = RunState::ALL.iter().map(|state| state.as_str()).collect();
        Problem::invalid_request(format!("state: one of {}", names.join(", ")))
    })
}

/// Where a page ends, for the next one to begin behind it.
fn cursor(last: &Run) -> String {
    format!("{:016}.{}", last.admitted_at.timestamp_micros(), last.id.0.simple())
}

fn read_cursor(text: &str) -> Result<(DateTime<chrono::Utc>, RunId), Problem> {
    let read = || {
        let (micros, id) = text.split_once('.')?;
        let is_whole = micros.len() == 16 && id.len() == 32 && micros.bytes().all(|byte| byte.is_ascii_digit());
        let at = DateTime::from_timestamp_micros(micros.parse().ok()?)?;
        Some((at, id.parse().ok()?)).filter(|_| is_whole)
    };
    read().ok_or_else(|| Problem::invalid_request("after: it is not the `next` of a page"))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OutputQuery {
    /// From this byte of the output on; past the end it is empty.
    #[param(minimum = 0, value_type = Option<i64>)]
    pub offset: Option<String>,
    /// Instead of a token.
    pub ticket: Option<String>,
}

impl OutputQuery {
    pub fn offset(&self) -> Result<i64, Problem> {
        self.offset.as_deref().map_or(Ok(0), parse_offset)
    }
}

pub(super) fn parse_offset(text: &str) -> Result<i64, Problem> {
    let offset = text.parse::<i64>().ok().filter(|offset| *offset >= 0);
    offset.ok_or_else(|| Problem::invalid("invalid_output_offset", "an offset is a whole number, 0 or more"))
}

#[utoipa::path(get, path = "/api/v1/conversations/{conversation_id}/runs/{run_id}/output", tag = "runs",
    operation_id = "readOutput",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"), ("run_id" = Uuid, Path, example = "01a23066-542e-7e22-aced-84a3182a8e13"), OutputQuery),
    responses((status = 200, body = OutputBody)))]
pub(super) async fn output(
    State(app): State<App>,
    caller: Option<Caller>,
    place: RunPlace,
    Asked(query): Asked<OutputQuery>,
) -> Result<Json<OutputBody>, Problem> {
    let offset = query.offset()?;
    let reader = Reader::of(&app, caller, query.ticket).await?;
    let mut conn = app.connection().await?;
    let run = reader.run(&mut conn, &place).await?;
    let output = output::read(&mut conn, run.id, offset).await?;
    let output = output.ok_or_else(Problem::no_such_run)?;
    Ok(Json(OutputBody { run_id: run.id, output }))
}

#[utoipa::path(get, path = "/api/v1/conversations/{conversation_id}/runs/{run_id}/events", tag = "runs",
    operation_id = "listEvents",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"), ("run_id" = Uuid, Path, example = "01a23066-542e-7e22-aced-84a3182a8e13")), responses((status = 200, body = EventsBody)))]
pub(super) async fn timeline(
    State(app): State<App>,
    caller: Caller,
    place: RunPlace,
) -> Result<Json<EventsBody>, Problem> {
    caller.may(Scope::RunsRead)?;
    let mut conn = app.connection().await?;
    let run = caller.run(&mut conn, &place).await?;
    let events = events::timeline(&mut conn, run.id).await?;
    Ok(Json(EventsBody { events }))
}

#[utoipa::path(post, path = "/api/v1/conversations/{conversation_id}/runs/{run_id}/cancel", tag = "runs",
    operation_id = "cancelRun",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"), ("run_id" = Uuid, Path, example = "01a23066-542e-7e22-aced-84a3182a8e13")),
    responses((status = 202, description = "asked for durably, or ended already", body = RunBody)))]
pub(super) async fn cancel(
    State(app): State<App>,
    caller: Caller,
    place: RunPlace,
) -> Result<(StatusCode, Json<RunBody>), Problem> {
    caller.may(Scope::RunsWrite)?;
    let pool = app.pool.get();
    let mut tx = pool.begin().await?;
    caller.run(&mut tx, &place).await?;
    let run = runs::cancel(&mut tx, place.conversation_id, place.run_id).await?;
    tx.commit().await?;
    Ok((StatusCode::ACCEPTED, Json(RunBody { run: app.view(&run) })))
}

#[utoipa::path(post, path = "/api/v1/conversations/{conversation_id}/runs/{run_id}/tickets", tag = "runs",
    operation_id = "createTicket",
    params(("conversation_id" = Uuid, Path, example = "3f0c5f4e-6a39-4c6e-9f0a-1f4d3a9f2b10"), ("run_id" = Uuid, Path, example = "01a23066-542e-7e22-aced-84a3182a8e13")),
    responses((status = 201, description = "good for ten minutes, for this run, to read", body = TicketBody)))]
pub(super) async fn ticket(
    State(app): State<App>,
    caller: Caller,
    place: RunPlace,
) -> Result<(StatusCode, Json<TicketBody>), Problem> {
    caller.may(Scope::RunsRead)?;
    let mut conn = app.connection().await?;
    let run = caller.run(&mut conn, &place).await?;
    let made = tokens::create_ticket(&mut conn, run.id, caller.token_id).await?;
    let body = TicketBody {
        run_id: run.id,
        ticket: made.ticket,
        expires_at: rfc3339(made.expires_at),
    };
    Ok((StatusCode::CREATED, Json(body)))
}
