//! Stop: cancel and deadline, and who wins against the run's own end.

use boxrun::runs::RunState;
use sqlx::PgPool;

use crate::support::app::{App, BOX};
use crate::support::box_says::{Sent, fails, refuses, says, started};
use crate::support::scripted_box::Answer;

// Scenario 9
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_cancel_is_asked_for_until_the_box_says_that_the_run_is_dead(pool: PgPool) {
    let mut app = App::idle(pool, [Answer::broken(), says("CANCELLED=1")]).await;
    let run = app.running("sleep 60").await;
    let asked = app.cancel(run).await;
    assert_eq!(
        (asked.box_id.as_str(), asked.state),
        (app.box_id.as_str(), RunState::Running)
    );
    let requested_at = asked.cancellation_requested_at.expect("a time");
    app.start_worker();
    let ended = app.wait_for(run, RunState::Cancelled).await;
    assert_eq!(ended.cancellation_requested_at, Some(requested_at));
    assert!(ended.cancellation_effective_at.expect("a time") >= requested_at);
    assert_eq!(app.sent(), [Sent::Stop, Sent::Stop]);
    for script in app.server.commands() {
        let removal = script
            .lines()
            .find(|line| line.starts_with("rm -f"))
            .unwrap_or_default();
        assert!(
            removal.contains("forge-credential") && removal.contains("gitconfig"),
            "{script}"
        );
    }
    app.rests(run).await;
    let later = app.cancel(run).await;
    assert_eq!(
        (later.state, later.cancellation_requested_at),
        (RunState::Cancelled, Some(requested_at))
    );
    app.finish().await;
}

// Scenario 18
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_kill_whose_answer_was_lost_is_a_cancel_and_no_exit_143(pool: PgPool) {
    let killed = says("CANCELLED=1 EXIT=143 SIZE=5 DATA=hello");
    let mut app = App::idle(pool, [Answer::broken(), killed]).await;
    let run = app.running("sleep 60").await;
    app.cancel(run).await;
    app.start_worker();
    let run = app.wait_for(run, RunState::Cancelled).await;
    assert_eq!((run.exit_status, run.failure_reason), (None, None));
    assert_eq!(app.output(run.id, 0).await.output, "hello");
    app.finish().await;
}

// Scenario 10
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_past_its_deadline_is_killed_by_one_request(pool: PgPool) {
    let mut app = App::idle(pool, [says("CANCELLED=1")]).await;
    let run = app.running("sleep 60").await;
    app.pass_deadline(run).await;
    app.start_worker();
    let run = app.wait_for(run, RunState::TimedOut).await;
    assert!(run.timed_out);
    assert_eq!(run.failure_reason.as_deref(), Some("run_duration_exceeded"));
    assert_eq!(app.sent(), [Sent::Stop]);
    app.rests(run.id).await;
    app.finish().await;
}

// Scenario 17
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_that_ended_by_itself_while_its_cancel_was_under_way_keeps_its_end(pool: PgPool) {
    let mut app = App::idle(pool, [says("CANCELLED=0 EXIT=0 SIZE=5 DATA=hello")]).await;
    let run = app.running("sleep 60").await;
    app.cancel(run).await;
    app.start_worker();
    let run = app.wait_for(run, RunState::Completed).await;
    assert!(run.cancellation_requested_at.is_some());
    assert_eq!(run.cancellation_effective_at, None);
    assert_eq!(app.output(run.id, 0).await.output, "hello");
    assert_eq!(app.sent(), [Sent::Stop]);
    app.finish().await;
}

// Scenario 17, with more output than the stop brought
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn output_that_a_stop_left_behind_is_read_to_its_end(pool: PgPool) {
    let script = [
        says("CANCELLED=0 EXIT=0 SIZE=10 DATA=hello"),
        says("PRESENT=1 SIZE=10 DATA=world EXIT=0 ALIVE=0"),
    ];
    let mut app = App::idle(pool, script).await;
    let run = app.running("sleep 60").await;
    app.cancel(run).await;
    app.start_worker();
    app.wait_for(run, RunState::Completed).await;
    assert_eq!(app.output(run, 0).await.output, "helloworld");
    assert_eq!(app.sent(), [Sent::Stop, Sent::Poll]);
    app.finish().await;
}

// Scenario 20
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_that_ended_while_nobody_worked_keeps_its_end_past_the_deadline(pool: PgPool) {
    let mut app = App::idle(pool, [says("CANCELLED=0 EXIT=0 SIZE=0 DATA=")]).await;
    let run = app.running("sleep 60").await;
    app.pass_deadline(run).await;
    app.start_worker();
    let run = app.wait_for(run, RunState::Completed).await;
    assert!(!run.timed_out);
    assert_eq!(app.sent(), [Sent::Stop]);
    app.finish().await;
}

// Scenario 21
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_next_run_of_a_box_starts_only_once_the_old_one_is_verified_dead(pool: PgPool) {
    let script = [
        Answer::broken(),
        says("CANCELLED=1").held(),
        started(4243),
        says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0"),
    ];
    let mut app = App::idle(pool, script).await;
    let old = app.running("sleep 60").await;
    app.pass_deadline(old).await;
    app.start_worker();
    let ended = app.wait_for(old, RunState::TimedOut).await;
    assert_eq!(ended.end_verified_at, None);

    let new = app.admit("echo two").await;
    app.wait_for_sent(Sent::Stop, 2).await;
    // A start that looked and saw the old run alive comes back a second later.
    app.wait_until(new, "the start waits", |seen| {
        let waits = |job: &crate::support::app::Job| job.lease.is_none() && job.due_at > seen.run.read_at;
        seen.job.as_ref().is_some_and(waits)
    })
    .await;
    assert_eq!(app.count_sent(Sent::Dispatch), 0);
    app.server.release();
    app.wait_until(old, "the old run is verified dead", |seen| {
        seen.run.end_verified_at.is_some()
    })
    .await;
    app.hurry(new).await;
    app.wait_for(new, RunState::Completed).await;
    assert_eq!(app.sent(), [Sent::Stop, Sent::Stop, Sent::Dispatch, Sent::Poll]);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_of_which_nothing_was_sent_is_cancelled_without_a_word_to_the_box(pool: PgPool) {
    let mut app = App::idle(pool, []).await;
    let run = app.admit("echo one").await;
    let cancelled = app.cancel(run).await;
    assert_eq!(cancelled.state, RunState::Cancelled);
    assert!(cancelled.cancellation_requested_at <= cancelled.cancellation_effective_at);
    assert_eq!(app.job(run).await, None);
    // The box is free again, and a worker finds nothing to do.
    app.server
        .script([started(4243), says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0")]);
    app.start_worker();
    let next = app.admit("echo two").await;
    app.wait_for(next, RunState::Completed).await;
    assert_eq!(app.sent(), [Sent::Dispatch, Sent::Poll]);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_cancel_during_a_dispatch_waits_for_its_answer_and_then_kills(pool: PgPool) {
    let app = App::start(pool, [started(4242).held(), says("CANCELLED=1")]).await;
    let run = app.admit("sleep 60").await;
    app.wait_for_sent(Sent::Dispatch, 1).await;
    assert_eq!(app.cancel(run).await.state, RunState::Admitted);
    assert_eq!(app.sent(), [Sent::Dispatch]);
    app.server.release();
    let run = app.wait_for(run, RunState::Cancelled).await;
    assert_eq!(run.pid, Some(4242));
    assert_eq!(app.sent(), [Sent::Dispatch, Sent::Stop]);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_that_could_not_start_until_its_deadline_was_not_started_in_time(pool: PgPool) {
    let mut app = App::idle(pool, []).await;
    let run = app.admit("echo one").await;
    app.pass_deadline(run).await;
    app.start_worker();
    let run = app.wait_for(run, RunState::TimedOut).await;
    assert_eq!(run.failure_reason.as_deref(), Some("not_started_in_time"));
    assert_eq!(app.sent(), []);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_cancel_while_the_box_is_checked_comes_before_the_claim_and_nothing_is_sent(pool: PgPool) {
    let mut app = App::idle(pool, []).await;
    app.server.answer_gets(Answer::box_state(BOX, "ready").held());
    app.start_worker();
    let run = app.admit_unchecked("echo one").await;
    app.wait_for_sent(Sent::GetBox, 1).await;
    assert_eq!(app.cancel(run).await.state, RunState::Cancelled);
    app.server.release();
    app.wait_until(run, "its job is gone", |seen| seen.job.is_none()).await;
    assert_eq!(app.run(run).await.dispatch_attempted_at, None);
    assert_eq!(app.sent(), [Sent::GetBox]);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_that_the_provider_refused_until_its_deadline_failed_with_the_refusal(pool: PgPool) {
    let app = App::start(pool, [refuses(401, "unauthorized")]).await;
    let run = app.admit("echo one").await;
    app.wait_until(run, "the claim is released", |seen| {
        seen.timeline.iter().any(|event| event.contains("dispatch_released"))
    })
    .await;
    app.pass_deadline(run).await;
    app.hurry(run).await;
    let run = app.wait_for(run, RunState::Failed).await;
    assert_eq!(
        (run.failure_reason.as_deref(), run.exit_status),
        (Some("box_unauthorized"), None)
    );
    assert_eq!(app.sent(), [Sent::Dispatch]);
    app.finish().await;
}

// The poll in flight when the cancel comes is dropped, not waited for
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_cancel_that_the_box_does_not_answer_is_timed_out_at_the_deadline_and_the_kill_goes_on(pool: PgPool) {
    let app = App::start(
        pool,
        [
            Answer::hang(),
            fails(502),
            fails(502),
            says("CANCELLED=0"),
            says("CANCELLED=1"),
        ],
    )
    .await;
    let run = app.running("sleep 60").await;
    app.wait_for_sent(Sent::Poll, 1).await;
    app.cancel(run).await;
    let seen = app
        .wait_until(run, "the stop is to be tried again", |seen| {
            seen.job
                .as_ref()
                .is_some_and(|job| job.lease.is_none() && job.attempts == 1)
        })
        .await;
    assert_eq!(seen.run.state, RunState::Running);
    app.pass_deadline(run).await;
    app.hurry(run).await;
    let ended = app.wait_for(run, RunState::TimedOut).await;
    assert_eq!((ended.cancellation_effective_at, ended.end_verified_at), (None, None));
    for attempts in 1..=2 {
        app.wait_until(run, "the cleanup is to be tried again", |seen| {
            let waits = |job: &crate::support::app::Job| job.lease.is_none() && job.attempts >= attempts;
            seen.run.end_verified_at.is_some() || seen.job.as_ref().is_some_and(waits)
        })
        .await;
        app.hurry(run).await;
    }
    app.wait_until(run, "its end is verified", |seen| seen.run.end_verified_at.is_some())
        .await;
    app.rests(run).await;
    app.finish().await;
}
