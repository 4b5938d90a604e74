//! A start over HTTP: what it answers, what it refuses, and that a refusal leaves nothing.

use boxrun::ids::BoxId;
use boxrun::runs::{RunState, SecretKeys};
use reqwest::Method;
use serde_json::json;
use sqlx::PgPool;

use super::site::Site;
use crate::support::box_says::Sent;
use crate::support::scripted_box::Answer;

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_is_started_shown_and_repeated(pool: PgPool) {
    let site = Site::open(pool).await;
    let key = SecretKeys::parse("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").is_ok();
    assert!(key);
    let body = json!({ "command": "make test", "idempotency_key": "k1", "max_duration_seconds": 60, "cwd": "work",
                       "env": { "LEVEL": "3" } });
    let path = site.runs_of(&site.app.box_id);
    let started = site.own(Method::POST, &path).body(&body).send().await;
    let run = started.is(202)["run"].clone();
    let shown: Vec<_> = run.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = [
        "id",
        "conversation_id",
        "box_id",
        "principal",
        "idempotency_key",
        "command",
        "cwd",
        "env",
        "state",
        "exit_status",
        "timed_out",
        "output_offset",
        "output_base_offset",
        "failure_reason",
        "admitted_at",
        "dispatched_at",
        "started_at",
        "finished_at",
        "deadline_at",
        "cancellation_requested_at",
        "cancellation_effective_at",
        "last_seen_at",
        "next_poll_at",
        "attempts",
        "last_error",
        "worker",
    ];
    expected.sort_unstable();
    assert_eq!(shown, expected);
    assert_eq!(run["state"], "admitted");
    assert_eq!(run["env"], json!({ "LEVEL": "3" }));
    assert_eq!(run["cwd"], "work");
    assert!(site.app.run(started.run_id()).await.box_checked_at.is_some());

    // The same key in the header is the same key; the provider is not asked again.
    let mut same = body.clone();
    same.as_object_mut().unwrap().remove("idempotency_key");
    let asked = site.app.count_sent(Sent::GetBox);
    let repeat = site
        .own(Method::POST, &path)
        .header("idempotency-key", "k1")
        .body(&same)
        .send()
        .await;
    repeat.is(202);
    assert_eq!(repeat.run_id(), started.run_id());
    assert_eq!(site.app.count_sent(Sent::GetBox), asked);

    site.start("make other", "k1")
        .await
        .refuses(409, "box_run_idempotency_conflict");
    let second = site.start("make test", "k2").await;
    second.refuses(409, "box_run_in_progress");
    assert_eq!(second.json()["error"]["active_run_id"], started.run_id().to_string());

    // Both ways to it.
    for path in [site.run(started.run_id()), format!("{path}/{}", started.run_id())] {
        assert_eq!(site.get(&path).await.is(200)["run"]["id"], run["id"]);
    }
    let other_box = format!("{}/boxes/bx_9bhkse3n/runs/{}", site.conversation(), started.run_id());
    site.get(&other_box).await.refuses(404, "box_run_not_found");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn what_is_wrong_with_a_start_is_said_and_nothing_is_stored_or_asked(pool: PgPool) {
    let site = Site::open(pool).await;
    let path = site.runs_of(&site.app.box_id);
    let cases = [
        (
            json!({ "command": " ", "idempotency_key": "k" }),
            "invalid_command",
            "blank",
        ),
        (
            json!({ "command": "x".repeat(8001), "idempotency_key": "k" }),
            "invalid_command",
            "longer",
        ),
        (
            json!({ "command": "a\u{0}b", "idempotency_key": "k" }),
            "invalid_command",
            "NUL",
        ),
        (json!({ "command": "x" }), "invalid_idempotency_key", "Idempotency-Key"),
        (
            json!({ "command": "x", "idempotency_key": "" }),
            "invalid_idempotency_key",
            "empty",
        ),
        (
            json!({ "command": "x", "idempotency_key": "k".repeat(257) }),
            "invalid_idempotency_key",
            "longer",
        ),
        (
            json!({ "command": "x", "idempotency_key": "k", "max_duration_seconds": 0 }),
            "invalid_max_duration",
            "1800",
        ),
        (
            json!({ "command": "x", "idempotency_key": "k", "max_duration_seconds": 1801 }),
            "invalid_max_duration",
            "1800",
        ),
        (
            json!({ "command": "x", "idempotency_key": "k", "max_duration_seconds": -1 }),
            "invalid_request",
            "max_duration_seconds",
        ),
        (
            json!({ "command": "x", "idempotency_key": "k", "cwd": "" }),
            "invalid_request",
            "cwd",
        ),
        (
            json!({ "command": "x", "idempotency_key": "k", "env": { "A B": "x" } }),
            "invalid_request",
            "env",
        ),
        (
            json!({ "command": "x", "idempotency_key": "k", "env": { "A": 1 } }),
            "invalid_request",
            "env.A",
        ),
        (
            json!({ "command": "x", "idempotency_key": "k", "timeout": 5 }),
            "invalid_request",
            "`timeout`",
        ),
        (json!({ "idempotency_key": "k" }), "invalid_request", "`command`"),
        (
            json!({ "command": 5, "idempotency_key": "k" }),
            "invalid_request",
            "command",
        ),
        (json!(["x"]), "invalid_request", ""),
        (
            json!({ "command": "x", "idempotency_key": "k", "secret_env": { "A": "12345678" } }),
            "secrets_not_configured",
            "BOXRUN_SECRET_KEYS",
        ),
        (
            json!({ "command": "x", "idempotency_key": "k", "secret_env": { "A": "short" } }),
            "invalid_request",
            "secret_env",
        ),
        (
            json!({ "command": "x", "idempotency_key": "k", "git_credential": { "host": "h", "username": "u" } }),
            "invalid_request",
            "password",
        ),
    ];
    for (body, code, hint) in cases {
        let refused = site.own(Method::POST, &path).body(&body).send().await;
        refused.refuses(422, code);
        assert!(refused.message().contains(hint), "{body}: {refused:?}");
    }
    let differ = site.own(Method::POST, &path).header("idempotency-key", "other");
    let differ = differ
        .body(&json!({ "command": "x", "idempotency_key": "k" }))
        .send()
        .await;
    differ.refuses(422, "invalid_idempotency_key");
    let plain = site
        .own(Method::POST, &path)
        .header("content-type", "text/plain")
        .text("{}")
        .send()
        .await;
    plain.refuses(422, "invalid_request");
    let broken = site
        .own(Method::POST, &path)
        .header("content-type", "application/json")
        .text("{")
        .send()
        .await;
    broken.refuses(422, "invalid_request");
    let huge = json!({ "command": "x", "idempotency_key": "k", "cwd": "x".repeat(600_000) });
    site.own(Method::POST, &path)
        .body(&huge)
        .send()
        .await
        .refuses(413, "invalid_request");

    let unattached: BoxId = "bx_zbhkse3n".parse().unwrap();
    let asking = site.own(Method::POST, &site.runs_of(&unattached));
    let refused = asking
        .body(&json!({ "command": "x", "idempotency_key": "k" }))
        .send()
        .await;
    refused.refuses(404, "box_not_found");
    let runs: i64 = sqlx::query_scalar("select count(*) from boxrun.runs")
        .fetch_one(&site.app.pool)
        .await
        .unwrap();
    assert_eq!((runs, site.app.sent().len()), (0, 0));
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn what_the_provider_says_decides_and_nothing_is_stored(pool: PgPool) {
    let site = Site::open(pool).await;
    let coded = |status: u16, code: &str| Answer::status(status, &json!({ "code": code }));
    let cases: Vec<(Answer, u16, &str)> = vec![
        (coded(401, "unauthorized"), 502, "box_provider_unauthorized"),
        (coded(402, "billing"), 402, "box_billing_required"),
        (coded(404, "not_found"), 404, "box_not_found"),
        (coded(409, "box_gone"), 404, "box_not_found"),
        (coded(409, "box_starting"), 409, "box_not_ready"),
        (coded(409, "box_stopped"), 409, "box_stopped"),
        (Answer::box_state("bx_8bhkse3n", "archived"), 409, "box_stopped"),
        (Answer::box_state("bx_8bhkse3n", "provisioning"), 409, "box_not_ready"),
        (
            Answer::box_state("bx_9bhkse3n", "ready"),
            502,
            "box_provider_response_invalid",
        ),
        (coded(400, "bad_request"), 502, "box_provider_request_refused"),
        (coded(500, "oops"), 503, "box_unreachable"),
        (
            Answer::raw(200, "text/html", "<html>"),
            502,
            "box_provider_response_invalid",
        ),
        (Answer::broken(), 503, "box_unreachable"),
    ];
    for (answer, status, code) in cases {
        site.app.server.answer_gets(answer.clone());
        site.start("x", "k").await.refuses(status, code);
        let path = format!("{}/boxes/{}", site.conversation(), site.app.box_id);
        site.own(Method::PUT, &path).send().await.refuses(status, code);
    }
    site.app
        .server
        .answer_gets(coded(429, "rate_limited").with_header("retry-after", "7"));
    let refused = site.start("x", "k").await;
    refused.refuses(429, "box_provider_rate_limited");
    let seconds: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((5..=10).contains(&seconds), "{refused:?}");
    let runs: i64 = sqlx::query_scalar("select count(*) from boxrun.runs")
        .fetch_one(&site.app.pool)
        .await
        .unwrap();
    assert_eq!(runs, 0);
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn without_a_key_for_the_provider_runs_are_read_and_cancelled_and_none_is_started(pool: PgPool) {
    let site = Site::open_with(pool, |options| options.provider = None).await;
    site.start("x", "k").await.refuses(503, "box_not_configured");
    let run = site.app.admit("x").await;
    site.get(&site.run(run)).await.is(200);
    let cancelled = site
        .own(Method::POST, &format!("{}/cancel", site.run(run)))
        .send()
        .await;
    assert_eq!(cancelled.is(202)["run"]["state"], "cancelled");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_repeat_gets_its_run_while_the_provider_is_down_and_the_box_detached(pool: PgPool) {
    let site = Site::open(pool).await;
    let started = site.start("x", "k").await;
    started.is(202);
    site.own(Method::POST, &format!("{}/cancel", site.run(started.run_id())))
        .send()
        .await
        .is(202);
    let path = format!("{}/boxes/{}", site.conversation(), site.app.box_id);
    assert_eq!(site.own(Method::DELETE, &path).send().await.status, 204);
    site.app.server.answer_gets(Answer::broken());
    let repeat = site.start("x", "k").await;
    assert_eq!(repeat.is(202)["run"]["state"], "cancelled");
    assert_eq!(repeat.run_id(), started.run_id());
    // And it is still read by its conversation.
    site.get(&site.run(started.run_id())).await.is(200);
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_secret_of_a_run_is_sealed_and_in_no_answer(pool: PgPool) {
    let keys = SecretKeys::parse("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").expect("a key");
    let site = Site::open_with(pool, |options| options.secret_keys = Some(keys)).await;
    let body = json!({ "command": "x", "idempotency_key": "k", "secret_env": { "TOKEN": "very-secret-value" },
                       "git_credential": { "host": "git.example.com", "username": "u", "password": "very-secret-password" } });
    let started = site
        .own(Method::POST, &site.runs_of(&site.app.box_id))
        .body(&body)
        .send()
        .await;
    started.is(202);
    let path = site.run(started.run_id());
    for reply in [
        started,
        site.get(&path).await,
        site.get(&format!("{path}/events")).await,
    ] {
        assert!(!reply.text.contains("very-secret"), "{reply:?}");
    }
    let sealed: i64 = sqlx::query_scalar("select count(*) from boxrun.run_secrets")
        .fetch_one(&site.app.pool)
        .await
        .unwrap();
    assert_eq!(sealed, 1);
    assert_eq!(
        site.app
            .run(site.app.run(site.get(&path).await.run_id()).await.id)
            .await
            .state,
        RunState::Admitted
    );
    site.close().await;
}
