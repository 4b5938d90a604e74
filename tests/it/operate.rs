//! What operators order and look at: pauses, drains, nudges, the doctor.

use std::process::Output;

use boxrun::ids::RunId;
use boxrun::queue::JobKind;
use boxrun::queue::operator::{self, Nudged};
use boxrun::runs::RunState;
use serde_json::Value;
use sqlx::PgPool;
use tokio::process::Command;

use crate::support::app::App;
use crate::support::box_says::{Sent, refuses, says, started};
use crate::support::program::{boxrun, url_of};
use crate::support::scripted_box::{Answer, ScriptedBox};

async fn says_of(pool: &PgPool, arguments: &[&str]) -> Output {
    boxrun(Some(&url_of(pool)), arguments)
        .output()
        .await
        .expect("boxrun runs")
}

async fn succeeds(pool: &PgPool, arguments: &[&str]) -> String {
    let output = says_of(pool, arguments).await;
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

async fn json_of(pool: &PgPool, arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(pool, arguments).await).expect("JSON")
}

fn ended() -> Answer {
    says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0")
}

async fn job_is_due(app: &App, run: RunId) {
    app.wait_until(run, "its job is due and nobody has it", |seen| {
        let waits = |job: &crate::support::app::Job| job.lease.is_none() && job.due_at <= seen.run.read_at;
        seen.job.as_ref().is_some_and(waits)
    })
    .await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_pause_outlives_the_workers_and_holds_back_only_its_kind(pool: PgPool) {
    let mut app = App::idle(pool, [started(4242)]).await;
    succeeds(&app.pool, &["pause", "poll", "--reason", "the provider is slow"]).await;
    let first = app.new_worker(|_| {});
    let run = app.admit("echo one").await;
    app.wait_for(run, RunState::Dispatched).await;
    first.stop().await;
    app.start_worker();
    // A second run is dispatched by the new worker, which had the poll due all the while.
    app.server.script([started(4243)]);
    app.hurry(run).await;
    let other = app.another_box().await;
    let second = app.admit_new(app.new_run_on(&other, "echo two")).await;
    app.wait_for(second, RunState::Dispatched).await;
    job_is_due(&app, run).await;
    assert_eq!(app.count_sent(Sent::Poll), 0);

    let queue = json_of(&app.pool, &["queue", "--json"]).await;
    let poll = &queue[JobKind::Poll.index()];
    assert_eq!(
        (&poll["kind"], &poll["pause_reason"]),
        (&"poll".into(), &"the provider is slow".into())
    );
    assert!(poll["paused_by"].as_str().is_some_and(|by| !by.is_empty()), "{queue}");
    assert!(queue[JobKind::Start.index()]["paused_at"].is_null(), "{queue}");

    app.server.script([ended(), ended()]);
    succeeds(&app.pool, &["resume", "poll"]).await;
    app.wait_until(run, "it goes on", |seen| seen.run.state.is_terminal())
        .await;
    app.wait_until(second, "it goes on", |seen| seen.run.state.is_terminal())
        .await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn paused_polls_hold_back_no_cancel_and_no_deadline(pool: PgPool) {
    let mut app = App::idle(pool, []).await;
    succeeds(&app.pool, &["pause", "poll", "--reason", "test"]).await;
    let cancelled = app.running("sleep 60").await;
    let other = app.another_box().await;
    let late = app.running_as(app.new_run_on(&other, "sleep 60")).await;
    app.pass_deadline(late).await;
    app.cancel(cancelled).await;
    app.server.script([says("CANCELLED=1"), says("CANCELLED=1")]);
    app.start_worker();
    app.wait_for(cancelled, RunState::Cancelled).await;
    app.wait_for(late, RunState::TimedOut).await;
    assert_eq!(app.sent(), [Sent::Stop, Sent::Stop]);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_late_run_whose_exit_is_known_is_read_to_its_end_while_polls_are_paused(pool: PgPool) {
    let script = [
        says("CANCELLED=0 EXIT=0 SIZE=10 DATA=hello"),
        says("PRESENT=1 SIZE=10 DATA=world EXIT=0 ALIVE=0"),
    ];
    let mut app = App::idle(pool, script).await;
    succeeds(&app.pool, &["pause", "poll", "--reason", "test"]).await;
    let run = app.running("sleep 60").await;
    app.pass_deadline(run).await;
    app.start_worker();
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.output(run, 0).await.output, "helloworld");
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_start_that_waits_gets_its_cleanup_although_cleanups_are_paused(pool: PgPool) {
    let script = [Answer::broken()];
    let mut app = App::idle(pool, script).await;
    succeeds(&app.pool, &["pause", "cleanup", "--reason", "test"]).await;
    let old = app.running("sleep 60").await;
    app.pass_deadline(old).await;
    app.start_worker();
    app.wait_for(old, RunState::TimedOut).await;
    app.hurry(old).await;
    // Another run's whole life goes by, and the cleanup that is due stays where it is.
    app.server.script([started(4243), ended()]);
    let other = app.another_box().await;
    let elsewhere = app.admit_new(app.new_run_on(&other, "echo one")).await;
    app.wait_for(elsewhere, RunState::Completed).await;
    job_is_due(&app, old).await;
    assert_eq!(app.count_sent(Sent::Stop), 1);

    app.server.script([says("CANCELLED=1"), started(4244), ended()]);
    let waiting = app.admit("echo two").await;
    app.wait_for(waiting, RunState::Completed).await;
    let seen = app.snapshot(old).await;
    assert!(seen.run.end_verified_at.is_some(), "{seen:?}");
    let marked: bool = sqlx::query_scalar("select despite_pause from boxrun.jobs where run_id = $1")
        .bind(old.0)
        .fetch_one(&app.pool)
        .await
        .expect("a job");
    assert!(!marked, "what is left of the cleanup rests with its kind");
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn stop_cannot_be_paused(pool: PgPool) {
    let refused = says_of(&pool, &["pause", "stop", "--reason", "test"]).await;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && text.contains("stops can't be paused"),
        "{text}"
    );
    let error = operator::pause(&pool, JobKind::Stop, "u1", "test")
        .await
        .expect_err("refused");
    let constraint = error
        .as_database_error()
        .and_then(|error| error.constraint().map(str::to_owned));
    assert_eq!(constraint.as_deref(), Some("kind_pauses_kind_may_rest"));
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_drained_worker_finishes_what_it_has_claims_no_more_and_exits_with_0(pool: PgPool) {
    let app = App::idle(pool, [started(4242).held()]).await;
    let mut worker = boxrun(Some(&url_of(&app.pool)), &["worker"]);
    worker.stderr(std::process::Stdio::null());
    worker
        .env("BOX_API_URL", app.server.url().as_str())
        .env("BOX_API_KEY", "k");
    let mut worker = worker.spawn().expect("a worker");
    let run = app.admit("echo one").await;
    app.wait_for_sent(Sent::Dispatch, 1).await;
    let workers = json_of(&app.pool, &["workers", "--json"]).await;
    assert_eq!(workers[0]["jobs_in_hand"], 1, "{workers}");
    succeeds(&app.pool, &["drain", workers[0]["id"].as_str().expect("an id")]).await;
    let other = app.another_box().await;
    let left = app.admit_new(app.new_run_on(&other, "echo two")).await;
    let workers = json_of(&app.pool, &["workers", "--json"]).await;
    assert!(workers[0]["drain_requested_at"].is_string(), "{workers}");
    app.server.release();
    let status = worker.wait().await.expect("a worker that ends");
    assert_eq!(status.code(), Some(0));
    assert_eq!(app.run(run).await.state, RunState::Dispatched);
    assert_eq!(app.run(left).await.dispatch_attempted_at, None);
    assert_eq!(json_of(&app.pool, &["workers", "--json"]).await, serde_json::json!([]));
    let unknown = says_of(&app.pool, &["drain", "nobody"]).await;
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("worker_not_found"),
        "{unknown:?}"
    );
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_nudge_makes_a_job_due_now_and_leaves_a_leased_one_alone(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let run = app.running("sleep 60").await;
    let id = run.to_string();
    let later = "update boxrun.jobs set due_at = clock_timestamp() + interval '1 hour' where run_id = $1";
    app.execute(later, run).await;
    succeeds(&app.pool, &["nudge", &id]).await;
    job_is_due(&app, run).await;
    app.execute(
        "update boxrun.jobs set lease = gen_random_uuid(), lease_until = clock_timestamp() + interval '1 hour',
                leased_by = 'w' where run_id = $1",
        run,
    )
    .await;
    let before = app.job(run).await;
    let nudged = operator::nudge(&app.pool, run).await.expect("a database");
    let in_hand = Nudged::InHand {
        kind: JobKind::Poll,
        worker: "w".to_owned(),
    };
    assert_eq!(nudged, in_hand);
    assert_eq!(app.job(run).await, before);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn jobs_are_listed_by_kind_and_by_failure(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let empty = says_of(&app.pool, &["jobs"]).await;
    assert!(
        String::from_utf8_lossy(&empty.stderr).contains("boxrun run"),
        "{empty:?}"
    );
    let run = app.running("sleep 60").await;
    let of = async |arguments: &[&str]| json_of(&app.pool, arguments).await.as_array().expect("a list").len();
    assert_eq!(of(&["jobs", "--json"]).await, 1);
    assert_eq!(of(&["jobs", "--json", "--kind", "start"]).await, 0);
    assert_eq!(of(&["jobs", "--json", "--failing"]).await, 0);
    let fail = "update boxrun.jobs set attempts = 2, last_error_code = 'box_unreachable', last_error = 'no route'
                 where run_id = $1";
    app.execute(fail, run).await;
    let failing = json_of(&app.pool, &["jobs", "--json", "--failing", "--kind", "poll"]).await;
    assert_eq!(
        (&failing[0]["run_id"], &failing[0]["attempts"]),
        (&run.to_string().into(), &2.into())
    );
    for arguments in [&["jobs"][..], &["queue"]] {
        assert!(succeeds(&app.pool, arguments).await.contains("poll"), "{arguments:?}");
    }
    app.finish().await;
}

/// The doctor's findings as (check, status), and its exit status.
async fn doctor(mut command: Command) -> (Vec<(String, String)>, i32, Value) {
    let output = command.arg("--json").output().await.expect("boxrun runs");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let word = |value: &Value| value.as_str().expect("a word").to_owned();
    let findings = report["checks"].as_array().expect("a list");
    let findings = findings
        .iter()
        .map(|finding| (word(&finding["check"]), word(&finding["status"])));
    (
        findings.collect(),
        output.status.code().expect("an exit status"),
        report,
    )
}

fn has(findings: &[(String, String)], check: &str, status: &str) -> bool {
    findings.iter().any(|(found, how)| found == check && how == status)
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_doctor_finds_nothing_wrong_where_nothing_is(pool: PgPool) {
    let server = ScriptedBox::start().await;
    server.answer_gets(refuses(404, "box_not_found"));
    let mut command = boxrun(Some(&url_of(&pool)), &["doctor"]);
    command
        .env("BOX_API_URL", server.url().as_str())
        .env("BOX_API_KEY", "k");
    let (findings, status, report) = doctor(command).await;
    assert_eq!(status, 0, "{report:#}");
    for check in [
        "configuration",
        "database",
        "pooler",
        "clock",
        "schema",
        "rights",
        "provider_mismatch",
        "key",
    ] {
        assert!(has(&findings, check, "ok"), "{check}: {report:#}");
    }
    assert!(has(&findings, "workers", "warning"), "{report:#}");
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_doctor_says_which_key_is_refused_and_whose_database_it_is(pool: PgPool) {
    let server = ScriptedBox::start().await;
    server.answer_gets(refuses(401, "unauthorized"));
    boxrun::schema::set_provider(&pool, "https://other.example")
        .await
        .expect("a database");
    let mut command = boxrun(Some(&url_of(&pool)), &["doctor"]);
    command
        .env("BOX_API_URL", server.url().as_str())
        .env("BOX_API_KEY", "very-wrong");
    let (findings, status, report) = doctor(command).await;
    assert_eq!(status, 1, "{report:#}");
    assert!(
        has(&findings, "key", "failed") && has(&findings, "provider", "ok"),
        "{report:#}"
    );
    assert!(has(&findings, "provider_mismatch", "failed"), "{report:#}");
    let text = report.to_string();
    assert!(text.contains("BOX_API_KEY") && !text.contains("very-wrong"), "{text}");
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_doctor_names_an_outdated_schema(pool: PgPool) {
    sqlx::query("delete from boxrun._sqlx_migrations where version > 1")
        .execute(&pool)
        .await
        .expect("the list of migrations");
    let (findings, status, report) = doctor(boxrun(Some(&url_of(&pool)), &["doctor"])).await;
    assert_eq!(status, 1);
    assert!(has(&findings, "schema", "failed"), "{report:#}");
    assert!(report.to_string().contains("boxrun migrate"), "{report:#}");
}

#[tokio::test]
async fn the_doctor_goes_on_without_a_database() {
    let server = ScriptedBox::start().await;
    server.answer_gets(refuses(404, "box_not_found"));
    for database in [None, Some("postgres://u:hidden@127.0.0.1:1/none")] {
        let mut command = boxrun(database, &["doctor"]);
        command
            .env("BOX_API_URL", server.url().as_str())
            .env("BOX_API_KEY", "k");
        let (findings, status, report) = doctor(command).await;
        let check = if database.is_none() {
            "configuration"
        } else {
            "database"
        };
        assert!(has(&findings, check, "failed"), "{report:#}");
        assert!(has(&findings, "key", "ok"), "{report:#}");
        assert_eq!(status, 1);
        assert!(!report.to_string().contains("hidden"));
    }
}

#[tokio::test]
async fn completions_and_manual_pages_know_the_subcommands() {
    for (arguments, expected) in [
        (&["completions", "bash"][..], "drain"),
        (&["completions", "zsh"], "drain"),
        (&["man"], "boxrun\\-drain"),
        (&["man", "drain"], "process manager"),
    ] {
        let output = boxrun(None, arguments).output().await.expect("boxrun runs");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(
            output.status.success() && text.contains(expected),
            "{arguments:?}: {text}"
        );
    }
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_role_of_workers_may_give_orders_and_the_app_may_not(pool: PgPool) {
    boxrun::schema::grant_roles(&pool).await.expect("a superuser");
    let may = |role: &'static str| {
        sqlx::query_scalar::<_, bool>(
            "select has_table_privilege($1, 'boxrun.kind_pauses', 'insert')
                and has_table_privilege($1, 'boxrun.kind_pauses', 'delete')
                and has_table_privilege($1, 'boxrun.workers', 'update')",
        )
        .bind(role)
        .fetch_one(&pool)
    };
    assert!(may("boxrun_worker").await.expect("a role"));
    assert!(!may("boxrun_app").await.expect("a role"));
}
