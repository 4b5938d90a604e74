//! The worker is killed at each step of a run; another one goes on, and the command starts once at most.

use std::time::Duration;

use boxrun::ids::{BoxId, RunId};
use boxrun::postgres::Durability;
use boxrun::runs::{Run, RunState};
use boxrun::sim::{Fault, FaultTarget};
use sqlx::{Postgres, Transaction};

use super::command::{OnTerm, Printing};
use super::setting::{FOR_EVER_MS, Setting, in_setting};
use super::worker::Worker;
use crate::support::wait::wait_until;

fn command() -> Printing {
    Printing::over(10, Duration::from_secs(2))
}

/// Claimed durably, and the request was not taken up by the box.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_before_the_box_took_its_dispatch_up_leaves_a_lost_run() {
    in_setting(Durability::Forgotten, async |setting| {
        let box_id = setting.attach(0).await;
        setting.inject(&box_id, FaultTarget::Dispatch, Fault::Latency { ms: FOR_EVER_MS });
        let mut first = Worker::start(setting, "first").await;
        let run = setting.admit(&box_id, command()).await;
        setting.wait_for_record(run, "request", "dispatch").await;
        assert!(
            setting.run(run).await.is_claimed(),
            "the claim comes before the request"
        );
        first.kill9().await;

        let _second = Worker::start(setting, "second").await;
        assert_lost(&setting.ended(run).await);
        assert_eq!(setting.starts(&box_id, run), 0);
        assert_eq!(setting.recorded(run, "request", "dispatch").len(), 1);
        assert_eq!(setting.recorded(run, "request", "probe").len(), 1);
    })
    .await;
}

/// The dispatch is still on its way when the next worker asks for the run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dispatch_that_arrives_after_the_probe_starts_nothing() {
    in_setting(Durability::Forgotten, async |setting| {
        let box_id = setting.attach(0).await;
        let late = Fault::DelayedDelivery { ms: 10_000 };
        setting.inject(&box_id, FaultTarget::Dispatch, late);
        let mut first = Worker::start(setting, "first").await;
        let run = setting.admit(&box_id, command()).await;
        setting.wait_for_record(run, "request", "dispatch").await;
        first.kill9().await;

        let _second = Worker::start(setting, "second").await;
        assert_lost(&setting.ended(run).await);
        assert_eq!(
            setting.recorded(run, "finished", "dispatch").len(),
            0,
            "it is still on its way"
        );
        setting.wait_for_record(run, "finished", "dispatch").await;
        let arrived = setting.recorded(run, "finished", "dispatch");
        assert_eq!(arrived[0]["last_line"], "OA_TOMBSTONE=1");
        assert_eq!(setting.starts(&box_id, run), 0);
    })
    .await;
}

/// The box did the work, its answer is on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_before_its_dispatch_was_answered_leaves_a_run_that_is_found() {
    in_setting(Durability::Forgotten, async |setting| {
        let box_id = setting.attach(0).await;
        setting.inject(&box_id, FaultTarget::Dispatch, Fault::SlowAnswer { ms: FOR_EVER_MS });
        let mut first = Worker::start(setting, "first").await;
        let run = setting.admit(&box_id, command()).await;
        setting.wait_for_record(run, "finished", "dispatch").await;
        assert_eq!(setting.run(run).await.state, RunState::Admitted);
        first.kill9().await;

        let _second = Worker::start(setting, "second").await;
        assert_completed(setting, &box_id, run).await;
        assert_eq!(setting.recorded(run, "request", "probe").len(), 1);
    })
    .await;
}

/// The answer is there, its outcome not committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_as_it_commits_a_dispatch_leaves_a_run_that_is_found() {
    in_setting(Durability::Forgotten, async |setting| {
        let box_id = setting.attach(0).await;
        // Long enough to lock the run between its claim and its outcome.
        setting.inject(&box_id, FaultTarget::Dispatch, Fault::SlowAnswer { ms: 2500 });
        let mut first = Worker::start(setting, "first").await;
        let run = setting.admit(&box_id, command()).await;
        setting.wait_for_record(run, "finished", "dispatch").await;
        let locked = lock(setting, run).await;
        wait_for_a_blocked_commit(setting).await;
        first.kill9().await;
        locked.rollback().await.expect("a rollback");

        let _second = Worker::start(setting, "second").await;
        assert_completed(setting, &box_id, run).await;
        assert_eq!(setting.recorded(run, "request", "probe").len(), 1);
    })
    .await;
}

/// The output has been read, and is not committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_as_it_commits_a_poll_loses_no_output_and_doubles_none() {
    in_setting(Durability::Forgotten, async |setting| {
        let box_id = setting.attach(0).await;
        let mut first = Worker::start(setting, "first").await;
        let run = setting.admit(&box_id, command()).await;
        let look = async || setting.run(run).await;
        let some_output = |run: &Run| run.state == RunState::Running && run.last_output_offset > 0;
        wait_until("a poll has stored output", look, some_output).await;
        let locked = lock(setting, run).await;
        wait_for_a_blocked_commit(setting).await;
        first.kill9().await;
        locked.rollback().await.expect("a rollback");

        let _second = Worker::start(setting, "second").await;
        assert_completed(setting, &box_id, run).await;
        assert_eq!(setting.recorded(run, "request", "probe").len(), 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_while_the_box_kills_a_run_leaves_a_run_that_is_cancelled() {
    in_setting(Durability::Forgotten, async |setting| {
        let box_id = setting.attach(0).await;
        let stubborn = Printing {
            on_term: OnTerm::GoesOn,
            ..Printing::over(300, Duration::from_secs(60))
        };
        let mut first = Worker::start(setting, "first").await;
        let run = setting.admit(&box_id, stubborn).await;
        let look = async || setting.run(run).await;
        wait_until("the run prints", look, |run| run.last_output_offset > 0).await;
        // However long the machine takes to kill the worker, it has not heard how the kill went.
        setting.inject(&box_id, FaultTarget::Stop, Fault::SlowAnswer { ms: FOR_EVER_MS });
        setting.cancel(run).await;
        setting.wait_for_record(run, "started", "stop").await;
        first.kill9().await;
        assert_eq!(setting.run(run).await.state, RunState::Running);

        let _second = Worker::start(setting, "second").await;
        let ended = setting.ended(run).await;
        assert_eq!(ended.state, RunState::Cancelled, "{ended:?}");
        assert!(ended.cancellation_effective_at >= ended.cancellation_requested_at);
        assert_eq!(setting.starts(&box_id, run), 1);
        let output = setting.output(run).await;
        assert!(stubborn.printed_so_far(&output), "{output:?}");
    })
    .await;
}

fn assert_lost(run: &Run) {
    assert_eq!(run.state, RunState::Lost, "{run:?}");
    assert_eq!(run.failure_reason.as_deref(), Some("dispatch_ambiguous"));
}

async fn assert_completed(setting: &Setting, box_id: &BoxId, run: RunId) {
    let ended = setting.ended(run).await;
    assert_eq!(ended.state, RunState::Completed, "{ended:?}");
    assert_eq!(setting.starts(box_id, run), 1);
    assert_eq!(setting.recorded(run, "request", "dispatch").len(), 1);
    assert_eq!(setting.output(run).await, command().output());
}

/// Keeps everybody else from changing the run.
async fn lock(setting: &Setting, run: RunId) -> Transaction<'static, Postgres> {
    let mut tx = setting.pool.begin().await.expect("a transaction");
    sqlx::query("select from boxrun.runs where id = $1 for update")
        .bind(run.0)
        .execute(&mut *tx)
        .await
        .expect("the run is there");
    tx
}

async fn wait_for_a_blocked_commit(setting: &Setting) {
    let look = async || {
        sqlx::query_scalar::<_, i64>("select count(*) from pg_stat_activity where wait_event_type = 'Lock'")
            .fetch_one(&setting.pool)
            .await
            .expect("the database answers")
    };
    wait_until("a worker waits for the lock", look, |count| *count > 0).await;
}
