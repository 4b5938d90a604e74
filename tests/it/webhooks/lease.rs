//! Whose a delivery is: leases that lapse, the fence, workers that die or stop, and receivers that hang.

use std::collections::BTreeSet;

use serde_json::json;
use sqlx::PgPool;

use super::receiver::{Answer, Receiver};
use super::stage::Stage;
use crate::support::wait::wait_until;

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_worker_killed_while_it_delivers_leaves_the_delivery_to_another(pool: PgPool) {
    let mut stage = Stage::open(pool).await;
    stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
    stage.receiver.answers([Answer::Held(200)]);
    let worker = stage.new_worker();
    stage.ended_run().await;
    stage.receiver.wait_for(1).await;
    worker.kill();
    let left = stage.outbox().await.remove(0);
    assert!(left.state == "pending" && left.lease.is_some(), "{left:?}");
    stage.start_worker(|_| {});
    stage.lapse_leases().await;
    let delivered = stage.wait_for_state("delivered").await;
    let posts = stage.receiver.posts();
    assert_eq!(posts.len(), 2);
    assert!(
        posts.iter().all(|post| post.id() == delivered.id.to_string()),
        "{posts:?}"
    );
    assert_eq!(posts[0].body, posts[1].body);
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn an_outcome_is_fenced_after_another_worker_has_taken_the_delivery(pool: PgPool) {
    let mut stage = Stage::open(pool).await;
    stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
    stage.receiver.answers([Answer::Held(410), Answer::Status(200)]);
    let slow = stage.new_worker();
    stage.ended_run().await;
    stage.receiver.wait_for(1).await;
    stage.start_worker(|_| {});
    stage.lapse_leases().await;
    let delivered = stage.wait_for_state("delivered").await;
    stage.receiver.release(1);
    // It stops once its attempt has come to an end.
    slow.stop().await;
    assert_eq!(stage.outbox().await.remove(0).state, delivered.state);
    let shown = stage.site.get("/api/v1/webhooks/ci").await.is(200);
    assert!(shown["webhook"]["disabled_at"].is_null(), "{shown}");
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn two_workers_never_hold_the_same_delivery(pool: PgPool) {
    let mut stage = Stage::open(pool).await;
    stage.receiver.usually(Answer::Held(200));
    for number in 0..12 {
        let name = format!("ci-{number}");
        stage.put(&name, &json!({ "url": stage.receiver.url() })).await.is(201);
    }
    stage.start_worker(|_| {});
    stage.start_worker(|_| {});
    stage.ended_run().await;
    let posts = stage.receiver.wait_for(12).await;
    let ids: BTreeSet<_> = posts.iter().map(super::receiver::Post::id).collect();
    assert_eq!(ids.len(), 12);
    stage.receiver.release(12);
    let states = async || stage.outbox().await;
    wait_until("all are delivered", states, |rows| {
        rows.iter().all(|row| row.state == "delivered")
    })
    .await;
    assert_eq!(stage.receiver.posts().len(), 12);
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_receiver_that_hangs_does_not_take_all_slots(pool: PgPool) {
    let mut stage = Stage::open(pool).await;
    stage
        .put("hangs", &json!({ "url": stage.receiver.url() }))
        .await
        .is(201);
    stage.receiver.usually(Answer::Held(500));
    for _ in 0..25 {
        stage.ended_run().await;
    }
    stage.start_worker(|_| {});
    stage.receiver.wait_for(5).await;
    let other = Receiver::start().await;
    stage.put("other", &json!({ "url": other.url() })).await.is(201);
    stage.ended_run().await;
    other.wait_for(1).await;
    // A claim passes the limit of five by less than another five.
    let hanging = stage.receiver.posts().len();
    assert!((5..10).contains(&hanging), "{hanging}");
    stage.receiver.release(100);
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_delivery_asked_for_again_while_it_is_in_hand_is_sent_again_afterwards(pool: PgPool) {
    let stage = Stage::delivering(pool).await;
    stage.receiver.answers([Answer::Held(200)]);
    stage.ended_run().await;
    stage.receiver.wait_for(1).await;
    let held = stage.outbox().await.remove(0);
    let asked = stage.redeliver("ci", held.id).await.is(202);
    assert_eq!(asked["delivery"]["state"], "pending");
    assert_eq!(
        stage.outbox().await.remove(0).lease,
        held.lease,
        "its owner still has it"
    );
    stage.receiver.release(1);
    stage.receiver.wait_for(2).await;
    let delivered = stage.wait_for_state("delivered").await;
    assert_eq!(delivered.attempts, 1);
    assert_eq!(stage.receiver.posts().len(), 2);
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_delivery_whose_notification_was_lost_is_found_by_the_timer(pool: PgPool) {
    let mut stage = Stage::open(pool).await;
    stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
    stage.start_worker(|_| {});
    let alive = async || {
        let beats = "select count(*) from boxrun.workers";
        sqlx::query_scalar::<_, i64>(beats)
            .fetch_one(&stage.site.app.pool)
            .await
            .unwrap()
    };
    wait_until("a worker works", alive, |count| *count == 1).await;
    stage
        .execute("alter table boxrun.runs disable trigger enqueue_webhook_deliveries")
        .await;
    stage.ended_run().await;
    stage
        .execute(
            "insert into boxrun.webhook_deliveries (webhook_id, run_id)
             select w.id, r.id from boxrun.webhooks w, boxrun.runs r",
        )
        .await;
    stage.wait_for_state("delivered").await;
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_worker_that_stops_waits_for_its_attempt(pool: PgPool) {
    let stage = Stage::open(pool).await;
    stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
    stage.receiver.answers([Answer::Held(204)]);
    let worker = stage.new_worker();
    stage.ended_run().await;
    stage.receiver.wait_for(1).await;
    let releasing = async {
        let stopping = async || {
            let stopping = "select count(*) from boxrun.workers where stopping";
            sqlx::query_scalar::<_, i64>(stopping)
                .fetch_one(&stage.site.app.pool)
                .await
                .unwrap()
        };
        wait_until("the worker is stopping", stopping, |count| *count == 1).await;
        stage.receiver.release(1);
    };
    tokio::join!(worker.stop(), releasing);
    let row = stage.outbox().await.remove(0);
    assert_eq!((row.state.as_str(), row.last_status), ("delivered", Some(204)));
    stage.close().await;
}
