//! Admission: one run a key, one live run a box.

use boxrun::runs::{RunState, StartRunError};
use sqlx::PgPool;

use crate::support::app::App;
use crate::support::box_says::{Sent, says, started};

// Scenario 2
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_second_live_run_on_a_box_is_refused_and_the_index_refuses_it_too(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let first = app.admit("echo one").await;
    let refused = app.try_admit(app.new_run("echo two")).await;
    assert!(
        matches!(refused, Err(StartRunError::RunInProgress(id)) if id == first),
        "{refused:?}"
    );
    let direct = app
        .try_execute(
            "insert into boxrun.runs (id, conversation_id, box_id, principal_type, command, idempotency_key,
                    run_directory, admitted_at, deadline_at, inserted_at, updated_at)
             select gen_random_uuid(), conversation_id, box_id, principal_type, command, 'another key',
                    run_directory, admitted_at, deadline_at, inserted_at, updated_at from boxrun.runs where id = $1",
            first,
        )
        .await
        .expect_err("a second live run");
    let constraint = direct.as_database_error().and_then(|error| error.constraint());
    assert_eq!(constraint, Some("runs_one_active_per_box"));
    app.finish().await;
}

// Scenario 14
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_key_used_again_for_another_command_is_a_conflict_and_runs_nothing(pool: PgPool) {
    let app = App::start(pool, [started(4242), says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0")]).await;
    let mut first = app.new_run("echo one");
    first.idempotency_key = "K".to_owned();
    first.box_checked = false;
    let mut second = first.clone();
    second.command = "echo two".to_owned();
    let run = app.admit_new(first.clone()).await;
    let conflict = app.try_admit(second.clone()).await;
    assert!(
        matches!(conflict, Err(StartRunError::IdempotencyConflict(id)) if id == run),
        "{conflict:?}"
    );
    app.wait_for(run, RunState::Completed).await;
    let conflict = app.try_admit(second).await;
    assert!(
        matches!(conflict, Err(StartRunError::IdempotencyConflict(id)) if id == run),
        "{conflict:?}"
    );
    assert_eq!(app.admit_new(first).await, run);
    assert_eq!(app.run(run).await.command, "echo one");
    assert_eq!(app.sent(), [Sent::GetBox, Sent::Dispatch, Sent::Poll]);
    let runs: i64 = sqlx::query_scalar("select count(*) from boxrun.runs")
        .fetch_one(&app.pool)
        .await
        .unwrap();
    assert_eq!(runs, 1);
    app.finish().await;
}
