//! Logs of real processes: whom each line is about, and what is in none of them.

use boxrun::runs::RunState;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use super::process::{Process, command};
use super::traces::{Caller, ends_with};
use crate::support::app::App;
use crate::support::box_says::{log, started};
use crate::support::scripted_box::KEY;

const SECRET: &str = "s3cr3t-Zx93kfPLmw22";
const PASSWORD: &str = "pa:ss@w0rd-Hq7TzR";
const SEALING_KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
/// Sent as a token, and none.
const WRONG_TOKEN: &str = "boxrun_wrong-Kq82hfTTuv";

fn span<'a>(line: &'a Value, field: &str) -> &'a str {
    line["span"][field].as_str().unwrap_or_default()
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_request_leaves_one_line_with_its_id_route_and_run(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let web = Process::web(&app).await;
    let caller = Caller::of(&app, &web).await;
    let run = app.running("sleep 60").await;
    let ours = Uuid::new_v4().to_string();
    let asking = caller.asks(Method::GET, &caller.run(run)).header("x-request-id", &ours);
    let reply = asking.send().await.unwrap();
    assert_eq!(reply.headers()["x-request-id"], ours.as_str(), "a proxy's id is kept");
    let asking = caller
        .asks(Method::GET, "/api/v1/me")
        .header("x-request-id", "no id of anybody");
    let reply = asking.send().await.unwrap();
    let given = reply.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert!(Uuid::try_parse(&given).is_ok(), "{given}");

    let lines = web.logged();
    let of = |id: &str| -> Vec<&Value> { lines.iter().filter(|line| span(line, "request_id") == id).collect() };
    let [line] = of(&ours)[..] else {
        panic!("one line, not {lines:#?}")
    };
    assert_eq!((&line["message"], &line["status"]), (&json!("answered"), &json!(200)));
    assert!(line["ms"].is_u64(), "{line}");
    let expected = [
        ("method", "GET".to_owned()),
        (
            "route",
            "/api/v1/conversations/{conversation_id}/runs/{run_id}".to_owned(),
        ),
        ("conversation_id", app.conversation.to_string()),
        ("run_id", run.to_string()),
    ];
    for (field, value) in expected {
        assert_eq!(span(line, field), value, "{line}");
    }
    assert_eq!(of(&given).len(), 1);
    assert!(!web.log_text().contains("no id of anybody"));
    web.stop().await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn what_a_worker_logs_of_a_job_says_run_kind_box_and_worker(pool: PgPool) {
    let app = App::idle(pool, [started(4242), ends_with("hello\n")]).await;
    let worker = Process::worker(&app).await;
    let run = app.admit("echo hello").await;
    app.wait_for(run, RunState::Completed).await;
    worker
        .measures("boxrun_runs_finished_total", &[("state", "completed")], 1.0)
        .await;
    let lines = worker.logged();
    let id = lines.iter().find(|line| line["message"] == "working").unwrap()["worker"].clone();
    for (kind, event) in [("start", "dispatched"), ("poll", "completed")] {
        let line = lines.iter().find(|line| line["event"] == event);
        let line = line.unwrap_or_else(|| panic!("{event}: {lines:#?}"));
        assert_eq!(line["span"]["worker"], id, "{line}");
        assert_eq!(span(line, "run_id"), run.to_string(), "{line}");
        assert_eq!(
            (span(line, "kind"), span(line, "box_id")),
            (kind, app.box_id.as_str()),
            "{line}"
        );
    }
    worker.stop().await;
    app.finish().await;
}

/// The most that a process says, with everything secret that goes through it.
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn no_token_ticket_key_or_secret_is_in_any_line_of_web_or_worker(pool: PgPool) {
    let printed = format!("the secret is {SECRET}\n");
    let app = App::idle(
        pool,
        [started(4242), log(printed.len(), printed.as_bytes(), "EXIT=0 ALIVE=0")],
    )
    .await;
    let start = async |subcommand: &str, works: &str| {
        let mut command = command(&app, subcommand);
        command.env("RUST_LOG", "trace").env("BOXRUN_SECRET_KEYS", SEALING_KEY);
        Process::start(command, works).await
    };
    let (worker, web) = (start("worker", "working").await, start("web", "listening").await);
    let caller = Caller::of(&app, &web).await;
    let (status, started) = caller
        .asks_for(&json!({
            "command": "echo $TOKEN", "idempotency_key": "k1", "secret_env": {"TOKEN": SECRET},
            "git_credential": {"host": "git.example.com", "username": "u", "password": PASSWORD},
        }))
        .await;
    assert_eq!(status, 202, "{started}");
    let run = started["run"]["id"].as_str().unwrap().parse().unwrap();
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.output(run, 0).await.output, "the secret is [REDACTED]\n");

    let tickets = caller.asks(Method::POST, &format!("{}/tickets", caller.run(run)));
    let made = tickets.send().await.unwrap().text().await.unwrap();
    let made: Value = serde_json::from_str(&made).unwrap();
    let ticket = made["ticket"].as_str().unwrap();
    let public = format!("http://{}", web.users.unwrap());
    for path in ["", "/output", "/stream", "/events", "/no-such-thing"] {
        let address = format!("{public}{}{path}?ticket={ticket}", caller.run(run));
        web.client.get(address).send().await.unwrap().text().await.unwrap();
    }
    // Where it does not belong.
    let token = &caller.token;
    for address in [
        format!("/{token}"),
        format!("/api/v1/runs?token={token}"),
        format!("/api/v1/{token}/runs"),
    ] {
        caller.asks(Method::GET, &address).send().await.unwrap();
    }
    let misplaced = caller.asks(Method::GET, "/api/v1/me").header("x-request-id", token);
    misplaced.send().await.unwrap();
    let wrong = web.client.get(format!("{public}/api/v1/me")).bearer_auth(WRONG_TOKEN);
    assert_eq!(wrong.send().await.unwrap().status(), 401);

    let bare = |text: &str| text.split_once('_').unwrap().1.to_owned();
    let secrets = [
        bare(token),
        bare(ticket),
        bare(WRONG_TOKEN),
        SECRET.to_owned(),
        PASSWORD.to_owned(),
        KEY.to_owned(),
        SEALING_KEY.to_owned(),
    ];
    for process in [worker, web] {
        let log = process.stop().await;
        assert!(log.contains("\"level\":\"TRACE\""), "it says all that it can");
        for secret in &secrets {
            let line = log.lines().find(|line| line.contains(secret.as_str()));
            assert_eq!(line, None, "{secret}");
        }
    }
    app.finish().await;
}
