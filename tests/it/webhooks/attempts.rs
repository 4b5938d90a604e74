//! One attempt after the other: what is sent, and what each answer means.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use boxrun::runs::RunState;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use sqlx::PgPool;

use super::receiver::{Answer, Post, Receiver};
use super::stage::Stage;
use crate::support::box_says::{says, started};
use crate::support::wait::wait_until;
use crate::support::worker::APPLICATION;

/// As a receiver does it, with nothing of ours.
fn verifies(post: &Post, secret: &str) -> bool {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{}.{}.", post.id(), post.header("webhook-timestamp")).as_bytes());
    mac.update(&post.body);
    let signature = post.header("webhook-signature");
    let signature = STANDARD.decode(signature.strip_prefix("v1,").unwrap()).unwrap();
    mac.verify_slice(&signature).is_ok()
}

/// Fields of a run that are its job's, which goes on after the end.
const OF_JOB: [&str; 5] = ["last_seen_at", "next_poll_at", "attempts", "last_error", "worker"];

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_delivery_is_signed_and_carries_the_run_as_http_shows_it(pool: PgPool) {
    let mut stage = Stage::open(pool).await;
    let url = format!("{}?key=hunter2", stage.receiver.url());
    let made = stage.put("ci", &json!({ "url": url })).await.is(201);
    let secret = made["secret"].as_str().unwrap();
    stage.start_worker(|_| {});
    let app = &stage.site.app;
    let run = app.running("curl https://bob:pa55word@git.example/x").await;
    stage.site.complete(run).await;
    let delivered = stage.wait_for_state("delivered").await;
    let posts = stage.receiver.posts();
    let [post] = posts.as_slice() else {
        panic!("one post, not {posts:?}")
    };
    assert!(verifies(post, secret), "{post:?}");
    assert!(!verifies(post, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
    assert_eq!(post.path, "/hooks?key=hunter2");
    assert_eq!(post.id(), delivered.id.to_string());
    assert_eq!(post.header("content-type"), "application/json");
    let sent_at: i64 = post.header("webhook-timestamp").parse().unwrap();
    assert!((chrono::Utc::now().timestamp() - sent_at).abs() < 300, "{sent_at}");

    let event: Value = serde_json::from_slice(&post.body).unwrap();
    let mut shown = stage.site.get(&stage.site.run(run)).await.is(200)["run"].clone();
    for field in OF_JOB {
        shown[field] = Value::Null;
    }
    assert_eq!(
        event,
        json!({ "type": "run.finished", "timestamp": shown["finished_at"], "data": { "run": shown } })
    );
    assert_eq!(shown["command"], "curl [REDACTED_URL]");
    assert_eq!((delivered.attempts, delivered.last_status), (1, Some(200)));
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_retry_is_the_same_delivery_with_the_same_body(pool: PgPool) {
    let stage = Stage::delivering(pool).await;
    stage.receiver.answers([Answer::Status(500), Answer::Status(429)]);
    let run = stage.ended_run().await;
    let first = stage.wait_for_attempt(1).await;
    assert_eq!((first.state.as_str(), first.last_status), ("pending", Some(500)));
    assert_eq!(first.last_error_code.as_deref(), Some("status_refused"));
    assert!((5.0..=12.0).contains(&first.due_in), "{first:?}");
    // The run's job goes on meanwhile, and ends.
    stage
        .site
        .app
        .execute("delete from boxrun.jobs where run_id = $1", run)
        .await;
    stage.pass_backoff().await;
    let second = stage.wait_for_attempt(2).await;
    assert!((14.0..=24.0).contains(&second.due_in), "{second:?}");
    stage.pass_backoff().await;
    let third = stage.wait_for_state("delivered").await;
    assert_eq!(
        (third.attempts, third.last_status, third.last_error_code),
        (3, Some(200), None)
    );
    let posts = stage.receiver.posts();
    assert_eq!(posts.len(), 3);
    for post in &posts {
        assert_eq!((post.id(), &post.body), (first.id.to_string(), &posts[0].body));
    }
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_receiver_that_is_down_is_tried_again_and_given_up_after_the_last_attempt(pool: PgPool) {
    let mut stage = Stage::open(pool).await;
    let nobody = {
        let receiver = Receiver::start().await;
        receiver.url()
    };
    // The port is closed once the receiver is gone.
    wait_until(
        "nobody listens there",
        async || reqwest::Client::new().get(&nobody).send().await.is_err(),
        |refused| *refused,
    )
    .await;
    stage.put("ci", &json!({ "url": nobody })).await.is(201);
    stage.start_worker(|_| {});
    stage.ended_run().await;
    let tried = stage.wait_for_attempt(1).await;
    assert_eq!(tried.last_error_code.as_deref(), Some("unreachable"), "{tried:?}");
    assert_eq!((tried.state.as_str(), tried.last_status), ("pending", None));
    stage
        .execute("update boxrun.webhook_deliveries set attempts = 16")
        .await;
    stage.pass_backoff().await;
    let failed = stage.wait_for_state("failed").await;
    assert_eq!(failed.attempts, 17);
    let shown = stage.deliveries_of("ci").await.remove(0);
    assert_eq!(
        (&shown["state"], &shown["next_attempt_at"]),
        (&json!("failed"), &Value::Null)
    );
    assert!(
        shown["ended_at"].is_string() && shown["last_error"].is_string(),
        "{shown}"
    );
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_redirect_is_a_failure_and_is_not_followed(pool: PgPool) {
    let stage = Stage::delivering(pool).await;
    let elsewhere = Receiver::start().await;
    for status in [302, 307, 308] {
        stage
            .receiver
            .answers([Answer::With(status, "location", elsewhere.url())]);
    }
    stage.ended_run().await;
    for attempt in 1..=3 {
        let tried = stage.wait_for_attempt(attempt).await;
        assert_eq!(tried.last_error_code.as_deref(), Some("redirected"), "{tried:?}");
        stage.pass_backoff().await;
    }
    stage.wait_for_state("delivered").await;
    assert_eq!(elsewhere.posts().len(), 0);
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_receiver_that_is_gone_disables_its_webhook_until_it_is_put_again(pool: PgPool) {
    let stage = Stage::delivering(pool).await;
    stage.receiver.answers([Answer::Status(500), Answer::Status(410)]);
    stage.ended_run().await;
    stage.wait_for_attempt(1).await;
    stage.pass_backoff().await;
    let gone = stage.wait_for_state("failed").await;
    assert_eq!(
        (gone.last_status, gone.last_error_code.as_deref()),
        (Some(410), Some("gone"))
    );
    let shown = stage.site.get("/api/v1/webhooks/ci").await.is(200);
    assert!(shown["webhook"]["disabled_at"].is_string(), "{shown}");
    // Nothing is written down for it, and what was is not sent.
    stage.ended_run().await;
    assert_eq!(stage.outbox().await.len(), 1);
    stage.redeliver("ci", gone.id).await.is(202);
    let refused = stage
        .wait_until("it is refused", |row| {
            row.last_error_code.as_deref() == Some("webhook_disabled")
        })
        .await;
    assert_eq!(refused.state, "failed");
    assert_eq!(stage.receiver.posts().len(), 2);

    let again = stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(200);
    assert_eq!(again["webhook"]["disabled_at"], Value::Null);
    stage.redeliver("ci", gone.id).await.is(202);
    stage.wait_for_state("delivered").await;
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_retry_after_is_obeyed_up_to_an_hour(pool: PgPool) {
    let stage = Stage::delivering(pool).await;
    stage
        .receiver
        .answers(["120", "604800"].map(|wait| Answer::With(503, "retry-after", wait.to_owned())));
    stage.ended_run().await;
    let asked = stage.wait_for_attempt(1).await;
    assert!((60.0..=144.0).contains(&asked.due_in), "{asked:?}");
    stage.pass_backoff().await;
    let asked = stage.wait_for_attempt(2).await;
    assert!((3500.0..=4320.0).contains(&asked.due_in), "{asked:?}");
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_receiver_that_is_slow_is_not_waited_for(pool: PgPool) {
    let mut stage = Stage::open(pool).await;
    stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
    stage.receiver.answers([Answer::Held(200)]);
    stage.start_worker(|options| options.webhooks.attempt_timeout = Duration::from_millis(300));
    stage.ended_run().await;
    let tried = stage.wait_for_attempt(1).await;
    assert_eq!(tried.last_error_code.as_deref(), Some("timed_out"), "{tried:?}");
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn an_answer_is_not_read_to_an_end_that_does_not_come(pool: PgPool) {
    let stage = Stage::delivering(pool).await;
    stage.receiver.answers([Answer::Endless]);
    stage.ended_run().await;
    let delivered = stage.wait_for_state("delivered").await;
    assert_eq!(delivered.last_status, Some(200));
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_receiver_that_hangs_holds_up_no_run_and_no_connection(pool: PgPool) {
    let mut stage = Stage::open(pool).await;
    stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
    stage.receiver.usually(Answer::Held(500));
    stage.site.app.start_worker_with(|options| {
        options.webhooks.concurrency = 1;
        options.secret_keys = boxrun::runs::SecretKeys::parse(super::stage::KEYS).ok();
    });
    let app = &stage.site.app;
    let end = "PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0";
    app.server.script([started(4242), says(end), started(4243), says(end)]);
    let first = app.admit("one").await;
    app.wait_for(first, RunState::Completed).await;
    stage.receiver.wait_for(1).await;
    let in_transaction = "select count(*) from pg_stat_activity where datname = current_database()
         and application_name = $1 and state like 'idle in transaction%'";
    let in_transaction = sqlx::query_scalar::<_, i64>(in_transaction).bind(APPLICATION);
    assert_eq!(in_transaction.fetch_one(&app.pool).await.unwrap(), 0);
    let second = app.admit("two").await;
    let ended = app.wait_for(second, RunState::Completed).await;
    assert_eq!(ended.exit_status, Some(0));
    assert_eq!(stage.receiver.posts().len(), 1);
    stage.receiver.release(100);
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_redelivery_has_the_same_id_and_all_its_attempts_before_it(pool: PgPool) {
    let stage = Stage::delivering(pool).await;
    stage.ended_run().await;
    let delivered = stage.wait_for_state("delivered").await;
    stage.receiver.answers([Answer::Status(503)]);
    let again = stage.redeliver("ci", delivered.id).await.is(202);
    assert_eq!(again["delivery"]["id"], delivered.id.to_string());
    assert_eq!(
        (&again["delivery"]["state"], &again["delivery"]["attempts"]),
        (&json!("pending"), &json!(0))
    );
    let tried = stage.wait_for_attempt(1).await;
    assert_eq!(tried.last_status, Some(503));
    stage.pass_backoff().await;
    stage.wait_for_state("delivered").await;
    let posts = stage.receiver.posts();
    assert_eq!(posts.len(), 3);
    assert!(
        posts.iter().all(|post| post.id() == delivered.id.to_string()),
        "{posts:?}"
    );
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_rotated_secret_signs_from_then_on_and_a_new_url_keeps_it(pool: PgPool) {
    let stage = Stage::delivering(pool).await;
    let rotated = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let put = stage
        .put("ci", &json!({ "url": stage.receiver.url(), "secret": rotated }))
        .await
        .is(200);
    assert_eq!(put["secret"], Value::Null, "{put}");
    let moved = format!("{}/moved", stage.receiver.url());
    stage.put("ci", &json!({ "url": moved })).await.is(200);
    stage.ended_run().await;
    stage.wait_for_state("delivered").await;
    let post = stage.receiver.posts().remove(0);
    assert!(verifies(&post, rotated), "{post:?}");
    assert_eq!(post.path, "/hooks/moved");
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_worker_without_the_key_sends_nothing_and_one_that_has_it_goes_on(pool: PgPool) {
    let mut stage = Stage::open(pool).await;
    stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
    stage.ended_run().await;
    let keyless = stage.site.app.new_worker(|options| options.concurrency = [0; 4]);
    let tried = stage.wait_for_attempt(1).await;
    assert_eq!(tried.last_error_code.as_deref(), Some("secret_unreadable"), "{tried:?}");
    keyless.stop().await;
    assert_eq!(stage.receiver.posts().len(), 0);
    stage.start_worker(|_| {});
    stage.pass_backoff().await;
    stage.wait_for_state("delivered").await;
    let cancel = stage
        .site
        .own(Method::GET, "/api/v1/webhooks/ci/deliveries")
        .send()
        .await;
    assert!(!cancel.text.contains("secret_unreadable"), "{cancel:?}");
    stage.close().await;
}
