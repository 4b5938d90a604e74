//! The HTTP API of webhooks: each status and code, who may, and what is never shown.

use boxrun::runs::Principal;
use boxrun::schema;
use boxrun::web::tokens::Scope;
use boxrun::webhooks;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use super::receiver::Answer;
use super::stage::Stage;
use crate::web::site::Site;

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_webhook_is_put_shown_changed_and_deleted(pool: PgPool) {
    let stage = Stage::open(pool).await;
    let body = json!({ "url": "https://app.example.com/hooks?key=hunter2" });
    let made = stage.put("ci", &body).await.is(201);
    let secret = made["secret"].as_str().unwrap();
    assert!(secret.starts_with("whsec_") && secret.len() == 50, "{secret}");
    let webhook = &made["webhook"];
    assert_eq!(
        (
            &webhook["name"],
            &webhook["url"],
            &webhook["event"],
            &webhook["disabled_at"]
        ),
        (
            &json!("ci"),
            &json!("https://app.example.com/hooks?[REDACTED]"),
            &json!("run.finished"),
            &Value::Null
        )
    );
    let again = stage.put("ci", &body).await.is(200);
    assert_eq!(again["secret"], Value::Null, "{again}");
    assert_eq!(again["webhook"]["created_at"], webhook["created_at"]);
    let given = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let other = stage
        .put("b", &json!({ "url": "http://b.example", "secret": given }))
        .await
        .is(201);
    assert_eq!(other["secret"], given);
    let all = stage.site.get("/api/v1/webhooks").await.is(200);
    let names: Vec<_> = all["webhooks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|webhook| &webhook["name"])
        .collect();
    assert_eq!(names, ["b", "ci"]);
    let one = stage.site.get("/api/v1/webhooks/ci").await.is(200);
    assert_eq!(one["webhook"], again["webhook"]);
    assert_eq!(one["secret"], Value::Null);
    let path = "/api/v1/webhooks/ci";
    let gone = stage.site.own(Method::DELETE, path).send().await;
    assert_eq!((gone.status, gone.text.as_str()), (204, ""));
    stage
        .site
        .own(Method::DELETE, path)
        .send()
        .await
        .refuses(404, "webhook_not_found");
    stage.site.get(path).await.refuses(404, "webhook_not_found");
    let deliveries = stage.site.get("/api/v1/webhooks/ci/deliveries").await;
    deliveries.refuses(404, "webhook_not_found");
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn what_does_not_fit_is_refused_with_its_field_and_without_its_value(pool: PgPool) {
    let stage = Stage::open(pool).await;
    let good = json!({ "url": "https://app.example.com/" });
    let long = format!("https://app.example.com/{}", "x".repeat(2048));
    for (name, body, field) in [
        ("CI", good.clone(), "name"),
        ("_ci", good.clone(), "name"),
        (&*"x".repeat(65), good.clone(), "name"),
        ("ci", json!({}), "url"),
        ("ci", json!({ "url": 1 }), "url"),
        ("ci", json!({ "url": "" }), "url"),
        ("ci", json!({ "url": "ftp://app.example.com/hunter2" }), "url"),
        ("ci", json!({ "url": "https://bob:hunter2@app.example.com/" }), "url"),
        ("ci", json!({ "url": "https://app.example.com/#hunter2" }), "url"),
        ("ci", json!({ "url": long }), "url"),
        (
            "ci",
            json!({ "url": "https://a.example/", "secret": "hunter2" }),
            "secret",
        ),
        (
            "ci",
            json!({ "url": "https://a.example/", "secret": "whsec_aHVudGVyMg==" }),
            "secret",
        ),
        (
            "ci",
            json!({ "url": "https://a.example/", "event": "hunter2" }),
            "event",
        ),
    ] {
        let refused = stage.put(name, &body).await;
        refused.refuses(422, "invalid_request");
        assert!(refused.message().contains(field), "{name} {body}: {refused:?}");
        assert!(!refused.text.contains("hunter2"), "{refused:?}");
    }
    for number in 0..20 {
        stage.put(&format!("ci-{number}"), &good).await.is(201);
    }
    stage.put("one-more", &good).await.refuses(409, "webhook_limit_reached");
    stage.put("ci-7", &good).await.is(200);
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn many_puts_at_once_make_one_webhook_and_show_its_secret_once(pool: PgPool) {
    let stage = Stage::open(pool).await;
    let body = json!({ "url": "https://app.example.com/" });
    let puts = futures::future::join_all((0..8).map(|_| stage.put("ci", &body))).await;
    let made = puts.iter().filter(|reply| reply.status == 201).count();
    let shown = puts.iter().filter(|reply| reply.json()["secret"].is_string()).count();
    assert_eq!((made, shown), (1, 1), "{puts:?}");
    assert!(puts.iter().all(|reply| matches!(reply.status, 200 | 201)));
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn without_keys_a_webhook_is_refused(pool: PgPool) {
    let site = Site::open(pool).await;
    let asking = site.own(Method::PUT, "/api/v1/webhooks/ci");
    let refused = asking.body(&json!({ "url": "https://app.example.com/" })).send().await;
    refused.refuses(422, "secrets_not_configured");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn every_route_refuses_everybody_who_may_not(pool: PgPool) {
    let stage = Stage::delivering(pool).await;
    stage.ended_run().await;
    let delivered = stage.wait_for_state("delivered").await;
    let site = &stage.site;
    let one = "/api/v1/webhooks/ci".to_owned();
    let again = format!("{one}/deliveries/{}/redeliver", delivered.id);
    let owner = site.app.principal.clone();
    let bearer =
        async |principal: &Principal, scopes: &[Scope]| format!("Bearer {}", site.token_of(principal, scopes).await);
    let foreign = bearer(&Principal::user("somebody else"), &Scope::ALL).await;
    for (method, path, needs) in [
        (Method::GET, "/api/v1/webhooks".to_owned(), Scope::RunsRead),
        (Method::GET, one.clone(), Scope::RunsRead),
        (Method::GET, format!("{one}/deliveries"), Scope::RunsRead),
        (Method::POST, again.clone(), Scope::RunsWrite),
        (Method::PUT, one.clone(), Scope::RunsWrite),
        (Method::DELETE, one.clone(), Scope::RunsWrite),
    ] {
        let ask = |authorization: &str| {
            let asking = site.ask(method.clone(), &path).header("authorization", authorization);
            if method == Method::PUT {
                asking.body(&json!({ "url": "https://evil.example/" }))
            } else {
                asking
            }
        };
        ask("Bearer boxrun_wrong").send().await.refuses(401, "unauthorized");
        let lacking: Vec<_> = Scope::ALL.into_iter().filter(|scope| *scope != needs).collect();
        ask(&bearer(&owner, &lacking).await)
            .send()
            .await
            .refuses(403, "forbidden");
        match (method.as_str(), path == one) {
            // Everybody has names of their own.
            ("PUT", _) => drop(ask(&foreign).send().await.is(201)),
            ("DELETE", _) => assert_eq!(ask(&foreign).send().await.status, 204),
            ("GET", false) if path.ends_with("webhooks") => {
                assert_eq!(ask(&foreign).send().await.is(200)["webhooks"], json!([]));
            }
            _ => ask(&foreign).send().await.refuses(404, "webhook_not_found"),
        }
    }
    // A webhook of their own opens no delivery of somebody else's.
    let asking = site.ask(Method::PUT, &one).header("authorization", &foreign);
    asking
        .body(&json!({ "url": "https://evil.example/" }))
        .send()
        .await
        .is(201);
    let asking = site.ask(Method::POST, &again).header("authorization", &foreign);
    asking.send().await.refuses(404, "delivery_not_found");
    stage
        .redeliver("ci", Uuid::new_v4())
        .await
        .refuses(404, "delivery_not_found");
    let asking = site.own(Method::POST, &format!("{one}/deliveries/none/redeliver"));
    asking.send().await.refuses(404, "delivery_not_found");
    let own = site.get(&one).await.is(200);
    assert_eq!(own["webhook"]["url"], stage.receiver.url());
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn deliveries_are_listed_newest_first_page_by_page(pool: PgPool) {
    let stage = Stage::open(pool).await;
    stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
    for _ in 0..5 {
        stage.ended_run().await;
    }
    let mut expected: Vec<_> = stage.outbox().await.iter().map(|row| row.id).collect();
    expected.sort_unstable();
    expected.reverse();
    let (mut seen, mut path) = (Vec::new(), "/api/v1/webhooks/ci/deliveries?limit=2".to_owned());
    loop {
        let page = stage.site.get(&path).await.is(200);
        for delivery in page["deliveries"].as_array().unwrap() {
            assert_eq!(delivery["state"], "pending");
            assert!(delivery["next_attempt_at"].is_string(), "{delivery}");
            seen.push(delivery["id"].as_str().unwrap().parse::<Uuid>().unwrap());
        }
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/api/v1/webhooks/ci/deliveries?limit=2&after={next}");
    }
    assert_eq!(seen, expected);
    for wrong in ["limit=0", "limit=201", "after=x", "page=2"] {
        let path = format!("/api/v1/webhooks/ci/deliveries?{wrong}");
        stage.site.get(&path).await.refuses(422, "invalid_request");
    }
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_secret_and_the_query_of_the_url_are_shown_nowhere(pool: PgPool) {
    let mut stage = Stage::open(pool).await;
    let url = format!("{}?key=hunter2", stage.receiver.url());
    let made = stage.put("ci", &json!({ "url": url })).await;
    let secret = made.json()["secret"].as_str().unwrap().to_owned();
    assert!(!made.text.contains("hunter2"), "{made:?}");
    stage.start_worker(|_| {});
    stage.receiver.answers([Answer::Status(500)]);
    stage.ended_run().await;
    stage.wait_for_attempt(1).await;
    let id = stage.outbox().await.remove(0).id;
    for shown in [
        stage.site.get("/api/v1/webhooks").await,
        stage.site.get("/api/v1/webhooks/ci").await,
        stage.site.get("/api/v1/webhooks/ci/deliveries").await,
        stage.redeliver("ci", id).await,
        stage.put("ci", &json!({ "url": url })).await,
    ] {
        assert!(matches!(shown.status, 200 | 202), "{shown:?}");
        assert!(
            !shown.text.contains("hunter2") && !shown.text.contains(&secret),
            "{shown:?}"
        );
    }
    let bare = secret.strip_prefix("whsec_").unwrap();
    let stored: String = sqlx::query_scalar("select string_agg(w::text, ' ') from boxrun.webhooks w")
        .fetch_one(&stage.site.app.pool)
        .await
        .unwrap();
    assert!(!stored.contains(bare), "{stored}");
    stage.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn web_and_worker_need_no_more_than_their_roles(pool: PgPool) {
    schema::grant_roles(&pool).await.unwrap();
    let mut stage = Stage::open_as(pool, "boxrun_web").await;
    let body = json!({ "url": stage.receiver.url() });
    stage.put("ci", &body).await.is(201);
    stage.start_worker(|options| options.database = options.database.clone().options([("role", "boxrun_worker")]));
    stage.receiver.answers([Answer::Status(410)]);
    stage.ended_run().await;
    let gone = stage.wait_for_state("failed").await;
    stage.put("ci", &body).await.is(200);
    stage.redeliver("ci", gone.id).await.is(202);
    stage.wait_for_state("delivered").await;
    let expired = "update boxrun.webhook_deliveries set ended_at = clock_timestamp() - interval '31 days'";
    let mut tx = stage.site.app.pool.begin().await.unwrap();
    sqlx::query(expired).execute(&mut *tx).await.unwrap();
    sqlx::query("set local role boxrun_worker")
        .execute(&mut *tx)
        .await
        .unwrap();
    assert_eq!(webhooks::remove_expired(&mut tx).await.unwrap(), 1);
    tx.commit().await.unwrap();
    let deleted = stage.site.own(Method::DELETE, "/api/v1/webhooks/ci").send().await;
    assert_eq!(deleted.status, 204, "{deleted:?}");
    stage.close().await;
}
