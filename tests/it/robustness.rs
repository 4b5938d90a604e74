//! What a database and a provider do to workers on a bad day. docs/robustness.md has the whole list, and where each is shown.

use std::time::{Duration, SystemTime};

use boxrun::ids::RunId;
use boxrun::queue::JobKind;
use boxrun::runs::{self, RunState};
use chrono::TimeDelta;
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool};
use uuid::Uuid;

use crate::support::app::{App, Snapshot};
use crate::support::box_says::{Sent, log, offset_of, says, started};
use crate::support::scripted_box::Answer;
use crate::support::wait::wait_until;
use crate::support::worker::APPLICATION;

const CLAIM: &str = include_str!("../../src/queue/sql/claim.sql");
/// A worker here makes its connections anew this often.
const CONNECTION_LIFETIME: Duration = Duration::from_millis(300);

fn failed_once(seen: &Snapshot) -> bool {
    seen.job
        .as_ref()
        .is_some_and(|job| job.attempts == 1 && job.lease.is_none())
}

/// The sessions of workers: when they began, and what they said last.
async fn sessions(pool: &PgPool) -> Vec<(i32, String)> {
    sqlx::query_as(
        "select pid, query from pg_stat_activity where datname = current_database() and application_name = $1",
    )
    .bind(APPLICATION)
    .fetch_all(pool)
    .await
    .unwrap()
}

async fn cut_sessions(pool: &PgPool) -> Vec<i32> {
    let pids: Vec<i32> = sessions(pool).await.into_iter().map(|(pid, _)| pid).collect();
    sqlx::query("select pg_terminate_backend(pid) from unnest($1::int[]) as s(pid)")
        .bind(&pids)
        .execute(pool)
        .await
        .unwrap();
    pids
}

/// Both kinds: what the worker asks for has one column more, and a column that it knows has another type.
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_migration_under_a_running_worker_stops_nothing(pool: PgPool) {
    let mut app = App::idle(pool, []).await;
    app.server.answer_by(|request| match Sent::of(request) {
        Sent::Stop => says("CANCELLED=1"),
        _ => says("PRESENT=1 SIZE=0 DATA= ALIVE=1"),
    });
    let run = app.running("sleep 60").await;
    app.start_worker_with(|options| options.connection_lifetime = CONNECTION_LIFETIME);
    // PostgreSQL settles on a plan for good after five executions.
    app.wait_for_sent(Sent::Poll, 10).await;
    for migration in [
        "alter table boxrun.runs add column later_added text default 'x'",
        "alter table boxrun.jobs add column later_added bigint default 1",
        "alter table boxrun.jobs alter column last_error_code type varchar",
    ] {
        sqlx::query(migration).execute(&app.pool).await.unwrap();
        app.wait_for_sent(Sent::Poll, app.count_sent(Sent::Poll) + 5).await;
    }
    // The test's own sessions know old plans too.
    app.pool = PgPool::connect_lazy_with((*app.pool.connect_options()).clone());
    app.cancel(run).await;
    app.wait_for(run, RunState::Cancelled).await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_worker_goes_on_after_the_database_was_read_only_and_nothing_is_asked_twice(pool: PgPool) {
    let answer = says("PRESENT=1 SIZE=5 DATA=hello EXIT=0 ALIVE=0").held();
    let mut app = App::idle(pool, [answer]).await;
    let run = app.running("sleep 60").await;
    app.start_worker_with(|options| options.connection_lifetime = CONNECTION_LIFETIME);
    app.wait_for_sent(Sent::Poll, 1).await;

    // A session of before stays as it was: this one can end what it began.
    let mut operator = app.pool.acquire().await.unwrap();
    let name: String = sqlx::query_scalar("select quote_ident(current_database())")
        .fetch_one(&mut *operator)
        .await
        .unwrap();
    let set = format!("alter database {name} set default_transaction_read_only = on");
    sqlx::query(AssertSqlSafe(set)).execute(&mut *operator).await.unwrap();
    let old = cut_sessions(&app.pool).await;
    app.server.release();
    let look = async || sessions(&app.pool).await;
    wait_until("the worker tries to store what it heard", look, |seen| {
        seen.iter()
            .any(|(pid, query)| !old.contains(pid) && (query.contains("update boxrun.runs") || query == "ROLLBACK"))
    })
    .await;
    assert_eq!(app.run(run).await.state, RunState::Running);

    let reset = format!("alter database {name} reset default_transaction_read_only");
    sqlx::query(AssertSqlSafe(reset)).execute(&mut *operator).await.unwrap();
    drop(operator);
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.output(run, 0).await.output, "hello");
    assert_eq!(app.sent(), [Sent::Poll]);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_lost_listen_connection_is_made_anew(pool: PgPool) {
    let mut app = App::idle(pool, []).await;
    app.start_worker();
    let look = async || sessions(&app.pool).await;
    let listens = |query: &str| query.to_lowercase().starts_with("listen");
    let mut old = Vec::new();
    for _ in 0..3 {
        let listening = wait_until("a new session listens", look, |seen| {
            seen.iter().any(|(pid, query)| !old.contains(pid) && listens(query))
        });
        listening.await;
        old.extend(cut_sessions(&app.pool).await);
    }
    app.finish().await;
}

/// How many pages one claim touches; what it claimed is given back.
async fn pages_of_a_claim(pool: &PgPool) -> i64 {
    let mut tx = pool.begin().await.unwrap();
    let explain = format!("explain (analyze, buffers, format json) {CLAIM}");
    let plan: Value = sqlx::query_scalar(AssertSqlSafe(explain))
        .bind(Uuid::new_v4())
        .bind(15.0_f64)
        .bind("worker")
        .bind(10_i64)
        .bind(10_i64)
        .bind(10_i64)
        .bind(10_i64)
        // No kind is paused.
        .bind(0_i64)
        .bind(0_i64)
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    let pages = |name: &str| plan[0]["Plan"][name].as_i64().expect("buffers were counted");
    pages("Shared Hit Blocks") + pages("Shared Read Blocks")
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_claim_costs_what_is_due_and_not_what_waits_or_has_ended(pool: PgPool) {
    let app = App::idle(pool, []).await;
    for _ in 0..3 {
        app.running_as(app.new_run_on(&app.another_box().await, "sleep 60"))
            .await;
    }
    sqlx::query("analyze boxrun.jobs").execute(&app.pool).await.unwrap();
    // The first looks at the catalogue too.
    pages_of_a_claim(&app.pool).await;
    let alone = pages_of_a_claim(&app.pool).await;

    let mut tx = app.pool.begin().await.unwrap();
    // Jobs without runs: the queue's own cost.
    for statement in [
        "set local session_replication_role = replica",
        "insert into boxrun.jobs (run_id, kind, due_at)
         select gen_random_uuid(), (array['poll', 'cleanup'])[1 + i % 2], clock_timestamp() + i * interval '1 second' + interval '1 hour'
           from generate_series(1, 20000) as i",
    ] {
        sqlx::query(statement).execute(&mut *tx).await.unwrap();
    }
    tx.commit().await.unwrap();
    sqlx::query("analyze boxrun.jobs").execute(&app.pool).await.unwrap();
    pages_of_a_claim(&app.pool).await;
    let among_many = pages_of_a_claim(&app.pool).await;
    // A deeper index, a page that is fuller: a few pages more for each of the three, and not hundreds.
    assert!(
        among_many <= alone + 60,
        "{alone} pages alone, {among_many} among 20000 jobs that wait"
    );
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_long_transaction_elsewhere_holds_nobody_up(pool: PgPool) {
    let mut app = App::idle(pool, []).await;
    app.server.answer_by(|request| match Sent::of(request) {
        Sent::Dispatch => started(4242),
        _ => says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0"),
    });
    let mut report = app.pool.begin().await.unwrap();
    for statement in [
        "set transaction isolation level repeatable read",
        "select count(*) from boxrun.jobs, boxrun.runs",
    ] {
        sqlx::query(statement).execute(&mut *report).await.unwrap();
    }
    app.start_worker();
    for _ in 0..10 {
        let run = app.admit("echo one").await;
        app.wait_for(run, RunState::Completed).await;
    }
    report.rollback().await.unwrap();
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_job_that_a_jump_of_the_clock_put_far_ahead_is_pulled_forward(pool: PgPool) {
    let mut app = App::idle(pool, []).await;
    app.server.answer_by(|_| says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0"));
    let far = [
        "update boxrun.jobs set due_at = clock_timestamp() + interval '5 hours' where run_id = $1",
        "update boxrun.jobs set lease = gen_random_uuid(), leased_by = 'gone', lease_until = clock_timestamp() + interval '5 hours'
          where run_id = $1",
    ];
    let mut runs: Vec<RunId> = Vec::new();
    for put_ahead in far {
        let run = app.running_as(app.new_run_on(&app.another_box().await, "sleep 60"));
        let run = run.await;
        app.execute(put_ahead, run).await;
        runs.push(run);
    }
    app.start_worker();
    for run in runs {
        app.wait_for(run, RunState::Completed).await;
    }
    app.finish().await;
}

fn rate_limited(retry_after: &str) -> Answer {
    Answer::status(429, &serde_json::json!({ "ok": false, "code": "rate_limited" }))
        .with_header("retry-after", retry_after)
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_retry_after_that_has_passed_or_makes_no_sense_holds_nobody_back(pool: PgPool) {
    let past = httpdate::fmt_http_date(SystemTime::now() - Duration::from_secs(3600));
    let app = App::start(pool, []).await;
    for asked in ["0", "-5", "soon", &past] {
        let end = says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0");
        app.server.script([rate_limited(asked), end.held()]);
        let run = app.running("sleep 60").await;
        app.hurry(run).await;
        let failed = |seen: &Snapshot| seen.job.as_ref().is_some_and(|job| job.attempts == 1);
        let seen = app.wait_until(run, "the poll is to be tried again", failed).await;
        let due_at = seen.job.expect("a job").due_at;
        assert!(due_at <= seen.run.read_at + TimeDelta::seconds(1), "{asked}: {due_at}");
        app.server.release();
        app.wait_for(run, RunState::Completed).await;
    }
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_retry_after_of_a_week_is_a_minute_for_every_worker(pool: PgPool) {
    let in_a_week = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(7 * 24 * 3600));
    let mut app = App::idle(pool, [rate_limited(&in_a_week)]).await;
    let first = app.new_worker(|_| {});
    let run = app.running("sleep 60").await;
    let seen = app.wait_until(run, "the poll is to be tried again", failed_once).await;
    let wait = seen.job.expect("a job").due_at - seen.run.read_at;
    // The provider's minute, and at most a fifth more, so that not all come back in one second.
    assert!(
        wait > TimeDelta::seconds(50) && wait <= TimeDelta::seconds(72),
        "{wait}"
    );
    let held: f64 = sqlx::query_scalar(
        "select extract(epoch from requests_held_until - clock_timestamp())::float8 from boxrun.provider",
    )
    .fetch_one(&app.pool)
    .await
    .unwrap();
    assert!((50.0..=60.0).contains(&held), "{held}");
    first.stop().await;

    app.start_worker();
    let other = app
        .running_as(app.new_run_on(&app.another_box().await, "sleep 60"))
        .await;
    let seen = app.wait_until(other, "the other is held back", failed_once).await;
    let code = seen.job.and_then(|job| job.last_error_code);
    assert_eq!(code.as_deref(), Some("box_rate_limited"));
    assert_eq!(app.sent(), [Sent::Poll]);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn much_output_between_two_polls_and_an_exit_is_read_to_the_last_line(pool: PgPool) {
    const PART: usize = 256 * 1024;
    let text: String = (0..1_000_000 / 10).map(|line| format!("{line:09}\n")).collect();
    let bytes = text.clone().into_bytes();
    let mut app = App::idle(pool, []).await;
    app.server.answer_by(move |request| {
        let from = offset_of(request).min(bytes.len());
        let part = &bytes[from..bytes.len().min(from + PART)];
        log(bytes.len(), part, "EXIT=0 ALIVE=0")
    });
    let run = app.running("seq").await;
    app.start_worker();
    let run = app.wait_for(run, RunState::Completed).await;
    assert_eq!(run.last_output_offset, 1_000_000);
    let read = app.output(run.id, 0).await;
    assert!(read.truncated);
    assert_eq!(read.output, text[text.len() - read.output.len()..]);
    assert!(read.output.len() > 23 * 1024, "{}", read.output.len());
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn progress_bars_and_colours_pass_unchanged(pool: PgPool) {
    let shown = "10%\r\u{1b}[32m20%\u{1b}[0m\r\u{1b}[2K100%\r\n\u{1b}]0;title\u{7}done\u{8}\t\r";
    let bytes = shown.as_bytes();
    // Cut inside an escape sequence.
    let script = [
        log(7, &bytes[..7], "ALIVE=1"),
        log(bytes.len(), &bytes[7..], "EXIT=0 ALIVE=0"),
    ];
    let mut app = App::idle(pool, script).await;
    let run = app.running("progress").await;
    app.start_worker();
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.output(run, 0).await.output, shown);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_that_was_removed_is_said_to_be_not_there(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let run = app.running("sleep 60").await;
    app.execute("delete from boxrun.runs where id = $1", run).await;
    let mut conn = app.pool.acquire().await.unwrap();
    let asked = [
        runs::read::get_run(&mut conn, app.conversation, run).await.err(),
        runs::read_output(&mut conn, app.conversation, run, 7).await.err(),
    ];
    for error in asked {
        let error = error.expect("there is no such run").to_string();
        assert!(error.starts_with("box_run_not_found: "), "{error}");
    }
    drop(conn);
    assert_eq!(app.job(run).await, None);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_says_when_it_was_seen_by_whom_and_what_went_wrong_since(pool: PgPool) {
    let script = [
        says("PRESENT=1 SIZE=0 DATA= ALIVE=1"),
        Answer::raw(502, "text/html", "<html>Bad Gateway</html>"),
        Answer::hang(),
    ];
    let mut app = App::idle(pool, script).await;
    let run = app.running("sleep 60").await;
    app.start_worker();
    app.wait_until(run, "one poll has failed", failed_once).await;
    app.hurry(run).await;
    app.wait_for_sent(Sent::Poll, 3).await;
    let seen = app.run(run).await;
    assert_eq!(seen.state, RunState::Running);
    assert!(seen.last_seen_at.is_some_and(|at| at <= seen.read_at), "{seen:#?}");
    assert_eq!(seen.last_error_code.as_deref(), Some("box_unreachable"));
    assert!(seen.last_error.is_some_and(|text| text.contains("502")));
    let worker = seen.worker.expect("the worker that polls");
    let known: i64 = sqlx::query_scalar("select count(*) from boxrun.workers where id = $1")
        .bind(&worker)
        .fetch_one(&app.pool)
        .await
        .unwrap();
    assert_eq!(known, 1, "{worker}");
    assert_eq!(app.job(run).await.map(|job| job.kind), Some(JobKind::Poll));
    app.finish().await;
}
