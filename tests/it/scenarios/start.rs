//! Start: a command is sent at most once, and in doubt asked for.

use boxrun::runs::RunState;
use sqlx::PgPool;

use crate::support::app::{App, BOX};
use crate::support::box_says::{Sent, fails, refuses, says, started};
use crate::support::scripted_box::Answer;

// Scenario 5
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_that_ends_before_its_first_poll_takes_two_requests(pool: PgPool) {
    let app = App::start(pool, [started(4242), says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0")]).await;
    let run = app.admit("echo one").await;
    let run = app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.sent(), [Sent::Dispatch, Sent::Poll]);
    for request in app.server.requests() {
        assert_eq!(request.method, "POST");
        assert_eq!(request.path, format!("/boxes/{BOX}/commands"));
    }
    assert!(app.server.commands()[0].contains(&run.run_directory));
    assert_eq!(
        run.run_directory,
        format!("$HOME/.openagents/box-runs/users/u1/{}", run.id)
    );
    assert_eq!((run.pid, run.exit_status), (Some(4242), Some(0)));
    app.rests(run.id).await;
    app.finish().await;
}

// Scenario 7
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_dispatch_in_doubt_is_asked_for_and_lost_when_the_box_does_not_have_it(pool: PgPool) {
    let app = App::start(pool, [Answer::broken(), says("PRESENT=0")]).await;
    let run = app.admit("echo one").await;
    let run = app.wait_for(run, RunState::Lost).await;
    assert_eq!(run.failure_reason.as_deref(), Some("dispatch_ambiguous"));
    assert_eq!(app.sent(), [Sent::Dispatch, Sent::Probe]);
    app.rests(run.id).await;
    app.finish().await;
}

// Scenario 8
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_dispatch_whose_answer_was_lost_runs_without_a_known_pid(pool: PgPool) {
    let script = [
        Answer::broken(),
        says("PRESENT=1"),
        says("PRESENT=1 SIZE=0 DATA= ALIVE=1"),
        Answer::hang(),
    ];
    let app = App::start(pool, script).await;
    let run = app.admit("echo one").await;
    let run = app.wait_for(run, RunState::Running).await;
    assert_eq!(run.pid, None);
    app.wait_for_sent(Sent::Poll, 2).await;
    assert_eq!(app.sent(), [Sent::Dispatch, Sent::Probe, Sent::Poll, Sent::Poll]);
    app.finish().await;
}

// Scenario 19
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn an_unanswered_probe_is_asked_again_and_proves_nothing(pool: PgPool) {
    let script = [
        Answer::broken(),
        fails(502),
        fails(502),
        fails(502),
        says("PRESENT=1 PID=4242").held(),
        says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0"),
    ];
    let app = App::start(pool, script).await;
    let run = app.admit("echo one").await;
    for probes in 0..4 {
        let seen = app
            .wait_until(run, "the start is to be tried again", |seen| {
                let unleased = |job: &crate::support::app::Job| job.lease.is_none() && job.attempts == probes + 1;
                seen.job.as_ref().is_some_and(unleased)
            })
            .await;
        assert_eq!(seen.run.state, RunState::Admitted);
        app.hurry(run).await;
    }
    app.wait_for_sent(Sent::Probe, 4).await;
    assert_eq!(app.run(run).await.state, RunState::Admitted);
    app.server.release();
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(
        app.events(run)
            .await
            .iter()
            .filter(|event| *event == "found_on_box")
            .count(),
        1
    );
    assert_eq!(app.count_sent(Sent::Dispatch), 1);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_probe_is_asked_again_within_five_seconds_however_often_it_failed(pool: PgPool) {
    let mut app = App::idle(pool, [fails(502)]).await;
    let run = app.admit("echo one").await;
    app.execute(
        "update boxrun.runs set dispatch_attempted_at = clock_timestamp(), updated_at = clock_timestamp() where id = $1",
        run,
    )
    .await;
    app.execute("update boxrun.jobs set attempts = 20 where run_id = $1", run)
        .await;
    app.start_worker();
    let seen = app
        .wait_until(run, "the probe is to be tried again", |seen| {
            seen.job
                .as_ref()
                .is_some_and(|job| job.lease.is_none() && job.attempts == 21)
        })
        .await;
    let due_at = seen.job.expect("a job").due_at;
    // The run was read before its job.
    let read_at = app.run(run).await.read_at;
    assert!(due_at <= read_at + chrono::TimeDelta::seconds(5), "{due_at}");
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_dispatch_that_certainly_did_not_run_is_sent_again(pool: PgPool) {
    let script = [
        refuses(409, "box_starting"),
        started(4242),
        says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0"),
    ];
    let app = App::start(pool, script).await;
    let run = app.admit("echo one").await;
    let seen = app
        .wait_until(run, "the claim is released", |seen| {
            seen.timeline.iter().any(|event| event.contains("dispatch_released"))
        })
        .await;
    assert_eq!(seen.run.state, RunState::Admitted);
    app.hurry(run).await;
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.sent(), [Sent::Dispatch, Sent::Dispatch, Sent::Poll]);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_directory_that_is_there_already_counts_as_found_and_a_tombstone_as_never_started(pool: PgPool) {
    let script = [
        Answer::stdout_exit("OPENAGENTS_RUN_EXISTS\n", 73),
        says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0"),
        Answer::stdout_exit("OA_TOMBSTONE=1\n", 73),
        Answer::stdout_exit("OA_REFUSED=disk\n", 74),
    ];
    let app = App::start(pool, script).await;
    let found = app.admit("echo one").await;
    app.wait_for(found, RunState::Completed).await;
    let buried = app.admit("echo one").await;
    let buried = app.wait_for(buried, RunState::Lost).await;
    assert_eq!(buried.failure_reason.as_deref(), Some("dispatch_ambiguous"));
    let refused = app.admit("echo one").await;
    let refused = app.wait_for(refused, RunState::Failed).await;
    assert_eq!(refused.failure_reason.as_deref(), Some("launch_refused"));
    assert_eq!(refused.exit_status, None);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn an_unchecked_box_is_waited_for_while_it_starts_and_fails_the_run_when_it_was_stopped(pool: PgPool) {
    let script = [started(4242), says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0")];
    let app = App::idle(pool, script).await;
    app.server.answer_gets(Answer::box_state(BOX, "provisioning"));
    let mut app = app;
    app.start_worker();
    let run = app.admit_unchecked("echo one").await;
    let seen = app
        .wait_until(run, "the start is to be tried again", |seen| {
            seen.job
                .as_ref()
                .is_some_and(|job| job.attempts > 0 && job.lease.is_none())
        })
        .await;
    assert_eq!(seen.run.state, RunState::Admitted);
    assert_eq!(seen.run.dispatch_attempted_at, None);
    app.server.answer_gets(Answer::box_state(BOX, "ready"));
    app.hurry(run).await;
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.count_sent(Sent::Dispatch), 1);

    app.server.answer_gets(Answer::box_state(BOX, "archived"));
    let run = app.admit_unchecked("echo two").await;
    let run = app.wait_for(run, RunState::Failed).await;
    assert_eq!(run.failure_reason.as_deref(), Some("box_stopped"));
    assert_eq!(app.count_sent(Sent::Dispatch), 1);
    app.finish().await;
}
