//! Recovery: any worker may die at any moment.

use boxrun::runs::RunState;
use sqlx::PgPool;

use crate::support::app::App;
use crate::support::box_says::{Sent, says, started};
use crate::support::scripted_box::Answer;

// Scenario 13
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_live_run_without_a_job_is_given_one(pool: PgPool) {
    let mut app = App::idle(pool, [says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0")]).await;
    let run = app.running("sleep 60").await;
    app.execute("delete from boxrun.jobs where run_id = $1", run).await;
    app.start_worker();
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.sent(), [Sent::Poll]);
    app.finish().await;
}

// Scenario 16
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_worker_killed_during_a_dispatch_leaves_a_probe_and_never_a_second_dispatch(pool: PgPool) {
    let script = [
        Answer::hang(),
        says("PRESENT=1 PID=4242"),
        says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0"),
    ];
    let mut app = App::idle(pool, script).await;
    let doomed = app.new_worker(|_| {});
    let run = app.admit("echo one").await;
    app.wait_for_sent(Sent::Dispatch, 1).await;
    doomed.kill();
    app.lapse_lease(run).await;
    app.start_worker();
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.sent(), [Sent::Dispatch, Sent::Probe, Sent::Poll]);
    app.finish().await;
}

// Scenario 16, between the claim and the first byte
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_claim_left_by_a_dead_worker_is_asked_for_and_never_sent(pool: PgPool) {
    let mut app = App::idle(pool, [says("PRESENT=0")]).await;
    let run = app.admit("echo one").await;
    app.execute(
        "update boxrun.runs set dispatch_attempted_at = clock_timestamp(), updated_at = clock_timestamp() where id = $1",
        run,
    )
    .await;
    app.start_worker();
    let run = app.wait_for(run, RunState::Lost).await;
    assert_eq!(run.failure_reason.as_deref(), Some("dispatch_ambiguous"));
    assert_eq!(app.sent(), [Sent::Probe]);
    app.finish().await;
}

// Scenario 16, where the first worker only was slow
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_late_answer_to_a_worker_that_lost_its_lease_changes_nothing(pool: PgPool) {
    let script = [
        started(4242).held(),
        says("PRESENT=1"),
        says("PRESENT=1 SIZE=0 DATA= ALIVE=1"),
        says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0").held(),
    ];
    let mut app = App::idle(pool, script).await;
    let slow = app.new_worker(|options| options.concurrency = [1, 0, 0, 0]);
    let run = app.admit("echo one").await;
    app.wait_for_sent(Sent::Dispatch, 1).await;
    app.start_worker();
    app.lapse_lease(run).await;
    app.wait_for_sent(Sent::Poll, 2).await;
    let before = app.run(run).await;
    assert_eq!((before.state, before.pid), (RunState::Running, None));
    app.server.release();
    slow.stop().await;
    let after = app.run(run).await;
    assert_eq!(
        (after.state, after.pid, after.updated_at),
        (before.state, None, before.updated_at)
    );
    app.server.release();
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.count_sent(Sent::Dispatch), 1);
    app.finish().await;
}
