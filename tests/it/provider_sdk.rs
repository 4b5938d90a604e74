//! The provider's own SDK for Python, unchanged, can't tell the simulator from the provider.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use boxrun::ids::BoxId;
use boxrun::sim::{Fault, FaultRule, FaultTarget, SimBoxState, SimOptions, Simulator, Work};
use secrecy::SecretString;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::support::wait::wait_until;

const BOX: &str = "bx_8bhkse3n";
const KEY: &str = "provider-sdk-key";

fn box_id() -> BoxId {
    BOX.parse().unwrap()
}

/// Where `bin/_venv` puts the SDK.
fn python() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("sdk/bin/python");
    assert!(
        python.exists(),
        "the provider's SDK is not in {}: run bin/_venv sdk (bin/test does)",
        target.join("sdk").display()
    );
    python
}

async fn simulator(root: &Path) -> Simulator {
    let options = SimOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        root: root.to_owned(),
        key: SecretString::from(KEY),
        boxes: vec![box_id()],
        allow_remote: false,
    };
    Simulator::start(options).await.unwrap()
}

/// A program that makes calls with the SDK; it ends with the test.
struct Sdk {
    _program: Child,
    calls: ChildStdin,
    outcomes: Lines<BufReader<ChildStdout>>,
}

impl Sdk {
    fn new(simulator: &Simulator, key: &str) -> Self {
        let mut program = Command::new(python())
            // Values that the SDK would refuse, sent all the same, make it warn.
            .args(["-I", "-B", "-W", "ignore"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/sdk/calls.py"))
            .arg(simulator.url().join("api/box/v1").unwrap().as_str())
            .arg(key)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            calls: program.stdin.take().unwrap(),
            outcomes: BufReader::new(program.stdout.take().unwrap()).lines(),
            _program: program,
        }
    }

    async fn call(&mut self, call: Value) -> Value {
        self.calls.write_all(format!("{call}\n").as_bytes()).await.unwrap();
        let line = self.outcomes.next_line().await.unwrap();
        let line = line.unwrap_or_else(|| panic!("the program with the SDK died of {call}"));
        serde_json::from_str(&line).unwrap()
    }

    async fn returned(&mut self, model: &str, call: Value) -> Value {
        let mut outcome = self.call(call.clone()).await;
        assert_eq!(outcome["returned"], model, "{call}: {outcome}");
        outcome["value"].take()
    }

    async fn command(&mut self, request: Value) -> Value {
        let call = json!({ "call": "command", "box": BOX, "request": request });
        self.returned("CommandResponse", call).await
    }

    async fn start(&mut self, command: &str) -> Value {
        let request = json!({ "command": command, "detached": true });
        let call = json!({ "call": "command", "box": BOX, "request": request });
        self.returned("CommandStartedResponse", call).await
    }

    async fn status(&mut self, process: &Value) -> Value {
        let call = json!({ "call": "command_status", "box": BOX, "process": process });
        self.returned("CommandStatusResponse", call).await
    }

    /// A refusal comes in the provider's envelope, which the SDK must be able to read.
    async fn refused(&mut self, call: Value, exception: &str, status: u16, code: &str) {
        let outcome = self.call(call.clone()).await;
        let expected = json!({ "raised": exception, "status": status, "code": code, "envelope": "ErrorEnvelope" });
        assert_eq!(outcome, expected, "{call}");
    }
}

struct Setting {
    simulator: Simulator,
    sdk: Sdk,
    root: TempDir,
}

impl Setting {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let simulator = simulator(root.path()).await;
        let sdk = Sdk::new(&simulator, KEY);
        Self { simulator, sdk, root }
    }
}

#[tokio::test]
async fn the_sdk_gets_a_box_in_each_state() {
    let Setting {
        simulator,
        mut sdk,
        root: _root,
    } = Setting::new().await;
    let get = json!({ "call": "get", "box": BOX });
    for (state, word) in [
        (SimBoxState::Init, "init"),
        (SimBoxState::Provisioning, "provisioning"),
        (SimBoxState::Provisioned, "provisioned"),
        (SimBoxState::Cloning, "cloning"),
        (SimBoxState::Archiving, "archiving"),
        (SimBoxState::Archived, "archived"),
        (SimBoxState::Error, "error"),
        (SimBoxState::Running, "running"),
        (SimBoxState::Idle, "idle"),
        (SimBoxState::Ready, "ready"),
    ] {
        simulator.set_box_state(&box_id(), state).await.unwrap();
        let info = sdk.returned("BoxInfoResponse", get.clone()).await;
        assert_eq!(
            (&info["type"], &info["box"]["id"], &info["box"]["state"]),
            (&json!("box.info"), &json!(BOX), &json!(word))
        );
    }
    let wait = json!({ "call": "wait_until_ready", "box": BOX });
    assert_eq!(sdk.returned("Box", wait.clone()).await["state"], "ready");
    simulator.stop_box(&box_id()).await.unwrap();
    let outcome = sdk.call(wait).await;
    assert_eq!(outcome["text"], "Box entered terminal state archived", "{outcome}");
    simulator.stop().await;
}

#[tokio::test]
async fn the_sdk_runs_a_command() {
    let Setting {
        simulator,
        mut sdk,
        root,
    } = Setting::new().await;
    let request = json!({ "command": "mkdir -p work; echo out; echo err >&2; exit 7", "timeoutSeconds": 600 });
    let answer = sdk.command(request).await;
    assert_eq!(
        (&answer["success"], &answer["exitCode"], &answer["timedOut"]),
        (&json!(false), &json!(7), &json!(false))
    );
    assert_eq!(
        (&answer["stdout"], &answer["stderr"]),
        (&json!("out\n"), &json!("err\n"))
    );
    let moment = |field: &str| answer[field].as_str().and_then(|text| text.parse().ok());
    let (started, finished): (Option<chrono::DateTime<chrono::Utc>>, _) = (moment("startedAt"), moment("finishedAt"));
    assert!(started.is_some() && started <= finished, "{answer}");
    let work = root.path().canonicalize().unwrap().join(BOX).join("home/work");
    let answer = sdk.command(json!({ "command": "pwd", "cwd": "work" })).await;
    assert_eq!(answer["stdout"], format!("{}\n", work.display()));
    assert_eq!(answer["cwd"], work.display().to_string());
    let answer = sdk.command(json!({ "command": "kill -TERM $$" })).await;
    assert_eq!(
        (&answer["exitCode"], &answer["signal"]),
        (&Value::Null, &json!("SIGTERM"))
    );
    let answer = sdk
        .command(json!({ "command": "echo begun; sleep 600", "timeoutSeconds": 1 }))
        .await;
    assert_eq!(
        (&answer["timedOut"], &answer["stdout"]),
        (&json!(true), &json!("begun\n"))
    );
    simulator.stop().await;
}

#[tokio::test]
async fn the_sdk_follows_a_detached_command_to_its_end() {
    let Setting {
        simulator,
        mut sdk,
        root,
    } = Setting::new().await;
    let started = sdk
        .start("echo begun; while [ ! -e go ]; do sleep 0.05; done; echo ended; echo err >&2; exit 3")
        .await;
    let process = &started["processId"];
    let log = started["logPath"].as_str().unwrap();
    assert!(
        log.ends_with(&format!("/home/.ascii/processes/{process}.log")),
        "{started}"
    );
    let home = root.path().join(BOX).join("home");
    let status = sdk.status(process).await;
    assert_eq!(
        (&status["status"], &status["running"], &status["known"]),
        (&json!("running"), &json!(true), &json!(true))
    );
    assert_eq!(status["exitCode"], Value::Null);
    std::fs::write(home.join("go"), "").unwrap();
    let sdk_cell = tokio::sync::Mutex::new(sdk);
    let status = wait_until(
        "the detached command has ended",
        async || sdk_cell.lock().await.status(process).await,
        |status| status["status"] == "exited",
    )
    .await;
    let mut sdk = sdk_cell.into_inner();
    assert_eq!(
        (&status["running"], &status["exitCode"]),
        (&json!(false), &json!(3)),
        "{status}"
    );
    assert_eq!(
        (&status["stdout"], &status["stderr"]),
        (&json!("begun\nended\n"), &json!("err\n"))
    );
    let call = json!({ "call": "command_status", "box": BOX, "process": process, "tailBytes": 6 });
    let status = sdk.returned("CommandStatusResponse", call).await;
    assert_eq!(
        (&status["stdout"], &status["stdoutTruncated"]),
        (&json!("ended\n"), &json!(true))
    );
    simulator.stop().await;
}

/// The provider's agent on the box forgets what it started; the logs stay.
#[tokio::test]
async fn a_detached_command_is_lost_with_its_box() {
    let Setting {
        simulator,
        mut sdk,
        root: _root,
    } = Setting::new().await;
    let process = sdk.start("echo begun; sleep 600").await["processId"].take();
    let cell = tokio::sync::Mutex::new(sdk);
    wait_until(
        "the command has printed",
        async || cell.lock().await.status(&process).await,
        |status| status["stdout"] == "begun\n",
    )
    .await;
    simulator.restart_box(&box_id()).await.unwrap();
    let status = cell.lock().await.status(&process).await;
    assert_eq!(
        (&status["status"], &status["known"], &status["running"]),
        (&json!("lost"), &json!(false), &json!(false))
    );
    assert_eq!(
        (&status["stdout"], &status["exitCode"]),
        (&json!("begun\n"), &Value::Null)
    );
    simulator.stop().await;
}

/// It was started by a simulator that died since: forgotten as well, but it runs.
#[tokio::test]
async fn a_detached_command_outlives_the_simulator_and_is_lost_and_running() {
    let Setting {
        simulator,
        mut sdk,
        root,
    } = Setting::new().await;
    let process = sdk.start("sleep 600").await["processId"].take();
    drop(simulator);
    let simulator = self::simulator(root.path()).await;
    let status = Sdk::new(&simulator, KEY).status(&process).await;
    assert_eq!(
        (&status["status"], &status["running"]),
        (&json!("lost"), &json!(true)),
        "{status}"
    );
    simulator.stop().await;
}

#[tokio::test]
async fn the_sdk_reads_every_refusal() {
    let Setting {
        simulator,
        mut sdk,
        root: _root,
    } = Setting::new().await;
    let on = |id: &str| json!({ "call": "command", "box": id, "request": { "command": "touch ran" } });
    let get = json!({ "call": "get", "box": BOX });
    let mut stranger = Sdk::new(&simulator, "another-key");
    stranger
        .refused(get, "UnauthorizedException", 401, "unauthorized")
        .await;
    stranger
        .refused(on(BOX), "UnauthorizedException", 401, "unauthorized")
        .await;
    let unknown = json!({ "call": "get", "box": "bx_22222222" });
    sdk.refused(unknown, "NotFoundException", 404, "box_not_found").await;
    sdk.refused(on("bx_22222222"), "NotFoundException", 404, "box_not_found")
        .await;
    let process = json!({ "call": "command_status", "box": BOX, "process": 1 });
    sdk.refused(process, "NotFoundException", 404, "process_not_found")
        .await;
    for timeout_seconds in [json!(0), json!(601), json!(-1), json!(1.5), json!("60")] {
        let request = json!({ "command": "touch ran", "timeout_seconds": timeout_seconds });
        let call = json!({ "call": "command_unchecked", "box": BOX, "request": request });
        sdk.refused(call, "BadRequestException", 400, "invalid_timeout").await;
    }
    for cwd in ["..", "/tmp", "no/such/folder"] {
        let request = json!({ "command": "touch ran", "cwd": cwd });
        let call = json!({ "call": "command", "box": BOX, "request": request });
        sdk.refused(call, "BadRequestException", 400, "invalid_cwd").await;
    }
    for (state, code) in [
        (SimBoxState::Provisioning, "box_starting"),
        (SimBoxState::Archived, "box_stopped"),
        (SimBoxState::Gone, "box_gone"),
    ] {
        simulator.set_box_state(&box_id(), state).await.unwrap();
        sdk.refused(on(BOX), "ConflictException", 409, code).await;
        let detached = json!({ "command": "touch ran", "detached": true });
        let call = json!({ "call": "command", "box": BOX, "request": detached });
        sdk.refused(call, "ConflictException", 409, code).await;
    }
    simulator.set_box_state(&box_id(), SimBoxState::Ready).await.unwrap();
    assert_eq!(sdk.command(json!({ "command": "ls" })).await["stdout"], "");
    simulator.stop().await;
}

/// As for boxrun: a command whose answer is a 502 may have run, and the SDK does not send it again.
#[tokio::test]
async fn the_sdk_sends_a_command_once_whatever_is_answered() {
    let Setting {
        simulator,
        mut sdk,
        root: _root,
    } = Setting::new().await;
    let call = json!({ "call": "command", "box": BOX, "request": { "command": "echo x >>\"$BOXRUN_SIM_STARTS\"" } });
    let fault = Fault::ServerError {
        status: 502,
        work: Work::Done,
    };
    simulator.inject(FaultRule::once(FaultTarget::Command, fault)).unwrap();
    let outcome = sdk.call(call).await;
    assert_eq!(
        (&outcome["raised"], &outcome["status"]),
        (&json!("ServiceException"), &json!(502))
    );
    assert_eq!(simulator.starts(&box_id()).unwrap(), ["x"]);
    simulator.stop().await;
}
