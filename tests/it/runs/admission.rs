//! Admission: what is refused, and who wins under concurrency.

use std::time::Duration;

use boxrun::ids::{ConversationId, RunId};
use boxrun::runs::conversations::detach_box;
use boxrun::runs::{self, NewRun, Principal, StartRunError};
use sqlx::PgPool;
use uuid::Uuid;

use crate::support::app::App;
use crate::support::wait::wait_until;

async fn count_runs(app: &App) -> i64 {
    sqlx::query_scalar("select count(*) from boxrun.runs")
        .fetch_one(&app.pool)
        .await
        .unwrap()
}

/// Waits until a session of this database waits for another's lock.
async fn wait_for_a_rival(app: &App) {
    let waiting = async || -> i64 {
        sqlx::query_scalar(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
        .fetch_one(&app.pool)
        .await
        .unwrap()
    };
    wait_until("a session waits for a lock", waiting, |count| *count > 0).await;
}

fn admit_in_background(app: &App, new: NewRun) -> tokio::task::JoinHandle<Result<runs::Run, StartRunError>> {
    let pool = app.pool.clone();
    tokio::spawn(async move {
        let mut conn = pool.acquire().await?;
        runs::start_run(&mut conn, new).await
    })
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn many_at_once_with_one_key_get_one_run(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let new = app.new_run("echo one");
    let rivals: Vec<_> = (0..12).map(|_| admit_in_background(&app, new.clone())).collect();
    let mut ids: Vec<RunId> = Vec::new();
    for rival in rivals {
        ids.push(rival.await.unwrap().unwrap().id);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    assert_eq!(count_runs(&app).await, 1);
    assert_eq!(app.events(ids[0]).await, ["admitted"]);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn many_at_once_with_different_keys_leave_one_live_run_that_all_others_are_told(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let rivals: Vec<_> = (0..12)
        .map(|_| admit_in_background(&app, app.new_run("echo one")))
        .collect();
    let (mut admitted, mut told) = (Vec::new(), Vec::new());
    for rival in rivals {
        match rival.await.unwrap() {
            Ok(run) => admitted.push(run.id),
            Err(StartRunError::RunInProgress(id)) => told.push(id),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(admitted.len(), 1);
    assert_eq!(told, vec![admitted[0]; 11]);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_first_inserter_that_rolls_back_leaves_the_next_one_to_win(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let new = app.new_run("echo one");
    let mut first = app.pool.begin().await.unwrap();
    let abandoned = runs::start_run(&mut first, new.clone()).await.unwrap().id;
    let second = admit_in_background(&app, new);
    wait_for_a_rival(&app).await;
    first.rollback().await.unwrap();
    let won = second.await.unwrap().unwrap().id;
    assert_ne!(won, abandoned);
    assert_eq!(count_runs(&app).await, 1);
    assert!(app.job(won).await.is_some());
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_first_inserter_that_commits_gives_the_next_one_its_run(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let new = app.new_run("echo one");
    let mut first = app.pool.begin().await.unwrap();
    let run = runs::start_run(&mut first, new.clone()).await.unwrap().id;
    let mut other_command = new.clone();
    other_command.command = "echo two".to_owned();
    let same = admit_in_background(&app, new);
    let conflict = admit_in_background(&app, other_command);
    let other_key = admit_in_background(&app, app.new_run("echo three"));
    wait_for_a_rival(&app).await;
    first.commit().await.unwrap();
    assert_eq!(same.await.unwrap().unwrap().id, run);
    let conflict = conflict.await.unwrap();
    assert!(
        matches!(conflict, Err(StartRunError::IdempotencyConflict(id)) if id == run),
        "{conflict:?}"
    );
    let in_progress = other_key.await.unwrap();
    assert!(
        matches!(in_progress, Err(StartRunError::RunInProgress(id)) if id == run),
        "{in_progress:?}"
    );
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn at_repeatable_read_a_lost_race_is_a_serialization_failure(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let new = app.new_run("echo one");
    let mut tx = app.pool.begin().await.unwrap();
    sqlx::query("set transaction isolation level repeatable read")
        .execute(&mut *tx)
        .await
        .unwrap();
    sqlx::query("select from boxrun.runs").execute(&mut *tx).await.unwrap();
    app.admit_new(new.clone()).await;
    let lost = runs::start_run(&mut tx, new).await;
    let Err(StartRunError::Database(sqlx::Error::Database(error))) = lost else {
        panic!("{lost:?}")
    };
    assert_eq!(error.code().as_deref(), Some("40001"));
    drop(tx);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_refusal_leaves_the_callers_transaction_alive(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let first = app.new_run("echo one");
    app.admit_new(first.clone()).await;
    let other_box = app.another_box().await;
    let mut tx = app.pool.begin().await.unwrap();
    let mut conflict = first.clone();
    conflict.command = "echo two".to_owned();
    let mut foreign = app.new_run("echo one");
    foreign.box_id = "bx_zzzzzzzz".parse().unwrap();
    let mut blank = app.new_run(" ");
    blank.box_id = other_box.clone();
    for (new, code) in [
        (conflict, "box_run_idempotency_conflict"),
        (app.new_run("echo two"), "box_run_in_progress"),
        (foreign, "box_not_owned"),
        (blank, "invalid_command"),
    ] {
        let refused = runs::start_run(&mut tx, new).await.expect_err(code);
        assert_eq!(refused.code(), Some(code));
        assert!(refused.to_string().starts_with(&format!("{code}: ")), "{refused}");
    }
    let run = runs::start_run(&mut tx, app.new_run_on(&other_box, "echo two"))
        .await
        .unwrap()
        .id;
    tx.commit().await.unwrap();
    assert_eq!(app.run(run).await.command, "echo two");
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_foreign_box_and_a_missing_one_are_refused_alike(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let mut foreign = app.new_run("echo one");
    foreign.conversation_id = ConversationId(Uuid::new_v4());
    let mut missing = app.new_run("echo one");
    missing.box_id = "bx_zzzzzzzz".parse().unwrap();
    for new in [foreign, missing] {
        let refused = app.try_admit(new).await;
        assert!(matches!(refused, Err(StartRunError::BoxNotOwned)), "{refused:?}");
    }
    assert_eq!(count_runs(&app).await, 0);
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn an_exact_repeat_gets_its_run_also_when_it_has_ended_and_the_box_is_detached(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let new = app.new_run("echo one");
    let run = app.admit_new(new.clone()).await;
    app.cancel(run).await;
    let mut conn = app.pool.acquire().await.unwrap();
    detach_box(&mut conn, &app.box_id, &app.principal).await.unwrap();
    drop(conn);
    assert_eq!(app.admit_new(new.clone()).await, run);
    // A box or command that is not the same is no repeat: there the box must be attached.
    let mut other = new;
    other.command = "echo two".to_owned();
    let refused = app.try_admit(other).await;
    assert!(matches!(refused, Err(StartRunError::BoxNotOwned)), "{refused:?}");
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_deadline_is_the_limit_or_the_less_that_was_asked_for(pool: PgPool) {
    let app = App::idle(pool, []).await;
    for (asked, limit, seconds) in [
        (None, 1800, 1800),
        (Some(1), 1800, 1),
        (Some(1800), 1800, 1800),
        (Some(7), 7, 7),
    ] {
        let mut new = app.new_run_on(&app.another_box().await, "echo one");
        new.max_duration = asked.map(Duration::from_secs);
        new.limit = Duration::from_secs(limit);
        let run = app.run(app.admit_new(new).await).await;
        assert_eq!((run.deadline_at - run.admitted_at).num_milliseconds(), seconds * 1000);
    }
    for (asked, limit) in [(0, 1800), (1801, 1800)] {
        let mut new = app.new_run("echo one");
        new.max_duration = Some(Duration::from_secs(asked));
        new.limit = Duration::from_secs(limit);
        let refused = app.try_admit(new).await.expect_err("a deadline out of bounds");
        assert_eq!(refused.code(), Some("invalid_max_duration"), "{asked} of {limit}");
    }
    app.finish().await;
}

type Change = fn(&mut NewRun);

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn what_can_not_be_run_is_refused_with_a_code_and_what_can_is_kept_as_it_is(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let refused: [(&str, Change); 13] = [
        ("invalid_command", |new| new.command = String::new()),
        ("invalid_command", |new| new.command = " \t\r\n".to_owned()),
        ("invalid_command", |new| new.command = "x".repeat(8001)),
        ("invalid_command", |new| new.command = format!("{}x", "€".repeat(2667))),
        ("invalid_command", |new| new.command = "echo \0".to_owned()),
        ("invalid_idempotency_key", |new| new.idempotency_key = String::new()),
        ("invalid_idempotency_key", |new| new.idempotency_key = "k".repeat(257)),
        ("invalid_idempotency_key", |new| new.idempotency_key = "\0".to_owned()),
        ("invalid_request", |new| new.cwd = Some(String::new())),
        ("invalid_request", |new| new.principal = Principal::user("u\0")),
        ("invalid_request", |new| {
            drop(new.env.insert("1A".to_owned(), String::new()));
        }),
        ("invalid_request", |new| {
            drop(new.env.insert("BOXRUN_RUN_ID".to_owned(), String::new()));
        }),
        ("invalid_request", |new| {
            drop(new.env.insert("A".to_owned(), "\0".to_owned()));
        }),
    ];
    for (code, change) in refused {
        let mut new = app.new_run("echo one");
        change(&mut new);
        let refused = app.try_admit(new.clone()).await;
        assert_eq!(
            refused.as_ref().err().and_then(StartRunError::code),
            Some(code),
            "{new:?}: {refused:?}"
        );
    }
    let taken: [Change; 5] = [
        |new| new.command = "x".repeat(8000),
        |new| new.command = "€".repeat(2666),
        |new| new.command = "echo '\u{7f}\u{1b}' \\\n\n".to_owned(),
        |new| new.idempotency_key = "k".repeat(256),
        |new| new.cwd = Some("work dir/ü".to_owned()),
    ];
    for change in taken {
        let mut new = app.new_run_on(&app.another_box().await, "echo one");
        change(&mut new);
        let run = app.run(app.admit_new(new.clone()).await).await;
        assert_eq!(
            (run.command, run.idempotency_key, run.cwd),
            (new.command, new.idempotency_key, new.cwd)
        );
    }
    app.finish().await;
}

/// Blank is what Unicode calls so, in Rust and in the database alike: no raw database error.
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_command_of_any_white_space_is_blank_and_no_database_error(pool: PgPool) {
    let app = App::idle(pool, []).await;
    for blank in [
        "\u{b}", "\u{c}", "\u{a0}", "\u{2003}", "\u{3000}", "\u{85}", "\u{feff}", "\u{1c}", "\u{180e}",
    ] {
        let new = app.new_run_on(&app.another_box().await, blank);
        if let Err(refused) = app.try_admit(new).await {
            assert_eq!(refused.code(), Some("invalid_command"), "{blank:?}: {refused}");
        }
    }
    app.finish().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_directory_is_made_of_the_principals_bytes(pool: PgPool) {
    let app = App::idle(pool, []).await;
    let long = "a".repeat(63) + "é";
    for (principal, segment) in [
        (Some("u1"), "u1"),
        (Some("Az09_-"), "Az09_-"),
        (Some("jürgen"), "j--rgen"),
        (Some("a/../b c$`"), "a----b-c--"),
        (Some("🦀"), "----"),
        (Some("\n'\""), "---"),
        (Some("\u{1}\u{7f}"), "--"),
        (Some(long.as_str()), &("a".repeat(63) + "-")),
        (Some(&"b".repeat(200)), &"b".repeat(64)),
        (Some(""), "unknown"),
        (None, "unknown"),
    ] {
        let id = Uuid::new_v4();
        let directory: String = sqlx::query_scalar("select boxrun.run_directory($1, $2)")
            .bind(principal)
            .bind(id)
            .fetch_one(&app.pool)
            .await
            .unwrap();
        assert_eq!(
            directory,
            format!("$HOME/.openagents/box-runs/users/{segment}/{id}"),
            "{principal:?}"
        );
    }
    let mut new = app.new_run("echo one");
    new.principal = Principal::user("jürgen");
    let run = app.run(app.admit_new(new).await).await;
    assert_eq!(
        run.run_directory,
        format!("$HOME/.openagents/box-runs/users/j--rgen/{}", run.id)
    );
    app.finish().await;
}
