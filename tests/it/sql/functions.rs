//! What each function does where nothing is refused.

use std::time::Duration;

use boxrun::schema;
use serde_json::json;
use sqlx::PgPool;

use super::{BOX, CONVERSATION, OTHER_BOX, app, app_with_box, attach, refusal, row, run, run_id, start, value};

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_box_is_attached_and_its_conversation_made(pool: PgPool) {
    let mut conn = app(&pool).await;
    let call = attach(CONVERSATION, BOX, "u1").replace("select * from ", "");
    let attached = row(&mut conn, &call).await;
    assert_eq!(
        (&attached["id"], &attached["conversation_id"]),
        (&json!(BOX), &json!(CONVERSATION))
    );
    assert_eq!(
        row(&mut conn, &call).await,
        attached,
        "attached there already, nothing changes"
    );
    let owner: String = sqlx::query_scalar("select principal_type || ':' || principal_id from boxrun.conversations")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(owner, "user:u1");
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_detached_box_can_be_attached_elsewhere(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    run(
        &mut conn,
        &attach(CONVERSATION, BOX, "u1").replace("attach_box", "detach_box"),
    )
    .await;
    run(&mut conn, &attach(super::ELSEWHERE, BOX, "u2")).await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_is_started_with_everything_that_may_be_asked_for(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    let more = r#", max_duration_seconds => 600, cwd => 'src', env => '{"CI": "true"}'"#;
    let started = row(&mut conn, &start("make test", "deploy-42", more)).await;
    for (field, expected) in [
        ("conversation_id", json!(CONVERSATION)),
        ("box_id", json!(BOX)),
        ("principal", json!({"type": "user", "id": "u1"})),
        ("idempotency_key", json!("deploy-42")),
        ("command", json!("make test")),
        ("cwd", json!("src")),
        ("env", json!({"CI": "true"})),
        ("state", json!("admitted")),
        ("output_offset", json!(0)),
        ("attempts", json!(0)),
    ] {
        assert_eq!(started[field], expected, "{field} of {started}");
    }
    let seconds = format!(
        "select extract(epoch from deadline_at - admitted_at)::int from boxrun.get_run('{CONVERSATION}', '{}')",
        started["id"].as_str().unwrap()
    );
    assert_eq!(value::<i32>(&mut conn, &seconds).await, 600);
    let job: (String, bool) = sqlx::query_as("select kind, due_at <= clock_timestamp() from boxrun.jobs")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(job, ("start".to_owned(), true));
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn an_exact_repeat_is_the_same_run_whatever_became_of_it(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    let call = start("make test", "k", "");
    let first = run_id(&mut conn, &call).await;
    assert_eq!(run_id(&mut conn, &call).await, first);
    row(&mut conn, &cancel(&first)).await;
    let detach = attach(CONVERSATION, BOX, "u1").replace("attach_box", "detach_box");
    run(&mut conn, &detach).await;
    let repeated = row(&mut conn, &call).await;
    assert_eq!(
        (&repeated["id"], &repeated["state"]),
        (&json!(first), &json!("cancelled"))
    );
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_deadline_is_the_workers_limit_unless_less_is_asked_for(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    schema::record_max_duration(&pool, Duration::from_secs(3000))
        .await
        .unwrap();
    let seconds = format!(
        "select extract(epoch from deadline_at - admitted_at)::int from {}",
        start("make", "k", "")
    );
    assert_eq!(value::<i32>(&mut conn, &seconds).await, 3000);
    let longer = start("make", "l", ", max_duration_seconds => 3001");
    let refused = refusal(&mut conn, &format!("select {longer}")).await;
    assert_eq!(refused.sqlstate, "BX003");
    assert!(refused.detail.contains("1 to 3000"), "{refused:?}");
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_cancel_before_anything_was_sent_ends_the_run_here_and_now(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    let id = run_id(&mut conn, &start("make", "k", "")).await;
    let cancelled = row(&mut conn, &cancel(&id)).await;
    assert_eq!(cancelled["state"], "cancelled");
    assert!(cancelled["finished_at"].is_string(), "{cancelled}");
    assert_eq!(
        row(&mut conn, &cancel(&id)).await,
        cancelled,
        "a terminal run stays as it is"
    );
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_cancel_of_a_run_that_may_have_reached_the_box_is_for_a_worker_and_says_who_asked(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    let id = run_id(&mut conn, &start("make", "k", "")).await;
    sqlx::query("update boxrun.runs set dispatch_attempted_at = clock_timestamp(), updated_at = clock_timestamp()")
        .execute(&pool)
        .await
        .unwrap();
    let asked = row(&mut conn, &cancel(&id)).await;
    assert_eq!(asked["state"], "admitted");
    assert!(asked["cancellation_requested_at"].is_string(), "{asked}");
    let by_another = cancel(&id).replace("u1", "u9");
    assert_eq!(
        row(&mut conn, &by_another).await["cancellation_requested_at"],
        asked["cancellation_requested_at"],
        "it is asked once"
    );
    let kind: String = sqlx::query_scalar("select kind from boxrun.jobs")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(kind, "stop");
    let who: Vec<serde_json::Value> =
        sqlx::query_scalar("select detail from boxrun.run_events where event = 'cancel_requested'")
            .fetch_all(&pool)
            .await
            .unwrap();
    assert_eq!(who, [json!({"principal": {"type": "user", "id": "u1"}})]);
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn runs_are_listed_newest_first_and_page_by_page(pool: PgPool) {
    let mut conn = app_with_box(&pool).await;
    run(&mut conn, &attach(CONVERSATION, OTHER_BOX, "u1")).await;
    let mut ids = Vec::new();
    for key in ["a", "b", "c"] {
        let id = run_id(&mut conn, &start("make", key, "")).await;
        row(&mut conn, &cancel(&id)).await;
        ids.insert(0, id);
    }
    let live = start("make", "d", "").replace(BOX, OTHER_BOX);
    ids.insert(0, run_id(&mut conn, &live).await);
    for (filter, expected) in [
        ("", &ids[..]),
        (", state => 'cancelled'", &ids[1..]),
        (", state => 'running'", &[]),
        (", box_id => 'bx_22222222'", &ids[..1]),
        (", idempotency_key => 'b'", &ids[2..3]),
        (r#", "limit" => 2"#, &ids[..2]),
        (&format!(r#", "limit" => 2, after => '{}'"#, ids[1]), &ids[2..]),
    ] {
        let sql = format!(
            "select coalesce(array_agg(id::text), '{{}}') from boxrun.list_runs(conversation_id => '{CONVERSATION}' {filter})"
        );
        assert_eq!(value::<Vec<String>>(&mut conn, &sql).await, expected, "{filter}");
    }
    let elsewhere = format!("select count(*) from boxrun.list_runs('{}')", super::ELSEWHERE);
    assert_eq!(value::<i64>(&mut conn, &elsewhere).await, 0);
}

fn cancel(id: &str) -> String {
    format!(
        r#"boxrun.cancel_run(conversation_id => '{CONVERSATION}', run_id => '{id}', principal => '{{"type": "user", "id": "u1"}}')"#
    )
}
