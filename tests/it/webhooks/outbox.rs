//! What the end of a run writes down: one delivery a webhook, whichever way it ends, in its own transaction.

use boxrun::jobs::reconcile::reconcile;
use boxrun::runs::{Principal, RunState};
use boxrun::schema;
use boxrun::web::tokens::Scope;
use reqwest::Method;
use serde_json::json;
use sqlx::PgPool;

use super::stage::Stage;
use crate::support::box_says::says;
use crate::support::wait::wait_until;

const COMPLETE: &str = "update boxrun.runs set state = 'completed', exit_status = 0, exit_learnt_at = t.at,
        finished_at = t.at, updated_at = t.at from (select clock_timestamp() as at) t where id = $1";

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn each_way_of_ending_writes_one_delivery(pool: PgPool) {
    let stage = Stage::open(pool).await;
    stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
    let app = &stage.site.app;
    let mut expected = Vec::new();

    // By a worker, with what the box answers.
    let worker = app.new_worker(|options| options.webhooks.concurrency = 0);
    for (state, answers) in [
        (
            RunState::Completed,
            ["PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0"].as_slice(),
        ),
        (RunState::Failed, &["PRESENT=1 SIZE=0 DATA= EXIT=17 ALIVE=0"]),
        (RunState::TimedOut, &["CANCELLED=1"]),
        (RunState::Cancelled, &["CANCELLED=1"]),
        (RunState::Lost, &["PRESENT=0", "PRESENT=0"]),
    ] {
        let on = app.another_box().await;
        // Its poll waits until the run is as the test wants it.
        app.server.script([says("PRESENT=1 SIZE=0 DATA= ALIVE=1").held()]);
        let run = app.running_as(app.new_run_on(&on, "sleep 60")).await;
        wait_until("its poll waits", async || app.server.answers_left(), |left| *left == 0).await;
        app.server.script(answers.iter().map(|markers| says(markers)));
        match state {
            RunState::TimedOut => app.pass_deadline(run).await,
            RunState::Cancelled => drop(app.cancel(run).await),
            _ => {}
        }
        app.server.release();
        app.wait_for(run, state).await;
        wait_until(
            "the box is left alone",
            async || app.server.answers_left(),
            |left| *left == 0,
        )
        .await;
        expected.push(run.0);
    }

    worker.stop().await;

    // By a caller, before anything was sent: by Rust, by HTTP, by SQL as the web app's role, by a bare statement.
    schema::grant_roles(&app.pool).await.unwrap();
    let unsent = async || {
        app.admit_new(app.new_run_on(&app.another_box().await, "sleep 60"))
            .await
    };
    let run = unsent().await;
    app.cancel(run).await;
    expected.push(run.0);
    let run = unsent().await;
    let cancel = format!("{}/cancel", stage.site.run(run));
    stage.site.own(Method::POST, &cancel).send().await.is(202);
    expected.push(run.0);
    let run = unsent().await;
    let mut tx = app.pool.begin().await.unwrap();
    sqlx::query("set local role boxrun_app")
        .execute(&mut *tx)
        .await
        .unwrap();
    sqlx::query("select boxrun.cancel_run(conversation_id => $1, run_id => $2, principal => '{\"type\": \"user\", \"id\": \"u1\"}')")
        .bind(app.conversation.0)
        .bind(run.0)
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    expected.push(run.0);
    let run = unsent().await;
    app.execute(COMPLETE, run).await;
    expected.push(run.0);

    let written: Vec<_> = stage.outbox().await.iter().map(|row| row.run_id).collect();
    assert_eq!(written, expected);
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn an_end_that_is_rolled_back_tells_nobody(pool: PgPool) {
    let stage = Stage::open(pool).await;
    stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
    let run = stage.site.app.running("x").await;
    let mut tx = stage.site.app.pool.begin().await.unwrap();
    sqlx::query(COMPLETE).bind(run.0).execute(&mut *tx).await.unwrap();
    let count = sqlx::query_scalar::<_, i64>("select count(*) from boxrun.webhook_deliveries");
    assert_eq!(count.fetch_one(&mut *tx).await.unwrap(), 1);
    tx.rollback().await.unwrap();
    assert_eq!(stage.outbox().await, []);
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn all_webhooks_of_the_owner_are_told_and_nobody_else(pool: PgPool) {
    let stage = Stage::open(pool).await;
    let body = json!({ "url": stage.receiver.url() });
    stage.ended_run().await;
    assert_eq!(stage.outbox().await, [], "before there is a webhook");
    stage.put("first", &body).await.is(201);
    stage.put("second", &body).await.is(201);
    let other = stage.site.token_of(&Principal::user("u2"), &Scope::ALL).await;
    let asking = stage.site.ask(Method::PUT, "/api/v1/webhooks/theirs").body(&body);
    let asking = asking.header("authorization", &format!("Bearer {other}"));
    asking.send().await.is(201);
    let run = stage.ended_run().await;
    let rows = stage.outbox().await;
    assert_eq!(rows.iter().map(|row| row.run_id).collect::<Vec<_>>(), [run.0, run.0]);
    for name in ["first", "second"] {
        assert_eq!(stage.deliveries_of(name).await.len(), 1, "{name}");
    }
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_ends_also_while_its_webhook_is_being_deleted(pool: PgPool) {
    let stage = Stage::open(pool).await;
    stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
    let run = stage.site.app.running("x").await;
    let mut deleting = stage.site.app.pool.begin().await.unwrap();
    let delete = sqlx::query("delete from boxrun.webhooks");
    assert_eq!(delete.execute(&mut *deleting).await.unwrap().rows_affected(), 1);
    let ending = stage.site.complete(run);
    let committing = async {
        let blocked = async || {
            let blocked = "select count(*) from pg_stat_activity
                  where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0";
            sqlx::query_scalar::<_, i64>(blocked)
                .fetch_one(&stage.site.app.pool)
                .await
                .unwrap()
        };
        wait_until("the end waits for the delete", blocked, |count| *count == 1).await;
        deleting.commit().await.unwrap();
    };
    tokio::join!(ending, committing);
    assert_eq!(stage.site.app.run(run).await.state, RunState::Completed);
    assert_eq!(stage.outbox().await, []);
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn ended_deliveries_are_removed_after_thirty_days_and_pending_ones_are_not(pool: PgPool) {
    let stage = Stage::open(pool).await;
    stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
    for days in [31, 29] {
        let run = stage.ended_run().await;
        let ended = "update boxrun.webhook_deliveries set state = 'delivered', ended_at = clock_timestamp() - make_interval(days => $2)
                      where run_id = $1";
        let ended = sqlx::query(ended).bind(run.0).bind(days);
        ended.execute(&stage.site.app.pool).await.unwrap();
    }
    let pending = stage.ended_run().await;
    stage
        .execute("update boxrun.webhook_deliveries set inserted_at = clock_timestamp() - interval '60 days'")
        .await;
    let interval = std::time::Duration::from_secs(1);
    reconcile(&stage.site.app.pool, interval, interval)
        .await
        .unwrap()
        .expect("nobody else reconciles");
    let rows = stage.outbox().await;
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(rows.iter().any(|row| row.run_id == pending.0));
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn erasing_a_conversation_or_a_webhook_erases_its_deliveries(pool: PgPool) {
    let stage = Stage::open(pool).await;
    let body = json!({ "url": stage.receiver.url() });
    stage.put("ci", &body).await.is(201);
    stage.put("other", &body).await.is(201);
    let run = stage.ended_run().await;
    // The box is clean already.
    stage
        .site
        .app
        .execute(
            "update boxrun.runs set directory_removed_at = clock_timestamp(), updated_at = clock_timestamp() where id = $1",
            run,
        )
        .await;
    assert_eq!(stage.outbox().await.len(), 2);
    let gone = stage.site.own(Method::DELETE, "/api/v1/webhooks/other").send().await;
    assert_eq!((gone.status, gone.text.as_str()), (204, ""));
    assert_eq!(stage.outbox().await.len(), 1);
    let gone = stage.site.own(Method::DELETE, &stage.site.conversation()).send().await;
    assert_eq!(gone.status, 204, "{gone:?}");
    assert_eq!(stage.outbox().await, []);
    assert_eq!(stage.deliveries_of("ci").await.len(), 0);
    stage.close().await;
}
