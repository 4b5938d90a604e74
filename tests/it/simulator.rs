//! The simulator, asked through the product's own client and, where that hides too much, over plain HTTP.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use boxrun::box_api::{BoxClient, BoxError, BoxErrorCode, BoxState, CommandOutput, Effect};
use boxrun::ids::BoxId;
use boxrun::sim::{Fault, FaultRule, FaultTarget, SimBoxState, SimError, SimOptions, Simulator, Work};
use reqwest::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use secrecy::SecretString;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::bare_script::bare;

const KEY: &str = "simulator-test-key";
const LONG: Duration = Duration::from_secs(30);
/// A command that wants to be counted appends a line, as the simulator's docs say.
const COUNT_ME: &str = "echo one >> \"$BOXRUN_SIM_STARTS\"";

fn box_id() -> BoxId {
    "bx_8bhkse3n".parse().expect("a box id")
}

fn options(root: &Path) -> SimOptions {
    SimOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        root: root.to_owned(),
        key: SecretString::from(KEY),
        boxes: Vec::new(),
        allow_remote: false,
    }
}

/// A simulator in a folder of its own.
struct Setting {
    root: TempDir,
    sim: Simulator,
}

impl Setting {
    async fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let sim = Simulator::start(options(root.path())).await.expect("a simulator");
        Self { root, sim }
    }

    fn client(&self) -> BoxClient {
        BoxClient::new(self.sim.url(), Some(SecretString::from(KEY))).expect("a client")
    }

    async fn run(&self, script: &str) -> Result<CommandOutput, BoxError> {
        self.client()
            .run_command(&box_id(), &bare(script, Duration::from_secs(20), LONG))
            .await
    }

    async fn stdout(&self, script: &str) -> String {
        self.run(script)
            .await
            .unwrap_or_else(|error| panic!("{script}: {error}"))
            .stdout
    }

    /// Injects a fault for the next command and says how a command that counts itself fared.
    async fn run_with_fault(&self, fault: Fault) -> Result<CommandOutput, BoxError> {
        self.sim.inject(FaultRule::once(FaultTarget::Command, fault)).unwrap();
        self.run(COUNT_ME).await
    }

    fn starts(&self) -> usize {
        self.sim.starts(&box_id()).unwrap().len()
    }

    /// Waits on the box itself until `count` commands have counted themselves.
    async fn wait_for_starts(&self, count: usize) {
        let script = format!(
            "while [ \"$(grep -c . \"$BOXRUN_SIM_STARTS\" 2>/dev/null || :)\" != {count} ]; do sleep 0.05; done"
        );
        self.stdout(&script).await;
    }

    async fn http(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let (status, text) = self.http_raw(method, path, body, &[]).await;
        let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{method} {path}: {error} in {text}"));
        (status, value)
    }

    async fn http_raw(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
        headers: &[(HeaderName, &str)],
    ) -> (u16, String) {
        let mut sent = HeaderMap::new();
        sent.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        sent.insert(
            "authorization",
            HeaderValue::from_str(&format!("Bearer {KEY}")).unwrap(),
        );
        for (name, value) in headers {
            sent.insert(name, HeaderValue::from_str(value).unwrap());
        }
        let client = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([])
            .build()
            .unwrap();
        let url = self.sim.url().join(path).unwrap();
        let request = client.request(method.parse().unwrap(), url).headers(sent);
        let response = request
            .body(body.map(|body| body.to_string()).unwrap_or_default())
            .send()
            .await
            .unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    async fn stop(self) -> TempDir {
        self.sim.stop().await;
        self.root
    }
}

/// Whether a process lives; one that is only waited for by nobody does not.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn outcome(result: Result<CommandOutput, BoxError>) -> (BoxErrorCode, Effect) {
    let error = result.expect_err("the call fails");
    (error.code, error.effect)
}

#[tokio::test]
async fn a_command_runs_in_the_home_of_its_box_with_a_clean_environment() {
    let setting = Setting::new().await;
    let home = setting.root.path().canonicalize().unwrap().join("bx_8bhkse3n/home");
    assert_eq!(
        setting.stdout("pwd; echo \"$HOME\"").await,
        format!("{0}\n{0}\n", home.display())
    );
    let names = setting.stdout("env | sed 's/=.*//' | sort | tr '\\n' ' '").await;
    let expected = "BOXRUN_BOOT_ID_FILE BOXRUN_SIM_BOX BOXRUN_SIM_STARTS HOME LANG PATH ";
    let from_the_shell = ["PWD", "OLDPWD", "SHLVL", "_"];
    let names: String = names
        .split_whitespace()
        .filter(|name| !from_the_shell.contains(name))
        .map(|name| format!("{name} "))
        .collect();
    assert_eq!(names, expected);
    let output = setting
        .run("printf 'a\\n'; printf 'b\\n' >&2; read line || echo 'no input'; exit 73")
        .await
        .unwrap();
    assert_eq!(
        (output.stdout.as_str(), output.stderr.as_str()),
        ("a\nno input\n", "b\n")
    );
    assert_eq!(output.exit_code, Some(73));
    setting.stop().await;
}

#[tokio::test]
async fn scripts_leave_no_file_of_the_simulator_behind() {
    let setting = Setting::new().await;
    setting.stdout("true").await;
    let scripts = std::fs::read_dir(setting.root.path().join("bx_8bhkse3n/scripts")).unwrap();
    assert_eq!(scripts.count(), 0);
    setting.stop().await;
}

#[tokio::test]
async fn boxes_are_shown_at_both_addresses() {
    let setting = Setting::new().await;
    for path in ["boxes/bx_8bhkse3n", "api/box/v1/boxes/bx_8bhkse3n"] {
        let (status, body) = setting.http("GET", path, None).await;
        assert_eq!(
            (status, &body["ok"], &body["type"]),
            (200, &json!(true), &json!("box.info"))
        );
        assert_eq!(
            (&body["box"]["id"], &body["box"]["state"]),
            (&json!("bx_8bhkse3n"), &json!("ready"))
        );
    }
    setting.stop().await;
}

#[tokio::test]
async fn a_box_that_is_not_listed_does_not_exist() {
    let root = tempfile::tempdir().unwrap();
    let mut options = options(root.path());
    options.boxes = vec!["bx_22222222".parse().unwrap()];
    let setting = Setting {
        root,
        sim: Simulator::start(options).await.unwrap(),
    };
    assert_eq!(
        setting.client().get_box(&box_id()).await.unwrap_err().code,
        BoxErrorCode::BoxNotFound
    );
    let command = json!({ "command": "true", "timeoutSeconds": 1 });
    let (status, body) = setting.http("POST", "boxes/bx_8bhkse3n/commands", Some(command)).await;
    assert_eq!(
        (status, &body["ok"], &body["status"], &body["code"]),
        (404, &json!(false), &json!(404), &json!("box_not_found"))
    );
    assert_eq!(
        (&body["error"]["code"], &body["error"]["status"]),
        (&json!("box_not_found"), &json!(404))
    );
    assert!(body["requestId"].is_string() && body["message"].is_string() && body["error"]["details"].is_object());
    assert!(!setting.root.path().join("bx_8bhkse3n").exists());
    setting.stop().await;
}

#[tokio::test]
async fn nobody_runs_a_command_without_key_json_and_a_loopback_host() {
    let setting = Setting::new().await;
    let command = Some(json!({ "command": COUNT_ME, "timeoutSeconds": 5 }));
    let authorization = HeaderName::from_static("authorization");
    for (header, value, expected) in [
        (authorization.clone(), "", 401),
        (authorization.clone(), "Bearer wrong", 401),
        (authorization, KEY, 401),
        (CONTENT_TYPE, "text/plain", 415),
        (CONTENT_TYPE, "application/x-www-form-urlencoded", 415),
        (HOST, "rebound.example.com", 403),
        (HOST, "192.168.0.7:80", 403),
    ] {
        for path in [
            "boxes/bx_8bhkse3n/commands",
            "_sim/faults",
            "_sim/boxes/bx_8bhkse3n/stop",
        ] {
            let (status, body) = setting
                .http_raw("POST", path, command.clone(), &[(header.clone(), value)])
                .await;
            assert_eq!(status, expected, "{path} with {header}: {value}");
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body["ok"], json!(false));
        }
    }
    assert_eq!(setting.starts(), 0);
    setting.stop().await;
}

#[tokio::test]
async fn it_does_not_listen_beyond_this_machine_unless_told_to() {
    let root = tempfile::tempdir().unwrap();
    let mut options = options(root.path());
    options.listen = SocketAddr::from(([0, 0, 0, 0], 0));
    assert!(matches!(Simulator::start(options).await, Err(SimError::NotLoopback(_))));
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_in_json() {
    let setting = Setting::new().await;
    for (method, path, body, expected) in [
        (
            "POST",
            "boxes/bx_8bhkse3n/commands",
            json!({ "timeoutSeconds": 1 }),
            400,
        ),
        (
            "POST",
            "boxes/bx_8bhkse3n/commands",
            json!({ "command": "", "timeoutSeconds": 1 }),
            400,
        ),
        (
            "POST",
            "boxes/bx_8bhkse3n/commands",
            json!({ "command": "true", "timeoutSeconds": 0 }),
            400,
        ),
        ("POST", "boxes/bx_8bhkse3n/commands", json!([]), 400),
        ("POST", "boxes/bx_8bhkse3n", json!({}), 405),
        ("POST", "boxes/nonsense/commands", json!({}), 404),
        ("POST", "elsewhere", json!({}), 404),
        ("POST", "_sim/faults", json!({ "fault": { "kind": "earthquake" } }), 400),
        (
            "POST",
            "_sim/faults",
            json!({ "fault": { "kind": "lost_answer" }, "probability": 2 }),
            400,
        ),
        ("PUT", "_sim/boxes/bx_8bhkse3n", json!({ "state": "sideways" }), 400),
    ] {
        let (status, answer) = setting.http(method, path, Some(body.clone())).await;
        assert_eq!(
            (status, &answer["status"]),
            (expected, &json!(expected)),
            "{method} {path} {body}"
        );
    }
    setting.stop().await;
}

#[tokio::test]
async fn a_script_is_ended_at_its_timeout_and_what_it_detached_is_not() {
    let setting = Setting::new().await;
    let script = "setsid sleep 60 >/dev/null 2>&1 </dev/null & echo $! > detached
        sleep 60 & echo $! > child
        echo begun; wait";
    let body = json!({ "command": script, "timeoutSeconds": 1 });
    let (status, body) = setting.http("POST", "boxes/bx_8bhkse3n/commands", Some(body)).await;
    assert_eq!(
        (status, &body["timedOut"], &body["exitCode"]),
        (200, &json!(true), &Value::Null)
    );
    assert_eq!(
        (&body["signal"], &body["stdout"]),
        (&json!("SIGKILL"), &json!("begun\n"))
    );
    let detached = setting.stdout("cat detached").await;
    assert!(is_alive(&detached));
    assert!(!is_alive(&setting.stdout("cat child").await));
    setting.stop().await;
    assert!(!is_alive(&detached), "stop ends what was detached");
}

#[tokio::test]
async fn a_detached_child_does_not_hold_the_answer_back() {
    let setting = Setting::new().await;
    // The second one keeps the script's stdout open.
    for script in [
        "setsid sleep 60 >/dev/null 2>&1 </dev/null & echo $!",
        "setsid sleep 60 & echo $!",
    ] {
        let pid = setting.stdout(script).await;
        assert!(is_alive(&pid), "{script}");
    }
    setting.stop().await;
}

#[tokio::test]
async fn long_output_is_cut_and_marked() {
    let setting = Setting::new().await;
    let output = setting
        .run("head -c 1048577 /dev/zero | tr '\\0' x; exit 3")
        .await
        .unwrap();
    assert_eq!(
        (output.stdout.len(), output.stdout_truncated, output.exit_code),
        (1024 * 1024, true, Some(3))
    );
    setting.stop().await;
}

#[tokio::test]
async fn a_stopped_box_has_no_process_left_and_can_be_resumed() {
    let setting = Setting::new().await;
    let script = "setsid env -i sleep 60 >/dev/null 2>&1 </dev/null & echo $!
        setsid sh -c 'env -i sleep 60 & echo $! > inner; exec sleep 60' >/dev/null 2>&1 </dev/null & echo $!
        (trap '' TERM HUP; exec sleep 60) >/dev/null 2>&1 & echo $!
        while [ ! -s inner ]; do sleep 0.05; done; cat inner";
    // Of these only the first may hide: it has cleared its environment and lost its parent.
    let pids = setting.stdout(script).await;
    let pids: Vec<&str> = pids.lines().collect();
    let boot_id = setting.stdout("cat \"$BOXRUN_BOOT_ID_FILE\"").await;
    let (hidden, found) = pids.split_first().unwrap();
    setting.sim.stop_box(&box_id()).await.unwrap();
    for pid in found {
        assert!(!is_alive(pid), "{pid} of {pids:?}");
    }
    assert_eq!(
        outcome(setting.run(COUNT_ME).await),
        (BoxErrorCode::BoxStopped, Effect::DidNotRun)
    );
    assert_eq!(
        setting.client().get_box(&box_id()).await.unwrap().state,
        BoxState::Archived
    );
    setting.sim.resume_box(&box_id()).await.unwrap();
    assert_eq!(setting.starts(), 0);
    assert_ne!(setting.stdout("cat \"$BOXRUN_BOOT_ID_FILE\"").await, boot_id);
    setting.stdout(&format!("kill -KILL {hidden} || true")).await;
    setting.stop().await;
}

#[tokio::test]
async fn a_restarted_box_has_a_new_boot_id_and_an_interrupted_script_may_have_run() {
    let setting = Setting::new().await;
    let boot_id = setting.stdout("cat \"$BOXRUN_BOOT_ID_FILE\"").await;
    let client = setting.client();
    let id = box_id();
    let script = format!("{COUNT_ME}; sleep 60");
    let script = bare(&script, Duration::from_secs(60), LONG);
    let interrupted = client.run_command(&id, &script);
    let restart = async {
        setting.wait_for_starts(1).await;
        setting.sim.restart_box(&box_id()).await.unwrap();
    };
    let (interrupted, ()) = tokio::join!(interrupted, restart);
    assert_eq!(outcome(interrupted), (BoxErrorCode::BoxUnreachable, Effect::MayHaveRun));
    assert_ne!(setting.stdout("cat \"$BOXRUN_BOOT_ID_FILE\"").await, boot_id);
    setting.stop().await;
}

#[tokio::test]
async fn each_state_of_a_box_answers_as_the_provider_would() {
    use BoxErrorCode::{BoxGone, BoxNotFound, BoxNotReady, BoxRequestRefused, BoxStopped};
    let setting = Setting::new().await;
    for (state, command, info) in [
        ("starting", BoxNotReady, Ok(BoxState::Provisioning)),
        ("cloning", BoxNotReady, Ok(BoxState::Cloning)),
        ("archived", BoxStopped, Ok(BoxState::Archived)),
        ("error", BoxRequestRefused, Ok(BoxState::Error)),
        ("gone", BoxGone, Err(BoxNotFound)),
        ("missing", BoxNotFound, Err(BoxNotFound)),
    ] {
        let (status, _) = setting
            .http("PUT", "_sim/boxes/bx_8bhkse3n", Some(json!({ "state": state })))
            .await;
        assert_eq!(status, 200, "{state}");
        assert_eq!(setting.run(COUNT_ME).await.unwrap_err().code, command, "{state}");
        let shown = setting.client().get_box(&box_id()).await;
        assert_eq!(
            shown.map(|info| info.state).map_err(|error| error.code),
            info,
            "{state}"
        );
    }
    setting.sim.set_box_state(&box_id(), SimBoxState::Idle).await.unwrap();
    setting.stdout(COUNT_ME).await;
    assert_eq!(setting.starts(), 1);
    setting.stop().await;
}

#[tokio::test]
async fn faults_without_work_run_nothing() {
    use BoxErrorCode::{BoxNotReady, BoxRateLimited, BoxResponseInvalid, BoxUnreachable};
    let setting = Setting::new().await;
    let limited = Fault::RateLimited {
        retry_after: Some("7".to_owned()),
    };
    for (fault, expected) in [
        (Fault::DroppedRequest, (BoxUnreachable, Effect::MayHaveRun)),
        (limited.clone(), (BoxRateLimited, Effect::MaySendAgain)),
        (Fault::BoxStarting, (BoxNotReady, Effect::MaySendAgain)),
        (
            Fault::ServerError {
                status: 503,
                work: Work::NotDone,
            },
            (BoxUnreachable, Effect::MayHaveRun),
        ),
        (
            Fault::Html { work: Work::NotDone },
            (BoxResponseInvalid, Effect::MayHaveRun),
        ),
        (Fault::NotFoundPage, (BoxResponseInvalid, Effect::MayHaveRun)),
    ] {
        assert_eq!(
            outcome(setting.run_with_fault(fault.clone()).await),
            expected,
            "{fault:?}"
        );
    }
    assert_eq!(setting.starts(), 0);
    let error = setting.run_with_fault(limited).await.unwrap_err();
    assert_eq!(error.retry_after, Some(Duration::from_secs(7)));
    setting.stop().await;
}

#[tokio::test]
async fn faults_after_the_work_run_it_once() {
    use BoxErrorCode::{BoxResponseInvalid, BoxUnreachable};
    let setting = Setting::new().await;
    for (count, (fault, code)) in [
        (Fault::LostAnswer, BoxUnreachable),
        (
            Fault::ServerError {
                status: 502,
                work: Work::Done,
            },
            BoxUnreachable,
        ),
        (Fault::Html { work: Work::Done }, BoxResponseInvalid),
        (Fault::TruncatedBody, BoxResponseInvalid),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(
            outcome(setting.run_with_fault(fault.clone()).await),
            (code, Effect::MayHaveRun),
            "{fault:?}"
        );
        assert_eq!(setting.starts(), count + 1, "{fault:?}");
    }
    setting.run_with_fault(Fault::Latency { ms: 1 }).await.unwrap();
    assert_eq!(setting.starts(), 5);
    setting.stop().await;
}

#[tokio::test]
async fn a_delayed_delivery_runs_after_the_answer() {
    let setting = Setting::new().await;
    let result = setting.run_with_fault(Fault::DelayedDelivery { ms: 1500 }).await;
    assert_eq!(outcome(result), (BoxErrorCode::BoxUnreachable, Effect::MayHaveRun));
    assert_eq!(setting.starts(), 0);
    setting.wait_for_starts(1).await;
    setting.stop().await;
}

#[tokio::test]
async fn a_command_goes_on_when_its_client_hangs_up() {
    let setting = Setting::new().await;
    let client = setting.client();
    let id = box_id();
    let script = format!("{COUNT_ME}; while [ ! -e go ]; do sleep 0.05; done; {COUNT_ME}");
    let script = bare(&script, Duration::from_secs(20), LONG);
    tokio::select! {
        result = client.run_command(&id, &script) => panic!("it waits: {result:?}"),
        // The losing branch is dropped, which closes its connection.
        () = setting.wait_for_starts(1) => {}
    }
    setting.stdout("touch go").await;
    setting.wait_for_starts(2).await;
    setting.stop().await;
}

#[tokio::test]
async fn faults_are_set_listed_and_cleared_over_http() {
    let setting = Setting::new().await;
    let rule = json!({ "fault": { "kind": "server_error", "status": 502 }, "on": "info", "probability": 1, "seed": 3 });
    let (status, _) = setting.http("POST", "_sim/faults", Some(rule)).await;
    assert_eq!(status, 200);
    let (status, _) = setting.http("GET", "boxes/bx_8bhkse3n", None).await;
    assert_eq!(status, 502);
    setting.stdout("true").await;
    let (_, listed) = setting.http("GET", "_sim/faults", None).await;
    assert_eq!(
        listed["faults"][0]["fault"],
        json!({ "kind": "server_error", "status": 502, "work": "not_done" })
    );
    setting.http("DELETE", "_sim/faults", None).await;
    let (status, _) = setting.http("GET", "boxes/bx_8bhkse3n", None).await;
    assert_eq!(status, 200);
    setting.stop().await;
}

#[tokio::test]
async fn the_record_tells_what_was_asked_and_what_started() {
    let setting = Setting::new().await;
    let run = "0190b8a0-0000-7000-8000-000000000001";
    let dispatch =
        format!("# OPENAGENTS_RUN_EXISTS\n: \"$HOME/.openagents/box-runs/users/u1/{run}\"\necho 4242; exit 73");
    setting
        .sim
        .inject(FaultRule::once(FaultTarget::Dispatch, Fault::LostAnswer))
        .unwrap();
    setting.run("true").await.unwrap();
    setting.run(&dispatch).await.unwrap_err();
    setting.sim.stop_box(&box_id()).await.unwrap();
    setting.run(&dispatch).await.unwrap_err();
    let (status, record) = setting.http_raw("GET", "_sim/record", None, &[]).await;
    assert_eq!((status, &record), (200, &setting.sim.record().unwrap()));
    let events: Vec<Value> = record.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_dispatches: Vec<&Value> = events.iter().filter(|event| event["kind"] == "dispatch").collect();
    let names: Vec<&str> = of_dispatches
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["request", "started", "finished", "request", "refused"]);
    assert!(
        of_dispatches
            .iter()
            .all(|event| event["run"] == run && event["box"] == "bx_8bhkse3n")
    );
    assert_eq!(of_dispatches[0]["fault"]["kind"], "lost_answer");
    assert_eq!(
        (&of_dispatches[2]["exit_code"], &of_dispatches[2]["last_line"]),
        (&json!(73), &json!("4242"))
    );
    assert_eq!(of_dispatches[0]["number"], of_dispatches[2]["number"]);
    setting.stop().await;
}

#[tokio::test]
async fn a_simulator_that_died_comes_back_with_its_boxes() {
    let setting = Setting::new().await;
    let pid = setting
        .stdout("echo kept > file; setsid sleep 60 >/dev/null 2>&1 </dev/null & echo $!")
        .await;
    let boot_id = setting.stdout("cat \"$BOXRUN_BOOT_ID_FILE\"").await;
    let other: BoxId = "bx_22222222".parse().unwrap();
    setting.sim.set_box_state(&other, SimBoxState::Archived).await.unwrap();
    let Setting { root, sim } = setting;
    drop(sim);
    let setting = Setting {
        sim: Simulator::start(options(root.path())).await.unwrap(),
        root,
    };
    assert!(is_alive(&pid), "commands go on");
    assert_eq!(
        setting.stdout("cat file \"$BOXRUN_BOOT_ID_FILE\"").await,
        format!("kept\n{boot_id}")
    );
    assert_eq!(
        setting.client().get_box(&other).await.unwrap().state,
        BoxState::Archived
    );
    let root = setting.stop().await;
    assert!(!is_alive(&pid), "and are found by the next one");
    drop(root);
}
