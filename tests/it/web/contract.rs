//! Every line of the HTTP interface, each code and status.

use boxrun::runs::Principal;
use boxrun::web::tokens::Scope;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use super::site::{Reply, Site};

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_conversation_is_made_once_and_belongs_to_one_principal(pool: PgPool) {
    let site = Site::open(pool).await;
    let path = format!("/api/v1/conversations/{}", Uuid::new_v4());
    for _ in 0..2 {
        let made = site.own(Method::PUT, &path).send().await.is(200);
        assert_eq!(
            made["conversation"]["principal"],
            json!({ "type": "user", "id": "u1" }),
            "{made}"
        );
    }
    let other = site.token_of(&Principal::user("u2"), &Scope::ALL).await;
    let asking = site
        .ask(Method::PUT, &path)
        .header("authorization", &format!("Bearer {other}"));
    asking.send().await.refuses(404, "conversation_not_found");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_box_is_attached_when_the_provider_has_it_and_listed_and_detached(pool: PgPool) {
    let site = Site::open(pool).await;
    let path = format!("{}/boxes/bx_9bhkse3n", site.conversation());
    for _ in 0..2 {
        let attached = site.own(Method::PUT, &path).send().await.is(200);
        assert_eq!(attached["box"]["id"], "bx_9bhkse3n");
        assert_eq!(attached["box"]["conversation_id"], site.app.conversation.to_string());
    }
    let boxes = site.get(&format!("{}/boxes", site.conversation())).await.is(200);
    let ids: Vec<_> = boxes["boxes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["id"])
        .collect();
    assert_eq!(ids, ["bx_8bhkse3n", "bx_9bhkse3n"]);

    let elsewhere = format!("/api/v1/conversations/{}", Uuid::new_v4());
    site.own(Method::PUT, &elsewhere).send().await.is(200);
    let second = site
        .own(Method::PUT, &format!("{elsewhere}/boxes/bx_9bhkse3n"))
        .send()
        .await;
    second.refuses(409, "box_already_attached");

    let gone = site.own(Method::DELETE, &path).send().await;
    assert_eq!((gone.status, gone.text.as_str()), (204, ""));
    site.own(Method::DELETE, &path)
        .send()
        .await
        .refuses(404, "box_not_found");
    let moved = site
        .own(Method::PUT, &format!("{elsewhere}/boxes/bx_9bhkse3n"))
        .send()
        .await;
    moved.is(200);
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_wait_is_answered_at_the_next_change_of_state_and_at_once_when_the_run_has_ended(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    let path = format!("{}?wait=60", site.run(run));
    let waiting = site.get(&path);
    let changing = async {
        // It waits once it is followed; a change before that is seen as well.
        site.print(run, "hello").await;
        site.complete(run).await;
    };
    let (answered, ()) = tokio::join!(waiting, changing);
    assert_eq!(answered.is(200)["run"]["state"], "completed");
    assert_eq!(site.get(&path).await.is(200)["run"]["state"], "completed");
    site.get(&format!("{}?wait=61", site.run(run)))
        .await
        .refuses(422, "invalid_request");
    site.get(&format!("{}?wait=x", site.run(run)))
        .await
        .refuses(422, "invalid_request");
    site.get(&format!("{}?watch=1", site.run(run)))
        .await
        .refuses(422, "invalid_request");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn runs_are_listed_newest_first_by_pages_and_filters(pool: PgPool) {
    let site = Site::open(pool).await;
    let mut ids = Vec::new();
    for number in 0..5 {
        let started = site.start("x", &format!("key {number}")).await;
        ids.insert(0, started.run_id().to_string());
        if number < 4 {
            site.own(Method::POST, &format!("{}/cancel", site.run(started.run_id())))
                .send()
                .await
                .is(202);
        }
    }
    let list = |reply: &Reply| -> Vec<String> {
        let runs = reply.is(200)["runs"].as_array().cloned().unwrap();
        runs.iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = format!("{}/runs", site.conversation());
    let mut seen = Vec::new();
    let mut next = String::new();
    loop {
        let page = site.get(&format!("{all}?limit=2{next}")).await;
        seen.extend(list(&page));
        match page.json()["next"].as_str() {
            Some(after) => next = format!("&after={after}"),
            None => break,
        }
    }
    assert_eq!(seen, ids);
    assert_eq!(list(&site.get(&format!("{all}?state=admitted")).await), ids[..1]);
    assert_eq!(
        list(&site.get(&format!("{all}?idempotency_key=key%201")).await),
        ids[3..4]
    );
    assert_eq!(list(&site.get(&format!("{all}?box_id=bx_8bhkse3n")).await), ids);
    assert_eq!(list(&site.get(&site.runs_of(&site.app.box_id)).await), ids);
    assert_eq!(
        list(&site.get(&format!("{all}?box_id=bx_9bhkse3n")).await),
        Vec::<String>::new()
    );
    for (query, code) in [
        ("state=done", "invalid_request"),
        ("limit=0", "invalid_request"),
        ("limit=201", "invalid_request"),
        ("limit=x", "invalid_request"),
        ("after=x", "invalid_request"),
        ("box_id=x", "invalid_box_id"),
        ("idempotency_key=%00", "invalid_idempotency_key"),
        ("order=asc", "invalid_request"),
    ] {
        site.get(&format!("{all}?{query}")).await.refuses(422, code);
    }
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn output_and_timeline_are_read(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    site.print(run, "grüße\n").await;
    let output = format!("{}/output", site.run(run));
    let read = site.get(&output).await.is(200);
    assert_eq!(
        read,
        json!({ "run_id": run.to_string(), "output": { "output": "grüße\n", "offset": 0, "next_offset": 8,
                "output_base_offset": 0, "truncated": false } })
    );
    // In the middle of a character.
    assert_eq!(
        site.get(&format!("{output}?offset=3")).await.is(200)["output"]["output"],
        "ße\n"
    );
    assert_eq!(
        site.get(&format!("{output}?offset=900")).await.is(200)["output"]["output"],
        ""
    );
    for offset in ["-1", "x", "99999999999999999999", "1.5", ""] {
        site.get(&format!("{output}?offset={offset}"))
            .await
            .refuses(422, "invalid_output_offset");
    }
    let events = site.get(&format!("{}/events", site.run(run))).await.is(200);
    assert_eq!(events["events"][0]["event"], "admitted");
    for field in ["at", "event", "worker", "detail"] {
        assert!(events["events"][0].as_object().unwrap().contains_key(field), "{events}");
    }
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_cancel_is_answered_for_a_live_run_and_for_one_that_has_ended(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    let path = format!("{}/cancel", site.run(run));
    let asked = site.own(Method::POST, &path).send().await.is(202);
    assert_eq!(asked["run"]["state"], "running");
    assert!(asked["run"]["cancellation_requested_at"].is_string());
    site.app
        .wait_until(run, "it is to be stopped", |seen| {
            seen.job
                .as_ref()
                .is_some_and(|job| job.urgent || job.kind == boxrun::queue::JobKind::Stop)
        })
        .await;
    site.complete(run).await;
    let again = site.own(Method::POST, &path).send().await.is(202);
    assert_eq!(again["run"]["state"], "completed");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_conversation_is_erased_with_all_that_was_in_it_once_nothing_is_active(pool: PgPool) {
    let site = Site::open(pool).await;
    let started = site.start("x", "k").await;
    let path = site.conversation();
    let refused = site.own(Method::DELETE, &path).send().await;
    refused.refuses(409, "box_run_in_progress");
    assert_eq!(refused.json()["error"]["active_run_id"], started.run_id().to_string());
    site.own(Method::POST, &format!("{}/cancel", site.run(started.run_id())))
        .send()
        .await
        .is(202);
    site.own(Method::POST, &format!("{}/tickets", site.run(started.run_id())))
        .send()
        .await
        .is(201);

    assert_eq!(site.own(Method::DELETE, &path).send().await.status, 204);
    for path in [
        path.clone(),
        site.run(started.run_id()),
        format!("{path}/runs"),
        format!("{path}/boxes"),
    ] {
        if path == site.conversation() {
            site.own(Method::DELETE, &path)
                .send()
                .await
                .refuses(404, "conversation_not_found");
        } else {
            site.get(&path).await.refuses(404, "conversation_not_found");
        }
    }
    for table in [
        "conversations",
        "runs",
        "run_output",
        "run_events",
        "jobs",
        "run_tickets",
    ] {
        let left = sqlx::AssertSqlSafe(format!("select count(*) from boxrun.{table}"));
        let left: i64 = sqlx::query_scalar(left).fetch_one(&site.app.pool).await.unwrap();
        assert_eq!(left, 0, "{table}");
    }
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn ids_that_are_none_are_not_found_and_addresses_that_are_none_say_where_to_look(pool: PgPool) {
    let site = Site::open(pool).await;
    site.get("/api/v1/conversations/x/runs")
        .await
        .refuses(404, "conversation_not_found");
    site.get(&format!("{}/runs/x", site.conversation()))
        .await
        .refuses(404, "box_run_not_found");
    let missing = site
        .get(&format!("{}/runs/{}", site.conversation(), Uuid::new_v4()))
        .await;
    missing.refuses(404, "box_run_not_found");
    let wrong_box = site
        .own(Method::PUT, &format!("{}/boxes/bx_l", site.conversation()))
        .send()
        .await;
    wrong_box.refuses(422, "invalid_box_id");
    site.get("/api/v1/nothing").await.refuses(404, "not_found");
    site.get("/").await.refuses(404, "not_found");
    site.own(Method::PATCH, &site.conversation())
        .send()
        .await
        .refuses(405, "method_not_allowed");
    site.get("/api/v1/conversations/%ff/runs")
        .await
        .refuses(422, "invalid_request");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn who_asks_too_much_waits_and_nobody_else_does(pool: PgPool) {
    let site = Site::open_with(pool, |options| options.rate_per_second = std::num::NonZeroU32::new(1)).await;
    let path = format!("{}/runs", site.conversation());
    let mut last = site.get(&path).await;
    for _ in 0..20 {
        if last.status != 200 {
            break;
        }
        last = site.get(&path).await;
    }
    last.refuses(429, "box_api_rate_limited");
    assert!(last.headers.contains_key("retry-after"), "{last:?}");
    let other = site.token_of(&Principal::user("u2"), &Scope::DEFAULT).await;
    let other = site
        .ask(Method::GET, &path)
        .header("authorization", &format!("Bearer {other}"))
        .send()
        .await;
    other.refuses(404, "conversation_not_found");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn health_and_the_description_of_the_api_need_no_token(pool: PgPool) {
    let site = Site::open(pool).await;
    assert_eq!(site.ask(Method::GET, "/healthz").send().await.status, 200);
    let ready = site.ask(Method::GET, "/readyz").send().await.is(200);
    assert_eq!(ready["status"], "ready");
    let api = site.ask(Method::GET, "/openapi.json").send().await.is(200);
    for (path, operations) in api["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            assert!(operation["operationId"].is_string(), "{method} {path}");
            assert!(has_example(operation), "{method} {path} has no example");
        }
    }
    // An older schema than this program needs.
    let older =
        "delete from boxrun._sqlx_migrations where version = (select max(version) from boxrun._sqlx_migrations)";
    sqlx::query(older).execute(&site.app.pool).await.unwrap();
    let unready = site.ask(Method::GET, "/readyz").send().await;
    assert_eq!(unready.is(503)["status"], "schema_outdated");
    site.close().await;
}

fn has_example(value: &Value) -> bool {
    match value {
        Value::Object(fields) => {
            fields.contains_key("example") || fields.contains_key("examples") || fields.values().any(has_example)
        }
        Value::Array(values) => values.iter().any(has_example),
        _ => false,
    }
}
