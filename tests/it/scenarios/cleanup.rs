//! Cleanup: nothing is left behind on a box, and nobody waits for ever.

use boxrun::runs::RunState;
use chrono::TimeDelta;
use sqlx::PgPool;

use crate::support::app::App;
use crate::support::box_says::{Sent, fails, refuses, says, started};
use crate::support::scripted_box::Answer;

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn after_the_retention_the_directory_is_removed_and_the_job_is_gone(pool: PgPool) {
    let script = [
        started(4242),
        says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0"),
        says("REMOVED=1"),
    ];
    let mut app = App::idle(pool, script).await;
    app.start_worker_with(|options| options.jobs.retention = TimeDelta::zero());
    let run = app.admit("echo one").await;
    app.wait_for(run, RunState::Completed).await;
    app.wait_until(run, "its job is gone", |seen| seen.job.is_none()).await;
    assert_eq!(app.sent(), [Sent::Dispatch, Sent::Poll, Sent::Cleanup]);
    assert_eq!(
        app.events(run).await.last().map(String::as_str),
        Some("directory_removed")
    );
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_cleanup_that_was_given_up_is_taken_up_again_for_the_next_run_of_the_box(pool: PgPool) {
    let script = [
        says("PRESENT=0"),
        fails(502).held(),
        fails(502),
        says("CANCELLED=1"),
        started(4242),
        says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0").held(),
    ];
    let mut app = App::idle(pool, script).await;
    let old = app.running("sleep 60").await;
    let worker = app.new_worker(|options| options.jobs.retention = TimeDelta::zero());
    app.wait_for(old, RunState::Lost).await;
    app.wait_for_sent(Sent::Stop, 1).await;
    app.pass_time_after_end(old, "2 hours").await;
    app.server.release();
    app.wait_until(old, "its cleanup is given up", |seen| seen.job.is_none())
        .await;
    assert_eq!(
        app.events(old).await.last().map(String::as_str),
        Some("cleanup_given_up")
    );
    worker.stop().await;

    app.start_worker();
    let new = app.admit("echo two").await;
    app.wait_until(old, "its end is verified", |seen| seen.run.end_verified_at.is_some())
        .await;
    app.hurry(new).await;
    app.wait_for_sent(Sent::Poll, 2).await;
    app.server.release();
    app.wait_for(new, RunState::Completed).await;
    assert_eq!(
        app.sent(),
        [
            Sent::Poll,
            Sent::Stop,
            Sent::Stop,
            Sent::Stop,
            Sent::Dispatch,
            Sent::Poll
        ]
    );
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_box_that_is_gone_ends_the_cleanup(pool: PgPool) {
    let mut app = App::idle(pool, [Answer::broken(), refuses(409, "box_gone")]).await;
    let run = app.running("sleep 60").await;
    app.pass_deadline(run).await;
    app.start_worker();
    app.wait_for(run, RunState::TimedOut).await;
    app.hurry(run).await;
    app.wait_until(run, "its job is gone", |seen| seen.job.is_none()).await;
    assert!(app.run(run).await.end_verified_at.is_some());
    assert_eq!(app.sent(), [Sent::Stop, Sent::Stop]);
    app.finish().await;
}
