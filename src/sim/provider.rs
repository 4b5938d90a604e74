//! The provider's calls, well or badly answered.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::World;
use super::boxes::{NotStarted, SimBox, SimBoxState, Started};
use super::detached::Pid;
use super::exec::Finished;
use super::faults::{Ending, Fault, WorkTime};
use super::reply::Reply;
use super::request_kind::{RequestKind, run_of_script};
use super::server::ConnectionClosed;
use crate::ids::BoxId;

/// The longest `timeoutSeconds` that is taken.
const TIMEOUT_SECONDS_MAX: u64 = 600;
const TIMEOUT_SECONDS_DEFAULT: u64 = 30;
/// The most of each log that a status tells.
const TAIL_BYTES_MAX: u64 = 512 * 1024;
const LAST_LINE_MAX_CHARS: usize = 200;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CommandBody {
    command: String,
    /// Relative to the home.
    cwd: Option<String>,
    /// Whatever was sent: what is no whole number has an error of its own.
    timeout_seconds: Option<Value>,
    detached: Option<bool>,
}

#[derive(Debug)]
struct CommandRequest {
    command: String,
    cwd: Option<String>,
    timeout: Duration,
    detached: bool,
}

/// A command that is about to be worked on.
#[derive(Debug)]
struct Job {
    number: u64,
    kind: RequestKind,
    request: CommandRequest,
}

/// `GET /boxes/{id}`
pub(super) async fn info(world: &Arc<World>, id: &BoxId) -> Result<Reply, ConnectionClosed> {
    let fault = world.faults.strike(RequestKind::Info, id);
    let number = world.record.next_number();
    world
        .record
        .write(json!({ "event": "request", "number": number, "box": id, "kind": RequestKind::Info, "fault": fault }));
    let course = Fault::course(fault.as_ref());
    tokio::time::sleep(course.latency).await;
    let sim_box = match find(world, id) {
        Ok(sim_box) => sim_box,
        Err(reply) => return Ok(reply),
    };
    let reply = match sim_box.state().await {
        SimBoxState::Gone | SimBoxState::Missing => Reply::no_such_box(),
        state => Reply::box_info(id, state),
    };
    tokio::time::sleep(course.hold).await;
    end(course.ending, reply)
}

/// `GET /boxes/{id}/commands/{processId}`
pub(super) async fn status(
    world: &Arc<World>,
    id: &BoxId,
    pid: Pid,
    query: Option<&str>,
) -> Result<Reply, ConnectionClosed> {
    let tail_bytes = match read_tail_bytes(query) {
        Ok(tail_bytes) => tail_bytes,
        Err(reply) => return Ok(reply),
    };
    let fault = world.faults.strike(RequestKind::Status, id);
    let number = world.record.next_number();
    world.record.write(
        json!({ "event": "request", "number": number, "box": id, "kind": RequestKind::Status, "pid": pid, "fault": fault }),
    );
    let course = Fault::course(fault.as_ref());
    tokio::time::sleep(course.latency).await;
    let sim_box = match find(world, id) {
        Ok(sim_box) => sim_box,
        Err(reply) => return Ok(reply),
    };
    let reply = match sim_box.detached_status(pid, tail_bytes) {
        Ok(Some(report)) => Reply::status(&report),
        Ok(None) => Reply::no_such_process(),
        Err(error) => Reply::error(500, "internal_error", &format!("the logs can't be read: {error}")),
    };
    end(course.ending, reply)
}

/// `POST /boxes/{id}/commands`
pub(super) async fn command(world: &Arc<World>, id: &BoxId, body: &[u8]) -> Result<Reply, ConnectionClosed> {
    let request = match read_request(body) {
        Ok(request) => request,
        Err(reply) => return Ok(reply),
    };
    let kind = RequestKind::of_script(&request.command);
    let fault = world.faults.strike(kind, id);
    let number = world.record.next_number();
    let run = run_of_script(&request.command);
    world
        .record
        .write(json!({ "event": "request", "number": number, "box": id, "kind": kind, "run": run, "fault": fault }));
    let course = Fault::course(fault.as_ref());
    tokio::time::sleep(course.latency).await;
    let sim_box = match find(world, id) {
        Ok(sim_box) => sim_box,
        Err(reply) => return Ok(reply),
    };
    let job = Job { number, kind, request };
    let reply = match course.work {
        WorkTime::Never => Reply::gateway(500),
        // In a task of its own: it goes on when the client hangs up.
        WorkTime::BeforeTheAnswer => {
            let work = world.work.spawn(work(Arc::clone(world), sim_box, job));
            work.await.unwrap_or_else(|_| Reply::gateway(500))
        }
        WorkTime::AfterTheAnswer { delay } => {
            world.work.spawn(delayed_work(delay, Arc::clone(world), sim_box, job));
            Reply::gateway(502)
        }
    };
    tokio::time::sleep(course.hold).await;
    end(course.ending, reply)
}

fn end(ending: Ending, reply: Reply) -> Result<Reply, ConnectionClosed> {
    match ending {
        Ending::TrueAnswer => Ok(reply),
        Ending::HalfTheTrueAnswer => Ok(reply.truncated()),
        Ending::Instead(other) => Ok(other),
        Ending::ConnectionClosed => Err(ConnectionClosed),
    }
}

async fn delayed_work(delay: Duration, world: Arc<World>, sim_box: Arc<SimBox>, job: Job) {
    tokio::select! {
        () = world.closing.cancelled() => {}
        () = tokio::time::sleep(delay) => {
            work(Arc::clone(&world), sim_box, job).await;
        }
    }
}

/// Starts the script and sees it through, whoever still waits for the answer.
async fn work(world: Arc<World>, sim_box: Arc<SimBox>, job: Job) -> Reply {
    if job.request.detached {
        return work_detached(&world, sim_box, &job).await;
    }
    let Job { number, kind, request } = job;
    let id = &sim_box.id;
    let run = run_of_script(&request.command);
    let Started { script, generation } = match sim_box.start(&request.command, request.cwd.as_deref()).await {
        Ok(started) => started,
        Err(not_started) => {
            let reply = refusal(&not_started);
            let why = format!("{not_started:?}");
            world.record.write(
                json!({ "event": "refused", "number": number, "box": id, "kind": kind, "run": run, "why": why }),
            );
            return reply;
        }
    };
    world.record.write(
        json!({ "event": "started", "number": number, "box": id, "kind": kind, "run": run, "pid": script.pid() }),
    );
    let finished = match script.finish(request.timeout).await {
        Ok(finished) => finished,
        Err(error) => {
            return Reply::error(
                500,
                "internal_error",
                &format!("the script can't be waited for: {error}"),
            );
        }
    };
    world.record.write(json!({
        "event": "finished", "number": number, "box": id, "kind": kind, "run": run, "exit_code": finished.exit_code,
        "signal": finished.signal, "timed_out": finished.timed_out, "last_line": last_line(kind, &finished),
    }));
    if world.closing.is_cancelled() || sim_box.generation().await != generation {
        // The box, or the simulator, went down under the script: a provider does not know how far it came.
        return Reply::direct_failed("the box went away while the command ran");
    }
    Reply::finished(&finished)
}

/// Starts the script and answers at once; its end is written down when it comes.
async fn work_detached(world: &World, sim_box: Arc<SimBox>, job: &Job) -> Reply {
    let Job { number, kind, request } = job;
    let id = sim_box.id.clone();
    let (script, command) = match sim_box.start_detached(&request.command, request.cwd.as_deref()).await {
        Ok(started) => started,
        Err(not_started) => return refusal(&not_started),
    };
    let pid = command.pid;
    world
        .record
        .write(json!({ "event": "started", "number": number, "box": id, "kind": kind, "pid": pid, "detached": true }));
    let logs = sim_box.detached_logs(pid);
    world.work.spawn(async move {
        match script.finish().await {
            Ok(status) => sim_box.detached_ended(pid, status),
            Err(error) => tracing::error!(%error, pid, "the simulator can't wait for a detached command"),
        }
    });
    Reply::detached(&command, &logs)
}

/// Only of a dispatch: it names the pid or the reason of a refusal, and holds nothing of the command's output.
fn last_line(kind: RequestKind, finished: &Finished) -> Option<String> {
    if kind != RequestKind::Dispatch {
        return None;
    }
    finished
        .stdout
        .text()
        .lines()
        .last()
        .map(|line| line.chars().take(LAST_LINE_MAX_CHARS).collect())
}

fn refusal(not_started: &NotStarted) -> Reply {
    match not_started {
        NotStarted::Closing => Reply::error(503, "shutting_down", "the simulator is shutting down"),
        NotStarted::Failed(error) => Reply::error(
            500,
            "internal_error",
            &format!("the simulator can't start a shell: {error}"),
        ),
        NotStarted::WorkingDirectory => Reply::error(400, "invalid_cwd", "cwd must be a directory below the home"),
        NotStarted::State(state) => match state {
            SimBoxState::Init | SimBoxState::Provisioning | SimBoxState::Provisioned | SimBoxState::Cloning => {
                Reply::error(409, "box_starting", "the box is starting")
            }
            SimBoxState::Archiving | SimBoxState::Archived => Reply::error(409, "box_stopped", "the box is stopped"),
            SimBoxState::Gone => Reply::error(409, "box_gone", "the box is gone"),
            SimBoxState::Missing => Reply::no_such_box(),
            SimBoxState::Error => Reply::error(409, "box_error", "the box is in error"),
            SimBoxState::Ready | SimBoxState::Idle | SimBoxState::Running => {
                Reply::error(500, "internal_error", "a box that is ready refused a command")
            }
        },
    }
}

fn find(world: &World, id: &BoxId) -> Result<Arc<SimBox>, Reply> {
    match world.boxes.find(id) {
        Ok(found) => found.ok_or_else(Reply::no_such_box),
        Err(error) => Err(Reply::error(500, "internal_error", &error.to_string())),
    }
}

fn read_request(body: &[u8]) -> Result<CommandRequest, Reply> {
    let invalid = |message: &str| Reply::error(400, "invalid_request", message);
    let body: CommandBody =
        serde_json::from_slice(body).map_err(|error| invalid(&format!("the body is no command: {error}")))?;
    if body.command.is_empty() || body.command.contains('\0') {
        return Err(invalid("command must not be empty or hold NUL"));
    }
    let timeout_seconds = body
        .timeout_seconds
        .map_or(Some(TIMEOUT_SECONDS_DEFAULT), |value| value.as_u64())
        .filter(|seconds| (1..=TIMEOUT_SECONDS_MAX).contains(seconds))
        .ok_or_else(|| {
            Reply::error(
                400,
                "invalid_timeout",
                "timeoutSeconds must be a whole number from 1 to 600",
            )
        })?;
    Ok(CommandRequest {
        command: body.command,
        cwd: body.cwd,
        timeout: Duration::from_secs(timeout_seconds),
        detached: body.detached.unwrap_or(false),
    })
}

fn read_tail_bytes(query: Option<&str>) -> Result<u64, Reply> {
    let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let Some((_, text)) = pairs.into_iter().find(|(name, _)| name == "tailBytes") else {
        return Ok(TAIL_BYTES_MAX);
    };
    text.parse()
        .ok()
        .filter(|bytes| (1..=TAIL_BYTES_MAX).contains(bytes))
        .ok_or_else(|| {
            Reply::error(
                400,
                "invalid_request",
                "tailBytes must be a whole number from 1 to 524288",
            )
        })
}
