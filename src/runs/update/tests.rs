//! The database and [`RunUpdate::applied_to`] make the same of a run.

use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::{End, RunUpdate, apply};
use crate::ids::{BoxId, ConversationId, RunId};
use crate::runs::conversations::attach_box;
use crate::runs::masking::Carried;
use crate::runs::output::Released;
use crate::runs::{FailureReason, NewRun, Principal, Run, read, start_run};

type Happens = fn(&Run) -> RunUpdate;

fn text(bytes: i64) -> Released {
    Released {
        log_bytes: bytes,
        text: "x".repeat(usize::try_from(bytes).expect("a few")),
        ..Released::nothing()
    }
}

/// One life a line; together they make each update at least once.
const LIVES: &[&[Happens]] = &[
    &[
        RunUpdate::claim_dispatch,
        RunUpdate::release_dispatch,
        RunUpdate::claim_dispatch,
        RunUpdate::probe_attempted,
        |run| RunUpdate::dispatched(run, Some(4242)),
        |run| RunUpdate::seen(run, text(5)),
        |run| {
            RunUpdate::seen(
                run,
                Released {
                    carried: Some(Carried::after_skip()),
                    ..text(3)
                },
            )
        },
        |run| RunUpdate::exit_learnt(run, 3, Some(20), text(4)),
        |run| RunUpdate::exited(run, 3, None, text(8)),
        RunUpdate::directory_removed,
    ],
    &[
        RunUpdate::claim_dispatch,
        |run| RunUpdate::dispatched(run, None),
        |run| RunUpdate::seen(run, text(5)),
        |run| RunUpdate::log_restarted(run, "[again]".to_owned()),
        |run| RunUpdate::seen(run, text(1)),
        |run| RunUpdate::exited(run, 0, Some(1), Released::nothing()),
    ],
    &[
        RunUpdate::claim_dispatch,
        |run| {
            RunUpdate::timed_out(
                run,
                FailureReason::RunDurationExceeded,
                End::Unverified,
                Released::nothing(),
            )
        },
        RunUpdate::cleanup_given_up,
        RunUpdate::end_verified,
    ],
    &[RunUpdate::claim_dispatch, |run| {
        RunUpdate::lost(
            run,
            FailureReason::DispatchAmbiguous,
            End::Verified,
            Released::nothing(),
        )
    }],
    &[|run| RunUpdate::refused(run, FailureReason::BoxStopped)],
];

#[sqlx::test(migrator = "crate::schema::MIGRATIONS")]
async fn an_update_makes_the_same_of_a_run_with_and_without_a_database(pool: PgPool) {
    let mut conn = pool.acquire().await.unwrap();
    for (number, life) in LIVES.iter().enumerate() {
        let id = admit(&mut conn, number).await;
        for (step, happens) in life.iter().enumerate() {
            follow(&mut conn, id, *happens, &format!("life {number}, step {step}")).await;
        }
    }
    // A cancel, which is the caller's to ask for.
    let id = admit(&mut conn, LIVES.len()).await;
    follow(&mut conn, id, RunUpdate::claim_dispatch, "before a cancel").await;
    sqlx::query("select boxrun.request_cancel($1)")
        .bind(id.0)
        .execute(&mut *conn)
        .await
        .unwrap();
    follow(&mut conn, id, |run| RunUpdate::cancelled(run, text(2)), "a cancel").await;
}

#[sqlx::test(migrator = "crate::schema::MIGRATIONS")]
async fn an_update_that_expects_another_run_is_refused_with_and_without_a_database(pool: PgPool) {
    let mut conn = pool.acquire().await.unwrap();
    let id = admit(&mut conn, 0).await;
    let admitted = find(&mut conn, id).await;
    let claim = RunUpdate::claim_dispatch(&admitted);
    assert!(apply(&mut conn, &admitted, &claim, 1024).await.unwrap().is_some());
    let claimed = find(&mut conn, id).await;
    let probe = RunUpdate::probe_attempted(&claimed);
    assert!(apply(&mut conn, &claimed, &probe, 1024).await.unwrap().is_some());
    let probed = find(&mut conn, id).await;
    for (what, update) in [
        ("claimed already", claim),
        ("probed already", RunUpdate::release_dispatch(&claimed)),
        (
            "another log",
            RunUpdate::seen(
                &Run {
                    log_offset: 7,
                    ..probed.clone()
                },
                text(1),
            ),
        ),
        (
            "another epoch",
            RunUpdate::seen(
                &Run {
                    log_epoch: 1,
                    ..probed.clone()
                },
                text(1),
            ),
        ),
    ] {
        assert!(
            apply(&mut conn, &probed, &update, 1024).await.unwrap().is_none(),
            "{what}"
        );
        assert_eq!(update.applied_to(&probed, probed.read_at), None, "{what}");
    }
    let seen = RunUpdate::seen(&probed, Released::nothing());
    assert!(apply(&mut conn, &probed, &seen, 1024).await.unwrap().is_some());
    let running = find(&mut conn, id).await;
    let late = RunUpdate::dispatched(&probed, None);
    assert!(
        apply(&mut conn, &probed, &late, 1024).await.unwrap().is_none(),
        "another state"
    );
    assert_eq!(late.applied_to(&running, running.read_at), None, "another state");
}

/// Writes the update, and compares what the database made of the run with what the function makes of it.
async fn follow(conn: &mut PgConnection, id: RunId, happens: Happens, what: &str) {
    let before = find(conn, id).await;
    let update = happens(&before);
    assert!(apply(conn, &before, &update, 1024).await.unwrap().is_some(), "{what}");
    let after = find(conn, id).await;
    let expected = update.applied_to(&before, after.updated_at);
    let expected = expected.unwrap_or_else(|| panic!("{what}: refused"));
    // What is kept of the output, and when it was read.
    let expected = Run {
        last_output_offset: after.last_output_offset,
        output_base_offset: after.output_base_offset,
        read_at: after.read_at,
        ..expected
    };
    assert_eq!(after, expected, "{what}");
}

async fn find(conn: &mut PgConnection, id: RunId) -> Run {
    read::find(conn, id).await.unwrap().expect("the run is there")
}

/// A run on a box of its own.
async fn admit(conn: &mut PgConnection, number: usize) -> RunId {
    let conversation = ConversationId(Uuid::from_u128(1));
    let principal = Principal::user("u");
    let box_id: BoxId = format!("bx_2222222{}", number + 2).parse().unwrap();
    attach_box(conn, conversation, &box_id, &principal).await.unwrap();
    let new = NewRun::new(conversation, box_id, principal, "true", format!("key {number}"));
    start_run(conn, new).await.unwrap().id
}
