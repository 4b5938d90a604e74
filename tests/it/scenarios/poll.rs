//! Poll: what the box says of a run, and what an answer that is none does not change.

use boxrun::ids::BoxId;
use boxrun::runs::RunState;
use serde_json::json;
use sqlx::PgPool;

use crate::support::app::App;
use crate::support::box_says::{Sent, fails, refuses, says, started};
use crate::support::scripted_box::Answer;

// Scenario 1
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_poll_brings_output_and_a_later_one_the_exit(pool: PgPool) {
    let script = [
        started(4242),
        says("PRESENT=1 SIZE=5 DATA=hello ALIVE=1"),
        says("PRESENT=1 SIZE=5 DATA= EXIT=0 ALIVE=0").held(),
    ];
    let app = App::start(pool, script).await;
    let run = app.admit("echo one").await;
    app.wait_for_sent(Sent::Poll, 2).await;
    let seen = app.run(run).await;
    assert_eq!((seen.state, seen.last_output_offset), (RunState::Running, 5));
    app.server.release();
    app.wait_for(run, RunState::Completed).await;
    let read = app.output(run, 0).await;
    assert_eq!(
        (read.output.as_str(), read.next_offset, read.truncated),
        ("hello", 5, false)
    );
    app.finish().await;
}

// Scenario 6
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn another_exit_status_than_zero_is_a_failure_that_keeps_it(pool: PgPool) {
    let app = App::start(pool, [started(4242), says("PRESENT=1 SIZE=0 DATA= EXIT=17 ALIVE=0")]).await;
    let run = app.admit("exit 17").await;
    let run = app.wait_for(run, RunState::Failed).await;
    assert_eq!((run.exit_status, run.failure_reason), (Some(17), None));
    app.finish().await;
}

// Scenario 11
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_whose_directory_is_gone_is_lost(pool: PgPool) {
    // The second is the cleanup, which sees to it that no process is left.
    let mut app = App::idle(pool, [says("PRESENT=0"), says("PRESENT=0")]).await;
    let run = app.running("sleep 60").await;
    app.start_worker();
    let lost = app.wait_for(run, RunState::Lost).await;
    assert_eq!(lost.failure_reason.as_deref(), Some("run_directory_missing"));
    app.wait_until(run, "its end is verified", |seen| seen.run.end_verified_at.is_some())
        .await;
    assert_eq!(app.sent(), [Sent::Poll, Sent::Stop]);
    app.rests(run).await;
    app.finish().await;
}

// Scenario 12
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_whose_box_was_stopped_is_lost(pool: PgPool) {
    let mut app = App::idle(pool, []).await;
    // Its cleanup asks, too: a box that was stopped can come back.
    app.server.answer_by(|_| refuses(409, "box_stopped"));
    let run = app.running("sleep 60").await;
    app.start_worker();
    let run = app.wait_for(run, RunState::Lost).await;
    assert_eq!(run.failure_reason.as_deref(), Some("box_stopped"));
    assert_eq!(app.count_sent(Sent::Poll), 1);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_box_that_is_not_found_counts_once_the_provider_confirms_it(pool: PgPool) {
    let script = [
        refuses(404, "box_not_found"),
        says("PRESENT=1 SIZE=0 DATA= ALIVE=1"),
        refuses(404, "box_not_found"),
    ];
    let mut app = App::idle(pool, script).await;
    let run = app.running("sleep 60").await;
    app.start_worker();
    // The provider knows the box: the answer is not believed.
    app.wait_until(run, "the poll is to be tried again", |seen| {
        seen.job
            .as_ref()
            .is_some_and(|job| job.attempts == 1 && job.lease.is_none())
    })
    .await;
    assert_eq!(app.sent(), [Sent::Poll, Sent::GetBox]);
    app.server.answer_gets(refuses(404, "box_not_found"));
    app.hurry(run).await;
    let lost = app.wait_for(run, RunState::Lost).await;
    assert_eq!(lost.failure_reason.as_deref(), Some("box_not_found"));
    assert_eq!(app.count_sent(Sent::Poll), 3);
    app.rests(run).await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_process_that_is_gone_without_an_exit_is_lost_with_its_output(pool: PgPool) {
    let script = [says("PRESENT=1 SIZE=5 DATA=hello ALIVE=0"), says("CANCELLED=1")];
    let mut app = App::idle(pool, script).await;
    let run = app.running("sleep 60").await;
    app.start_worker();
    let lost = app.wait_for(run, RunState::Lost).await;
    assert_eq!(
        lost.failure_reason.as_deref(),
        Some("process_missing_without_exit_sentinel")
    );
    assert_eq!(app.output(run, 0).await.output, "hello");
    app.wait_until(run, "its end is verified", |seen| seen.run.end_verified_at.is_some())
        .await;
    app.finish().await;
}

// Scenario 15
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn an_answer_that_is_none_changes_nothing_and_the_next_good_one_counts(pool: PgPool) {
    let no_answers = [
        ("502", fails(502)),
        ("503 with a code", refuses(503, "overloaded")),
        (
            "a command that timed out",
            Answer::finished(&json!({ "timedOut": true })),
        ),
        ("a connection that breaks", Answer::broken()),
        ("HTML with 200", Answer::raw(200, "text/html", "<html>Sign in</html>")),
        ("HTML with 404", Answer::raw(404, "text/html", "<html>Not Found</html>")),
        (
            "HTML with 409",
            Answer::raw(409, "text/html", "<html>box_stopped</html>"),
        ),
        (
            "JSON that is cut",
            Answer::raw(200, "application/json", r#"{"ok":true,"stdout":"OA_PRES"#),
        ),
        ("an empty stdout", Answer::stdout("")),
        ("401", refuses(401, "unauthorized")),
        ("ok: false", Answer::finished(&json!({ "ok": false }))),
        ("no OA_ALIVE", says("PRESENT=1 SIZE=0 DATA= EXIT=17")),
        ("no OA_SIZE", says("PRESENT=1 DATA= EXIT=17 ALIVE=0")),
        (
            "data that does not decode",
            Answer::stdout("OA_PRESENT=1\nOA_SIZE=5\nOA_DATA=!\nOA_ALIVE=0\n"),
        ),
        (
            "an absence that is cut",
            Answer::finished(&json!({ "stdout": "OA_PRESENT=0\n", "stdoutTruncated": true })),
        ),
        (
            "another offset",
            says("PRESENT=1 FROM=3 SIZE=5 DATA=lo EXIT=17 ALIVE=0"),
        ),
    ];
    let mut app = App::idle(pool, []).await;
    let mut runs = Vec::new();
    let mut first_answers = std::collections::HashMap::new();
    for (what, answer) in no_answers {
        let box_id: BoxId = app.another_box().await;
        first_answers.insert(box_id.to_string(), answer);
        runs.push((what, app.running_as(app.new_run_on(&box_id, "sleep 60")).await));
    }
    let first_answers = std::sync::Mutex::new(first_answers);
    app.server.answer_by(move |request| {
        let box_id = request.path.split('/').nth(2).unwrap_or_default();
        match first_answers.lock().unwrap().remove(box_id) {
            Some(answer) => answer,
            None => says("PRESENT=1 SIZE=5 DATA=hello EXIT=0 ALIVE=0").held(),
        }
    });
    app.start_worker_with(|options| options.concurrency = [20; 4]);
    app.wait_for_sent(Sent::Poll, 2 * runs.len()).await;
    for (what, run) in &runs {
        let seen = app.run(*run).await;
        assert_eq!(
            (seen.state, seen.log_offset, seen.exit_status),
            (RunState::Running, 0, None),
            "after {what}"
        );
        assert_eq!(app.events(*run).await, ["admitted"], "after {what}");
    }
    for _ in &runs {
        app.server.release();
    }
    for (_, run) in &runs {
        app.wait_for(*run, RunState::Completed).await;
        assert_eq!(app.output(*run, 0).await.output, "hello");
    }
    assert_eq!(app.count_sent(Sent::Poll), 2 * runs.len());
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn after_an_answer_that_was_cut_less_is_asked_for(pool: PgPool) {
    let cut = Answer::finished(&json!({ "stdout": "OA_PRESENT=1\n", "stdoutTruncated": true }));
    let mut app = App::idle(pool, [cut, says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0")]).await;
    let run = app.running("sleep 60").await;
    app.start_worker();
    app.wait_for(run, RunState::Completed).await;
    let asked: Vec<u64> = app
        .server
        .commands()
        .iter()
        .filter_map(|script| {
            script
                .lines()
                .find_map(|line| line.strip_prefix("max_bytes="))?
                .parse()
                .ok()
        })
        .collect();
    assert_eq!(asked[1], asked[0] / 2);
    app.finish().await;
}

// Scenario 3
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn each_terminal_state_is_stored_whole_and_changes_no_more(pool: PgPool) {
    let mut app = App::idle(pool, []).await;
    let cases = [
        ("EXIT=0", RunState::Completed, Some(0), None),
        ("EXIT=17", RunState::Failed, Some(17), None),
        ("CANCELLED=1", RunState::Cancelled, None, None),
        ("CANCELLED=1", RunState::TimedOut, None, Some("run_duration_exceeded")),
        ("PRESENT=0", RunState::Lost, None, Some("run_directory_missing")),
    ];
    let mut answers = std::collections::HashMap::new();
    let mut runs = Vec::new();
    for (said, state, exit_status, reason) in cases {
        let box_id = app.another_box().await;
        let answer = if said.starts_with("EXIT") {
            says(&format!("PRESENT=1 SIZE=0 DATA= {said} ALIVE=0"))
        } else {
            says(said)
        };
        answers.insert(box_id.to_string(), answer);
        let run = app.running_as(app.new_run_on(&box_id, "sleep 60")).await;
        if state == RunState::Cancelled {
            app.cancel(run).await;
        } else if state == RunState::TimedOut {
            app.pass_deadline(run).await;
        }
        runs.push((run, state, exit_status, reason));
    }
    app.server.answer_by(move |request| {
        let box_id = request.path.split('/').nth(2).unwrap_or_default();
        answers[box_id].clone()
    });
    app.start_worker();
    for (run, state, exit_status, reason) in runs {
        let ended = app.wait_for(run, state).await;
        assert!(ended.finished_at.is_some());
        assert_eq!(ended.timed_out, state == RunState::TimedOut);
        assert_eq!(
            (ended.exit_status, ended.failure_reason.as_deref()),
            (exit_status, reason)
        );
        let ended = app
            .wait_until(run, "its end is verified", |seen| seen.run.end_verified_at.is_some())
            .await
            .run;

        app.cancel(run).await;
        for write in [
            "update boxrun.runs set state = 'running', finished_at = null, timed_out = false where id = $1",
            "update boxrun.runs set exit_status = 1, exit_learnt_at = clock_timestamp() where id = $1",
            "update boxrun.runs set failure_reason = 'box_gone' where id = $1",
            "update boxrun.runs set last_output_offset = last_output_offset + 1 where id = $1",
            "update boxrun.runs set cancellation_requested_at = clock_timestamp() where id = $1",
        ] {
            let refused = app.try_execute(write, run).await.expect_err(write);
            let constraint = refused.as_database_error().and_then(|error| error.constraint());
            assert_eq!(constraint, Some("runs_terminal_is_final"), "{write}");
        }
        let now = app.run(run).await;
        assert_eq!(
            (
                now.state,
                now.finished_at,
                now.updated_at,
                now.cancellation_requested_at
            ),
            (
                ended.state,
                ended.finished_at,
                ended.updated_at,
                ended.cancellation_requested_at
            )
        );
    }
    app.finish().await;
}
