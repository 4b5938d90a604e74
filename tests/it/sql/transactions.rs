//! Calls are part of the caller's transaction.

use std::time::Duration;

use boxrun::ids::RunId;
use boxrun::runs::RunState;
use serde_json::{Value, json};
use sqlx::postgres::PgListener;
use sqlx::{PgConnection, PgPool};

use super::{BOX, CONVERSATION, another_app, app, app_with_box, attach, refusal, row, run, run_id, start, value};
use crate::support::app::App;
use crate::support::box_says::{Sent, says, started};
use crate::support::wait::wait_until;

/// How many rows there are in all tables.
async fn rows(pool: &PgPool) -> Vec<(String, i64)> {
    let mut counts = Vec::new();
    for table in ["conversations", "boxes", "runs", "run_events", "jobs"] {
        let mut conn = pool.acquire().await.unwrap();
        let count = value(&mut conn, &format!("select count(*) from boxrun.{table}")).await;
        counts.push((table.to_owned(), count));
    }
    counts
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn rolled_back_nothing_has_happened(pool: PgPool) {
    let mut conn = app(&pool).await;
    let before = rows(&pool).await;
    run(&mut conn, "begin").await;
    run(&mut conn, &attach(CONVERSATION, BOX, "u1")).await;
    run_id(&mut conn, &start("make", "k", "")).await;
    run(&mut conn, "rollback").await;
    assert_eq!(rows(&pool).await, before);
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_rolled_back_cancel_leaves_the_run_alive(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    let id = run_id(&mut conn, &start("make", "k", "")).await;
    let before = rows(&pool).await;
    run(&mut conn, "begin").await;
    assert_eq!(cancel(&mut conn, &id).await["state"], "cancelled");
    run(&mut conn, "rollback").await;
    assert_eq!(get(&mut conn, &id).await["state"], "admitted");
    assert_eq!(rows(&pool).await, before);
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_commit_makes_a_job_and_tells_who_listens(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    let mut runs = PgListener::connect_with(&pool).await.unwrap();
    runs.listen("boxrun_runs").await.unwrap();
    let mut jobs = PgListener::connect_with(&pool).await.unwrap();
    jobs.listen("boxrun_jobs").await.unwrap();

    run(&mut conn, "begin").await;
    run_id(&mut conn, &start("make", "rolled-back", "")).await;
    run(&mut conn, "rollback").await;
    run(&mut conn, "begin").await;
    let id = run_id(&mut conn, &start("make", "k", "")).await;
    let seen_outside: i64 = sqlx::query_scalar("select count(*) from boxrun.jobs")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(seen_outside, 0, "before the commit there is no job for a worker");
    run(&mut conn, "commit").await;

    // The first that is heard is of the run that was committed: of the other nothing is.
    let heard = |payload: &str| serde_json::from_str::<Value>(payload).unwrap();
    let admitted = runs.recv().await.unwrap();
    assert_eq!(heard(admitted.payload()), json!({"run_id": id, "state": "admitted"}));
    assert_eq!(jobs.recv().await.unwrap().payload(), "start");
    let kind: String = sqlx::query_scalar("select kind from boxrun.jobs where run_id = $1")
        .bind(id.parse::<RunId>().unwrap().0)
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(kind, "start");

    cancel(&mut conn, &id).await;
    let cancelled = runs.recv().await.unwrap();
    assert_eq!(heard(cancelled.payload()), json!({"run_id": id, "state": "cancelled"}));
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_worker_drives_what_was_committed_and_has_written_down_its_limit(pool: PgPool) {
    let mut conn = app(&pool).await;
    let script = [started(4242), says("PRESENT=1 SIZE=5 DATA=hello EXIT=0 ALIVE=0")];
    let mut setting = App::idle(pool, script).await;
    setting.start_worker_with(|options| options.max_duration = Duration::from_secs(1234));
    let limit = "select s.max_duration_seconds from boxrun.settings s";
    let written = async || {
        sqlx::query_scalar::<_, i32>(limit)
            .fetch_one(&setting.pool)
            .await
            .unwrap()
    };
    wait_until("the limit is written down", written, |seconds| *seconds == 1234).await;

    let here = setting.conversation.to_string();
    let call = start("echo hello", "k", ", max_duration_seconds => 1234").replace(CONVERSATION, &here);
    let id = run_id(&mut conn, &call).await;
    setting.wait_for(id.parse().unwrap(), RunState::Completed).await;
    let output = row(&mut conn, &format!("boxrun.read_output('{here}', '{id}')")).await;
    assert_eq!(output["output"], "hello");
    let asked = setting.sent();
    assert_eq!(
        asked,
        [Sent::GetBox, Sent::Dispatch, Sent::Poll],
        "start asks the provider first"
    );
    setting.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_refusal_aborts_the_transaction(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    run(&mut conn, "begin").await;
    run_id(&mut conn, &start("make", "k", "")).await;
    refusal(&mut conn, &format!("select {}", start("", "l", ""))).await;
    assert_eq!(refusal(&mut conn, "select 1").await.sqlstate, "25P02");
    run(&mut conn, "commit").await;
    let runs: i64 = sqlx::query_scalar("select count(*) from boxrun.runs")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(runs, 0);
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn behind_a_savepoint_a_refusal_leaves_the_transaction_alive(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    run(&mut conn, "begin; savepoint attempt").await;
    refusal(&mut conn, &format!("select {}", start("", "k", ""))).await;
    run(&mut conn, "rollback to savepoint attempt").await;
    let kept = run_id(&mut conn, &start("make", "k", "")).await;
    // A run that was admitted behind a savepoint goes with it, and its box and key are free again.
    cancel(&mut conn, &kept).await;
    run(&mut conn, "savepoint attempt").await;
    let dropped = run_id(&mut conn, &start("make", "l", "")).await;
    run(&mut conn, "rollback to savepoint attempt").await;
    let next = run_id(&mut conn, &start("make", "l", "")).await;
    assert_ne!(next, dropped);
    run(&mut conn, "commit").await;
    assert_eq!(get(&mut conn, &next).await["state"], "admitted");
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn at_repeatable_read_a_lost_race_is_a_serialization_failure_for_the_caller(pool: PgPool) {
    let mut late = app_with_box(&pool).await;
    let mut early = another_app(&pool).await;
    run(
        &mut late,
        "begin isolation level repeatable read; select * from boxrun.list_runs(gen_random_uuid())",
    )
    .await;
    let id = run_id(&mut early, &start("make", "k", "")).await;
    let call = start("make", "k", "");
    assert_eq!(refusal(&mut late, &format!("select {call}")).await.sqlstate, "40001");
    run(&mut late, "rollback").await;
    assert_eq!(run_id(&mut late, &call).await, id, "tried again it is the answer");
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn who_waits_for_a_rival_gets_the_answer_that_the_rival_leaves(pool: PgPool) {
    for (end, same) in [("commit", true), ("rollback", false)] {
        let mut first = app_with_box(&pool).await;
        let mut second = another_app(&pool).await;
        let call = start("make", end, "");
        run(&mut first, "begin").await;
        let rival = run_id(&mut first, &call).await;
        let waiting = tokio::spawn(async move { run_id(&mut second, &call).await });
        wait_until(
            "the second waits for the first",
            async || {
                sqlx::query_scalar::<_, i64>(
                    "select count(*) from pg_stat_activity
                         where datname = current_database() and wait_event_type = 'Lock'",
                )
                .fetch_one(&pool)
                .await
                .unwrap()
            },
            |waiting| *waiting > 0,
        )
        .await;
        run(&mut first, end).await;
        let answer = waiting.await.unwrap();
        assert_eq!(answer == rival, same, "{end}");
        cancel(&mut first, &answer).await;
    }
}

async fn get(conn: &mut PgConnection, id: &str) -> Value {
    row(
        conn,
        &format!("boxrun.get_run(conversation_id => '{CONVERSATION}', run_id => '{id}')"),
    )
    .await
}

async fn cancel(conn: &mut PgConnection, id: &str) -> Value {
    let principal = r#"{"type": "user", "id": "u1"}"#;
    row(
        conn,
        &format!(
            "boxrun.cancel_run(conversation_id => '{CONVERSATION}', run_id => '{id}', principal => '{principal}')"
        ),
    )
    .await
}
