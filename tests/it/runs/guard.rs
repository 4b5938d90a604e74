//! The database's own rules, against a careless UPDATE or INSERT; a constraint's name is API.

use boxrun::ids::RunId;
use sqlx::PgPool;

use crate::support::app::App;

/// The constraint that refuses a statement about a run.
async fn refusal(app: &App, run: RunId, sql: &'static str) -> Option<String> {
    match app.try_execute(sql, run).await {
        Ok(()) => None,
        Err(error) => {
            let refused = error.as_database_error().unwrap_or_else(|| panic!("{sql}: {error}"));
            Some(
                refused
                    .constraint()
                    .unwrap_or_else(|| panic!("{sql}: {refused}"))
                    .to_owned(),
            )
        }
    }
}

async fn assert_refused(app: &App, run: RunId, constraint: &str, statements: &[&'static str]) {
    for sql in statements {
        let refused = refusal(app, run, sql).await;
        assert_eq!(refused.as_deref(), Some(constraint), "{sql}");
    }
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_careless_update_of_a_live_run_is_refused_by_name(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let run = app.running("sleep 60").await;
    app.execute(
        "update boxrun.runs set log_offset = 9, last_output_offset = 9, output_base_offset = 4,
                cancellation_requested_at = clock_timestamp(), probe_attempted_at = clock_timestamp(),
                exit_status = 0, exit_learnt_at = clock_timestamp() where id = $1",
        run,
    )
    .await;
    assert_refused(
        &app,
        run,
        "runs_transition_known",
        &[
            "update boxrun.runs set state = 'dispatched' where id = $1",
            "update boxrun.runs set state = 'admitted' where id = $1",
        ],
    )
    .await;
    assert_refused(
        &app,
        run,
        "runs_identity_is_fixed",
        &[
            "update boxrun.runs set command = 'echo two' where id = $1",
            "update boxrun.runs set idempotency_key = 'other' where id = $1",
            "update boxrun.runs set id = gen_random_uuid() where id = $1",
            "update boxrun.runs set conversation_id = gen_random_uuid() where id = $1",
            "update boxrun.runs set box_id = 'bx_22222222' where id = $1",
            "update boxrun.runs set principal_id = null where id = $1",
            "update boxrun.runs set run_directory = '$HOME' where id = $1",
            "update boxrun.runs set cwd = '/' where id = $1",
            "update boxrun.runs set env = '{\"A\": \"1\"}' where id = $1",
            "update boxrun.runs set admitted_at = clock_timestamp() where id = $1",
        ],
    )
    .await;
    assert_refused(
        &app,
        run,
        "runs_times_are_set_once",
        &[
            "update boxrun.runs set cancellation_requested_at = clock_timestamp() where id = $1",
            "update boxrun.runs set cancellation_requested_at = null where id = $1",
            "update boxrun.runs set probe_attempted_at = null where id = $1",
            "update boxrun.runs set dispatched_at = clock_timestamp() where id = $1",
            "update boxrun.runs set started_at = null where id = $1",
            "update boxrun.runs set exit_status = 1 where id = $1",
            "update boxrun.runs set exit_learnt_at = clock_timestamp() where id = $1",
        ],
    )
    .await;
    assert_refused(
        &app,
        run,
        "runs_claim_is_kept",
        &[
            "update boxrun.runs set dispatch_attempted_at = null, dispatched_at = dispatched_at where id = $1",
            "update boxrun.runs set dispatch_attempted_at = clock_timestamp() where id = $1",
        ],
    )
    .await;
    assert_refused(
        &app,
        run,
        "runs_offsets_never_fall",
        &[
            "update boxrun.runs set log_offset = 8 where id = $1",
            "update boxrun.runs set last_output_offset = 8 where id = $1",
            "update boxrun.runs set output_base_offset = 3 where id = $1",
        ],
    )
    .await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn what_does_not_fit_a_state_is_refused_by_name(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let run = app.running("sleep 60").await;
    for (constraint, sql) in [
        (
            "runs_finished_iff_terminal",
            "update boxrun.runs set finished_at = clock_timestamp() where id = $1",
        ),
        (
            "runs_timed_out_iff_state",
            "update boxrun.runs set timed_out = true where id = $1",
        ),
        (
            "runs_completed_exits_zero",
            "update boxrun.runs set state = 'completed', finished_at = clock_timestamp() where id = $1",
        ),
        (
            "runs_failed_says_why",
            "update boxrun.runs set state = 'failed', finished_at = clock_timestamp() where id = $1",
        ),
        (
            "runs_lost_says_why",
            "update boxrun.runs set state = 'lost', finished_at = clock_timestamp() where id = $1",
        ),
        (
            "runs_cancelled_has_times",
            "update boxrun.runs set state = 'cancelled', finished_at = clock_timestamp() where id = $1",
        ),
        (
            "runs_cancellation_ordered",
            "update boxrun.runs set cancellation_requested_at = clock_timestamp(),
                    cancellation_effective_at = admitted_at where id = $1",
        ),
        (
            "runs_exit_status_range",
            "update boxrun.runs set exit_status = 256, exit_learnt_at = clock_timestamp() where id = $1",
        ),
        (
            "runs_exit_learnt_at_known",
            "update boxrun.runs set exit_status = 1 where id = $1",
        ),
        (
            "runs_failure_reason_format",
            "update boxrun.runs set failure_reason = 'Not a code' where id = $1",
        ),
        (
            "runs_offsets_ordered",
            "update boxrun.runs set output_base_offset = 1 where id = $1",
        ),
        (
            "runs_state_known",
            "update boxrun.runs set state = 'paused' where id = $1",
        ),
    ] {
        let refused = refusal(&app, run, sql).await;
        // An unknown state is stopped by whichever rule comes first.
        if constraint == "runs_state_known" {
            assert!(
                matches!(refused.as_deref(), Some("runs_state_known" | "runs_transition_known")),
                "{refused:?}"
            );
        } else {
            assert_eq!(refused.as_deref(), Some(constraint), "{sql}");
        }
    }
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_claim_is_released_only_while_admitted_and_unprobed(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let run = app.admit("echo one").await;
    let claim = "update boxrun.runs set dispatch_attempted_at = clock_timestamp() where id = $1";
    let release = "update boxrun.runs set dispatch_attempted_at = null where id = $1";
    app.execute(claim, run).await;
    app.execute(release, run).await;
    app.execute(claim, run).await;
    assert_refused(
        &app,
        run,
        "runs_claim_is_kept",
        &[
            "update boxrun.runs set dispatch_attempted_at = null, probe_attempted_at = clock_timestamp() where id = $1",
            "update boxrun.runs set dispatch_attempted_at = null, state = 'running' where id = $1",
        ],
    )
    .await;
    app.execute(
        "update boxrun.runs set probe_attempted_at = clock_timestamp() where id = $1",
        run,
    )
    .await;
    assert_refused(&app, run, "runs_claim_is_kept", &[release]).await;
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_key_is_unique_in_its_conversation_also_for_a_direct_insert(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let run = app.admit("echo one").await;
    app.cancel(run).await;
    let refused = refusal(
        &app,
        run,
        "insert into boxrun.runs (id, conversation_id, box_id, principal_type, command, idempotency_key,
                run_directory, admitted_at, deadline_at, inserted_at, updated_at)
         select gen_random_uuid(), conversation_id, box_id, principal_type, command, idempotency_key,
                run_directory, admitted_at, deadline_at, inserted_at, updated_at from boxrun.runs where id = $1",
    )
    .await;
    assert_eq!(refused.as_deref(), Some("runs_one_key_per_conversation"));
    app.finish().await;
}
