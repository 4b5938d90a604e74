//! A box is cleaned before it is given up.

use boxrun::runs::Run;
use reqwest::Method;
use serde_json::json;
use sqlx::PgPool;

use super::site::Site;
use crate::support::box_says::{Sent, says};
use crate::support::scripted_box::Answer;

async fn ended(site: &Site) -> Run {
    let run = site.app.running("x").await;
    site.complete(run).await;
    site.app.run(run).await
}

fn path(site: &Site) -> String {
    format!("{}/boxes/{}", site.conversation(), site.app.box_id)
}

async fn detached(site: &Site) -> bool {
    let held = "select conversation_id is null from boxrun.boxes where id = $1";
    let held = sqlx::query_scalar(held)
        .bind(site.app.box_id.as_str())
        .fetch_one(&site.app.pool)
        .await;
    held.expect("the box")
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_run_directories_go_first(pool: PgPool) {
    let site = Site::open(pool).await;
    let (first, second) = (ended(&site).await, ended(&site).await);
    site.app.server.script([says("REMOVED=1"), says("REMOVED=1")]);
    assert_eq!(site.own(Method::DELETE, &path(&site)).send().await.status, 204);
    assert!(detached(&site).await);
    assert_eq!(site.app.count_sent(Sent::Cleanup), 2);
    for run in [first.id, second.id] {
        let seen = site.app.snapshot(run).await;
        assert!(seen.run.end_verified_at.is_some() && seen.job.is_none(), "{seen:#?}");
        assert!(
            seen.timeline.iter().any(|event| event.contains("directory_removed")),
            "{seen:#?}"
        );
    }
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_box_with_an_active_run_stays(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    let refused = site.own(Method::DELETE, &path(&site)).send().await;
    refused.refuses(409, "box_run_in_progress");
    assert_eq!(refused.json()["error"]["active_run_id"], run.to_string());
    let forced = site
        .own(Method::DELETE, &format!("{}?force=true", path(&site)))
        .send()
        .await;
    forced.refuses(409, "box_run_in_progress");
    assert!(!detached(&site).await && site.app.sent().is_empty());
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_box_that_can_not_be_cleaned_stays_unless_it_is_forced_and_what_stayed_is_recorded(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = ended(&site).await;
    for (answer, status, code) in [
        (
            Answer::status(409, &json!({ "code": "box_stopped" })),
            409,
            "box_stopped",
        ),
        (Answer::broken(), 503, "box_unreachable"),
        (says("REMOVED=0"), 503, "box_unreachable"),
    ] {
        site.app.server.script([answer]);
        site.own(Method::DELETE, &path(&site))
            .send()
            .await
            .refuses(status, code);
        assert!(!detached(&site).await);
    }
    site.app
        .server
        .script([Answer::status(409, &json!({ "code": "box_stopped" }))]);
    let forced = site
        .own(Method::DELETE, &format!("{}?force=true", path(&site)))
        .send()
        .await;
    assert_eq!(forced.status, 204);
    assert!(detached(&site).await);
    let seen = site.app.snapshot(run.id).await;
    assert!(
        seen.timeline
            .iter()
            .any(|event| event.contains("left_on_box") && event.contains("box_stopped")),
        "{seen:#?}"
    );
    // A worker still cleans it once the box is back.
    assert!(seen.job.is_some(), "{seen:#?}");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_box_that_is_gone_has_nothing_left_on_it(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = ended(&site).await;
    let missing = Answer::status(404, &json!({ "code": "box_not_found" }));
    site.app.server.answer_gets(missing.clone());
    site.app.server.script([missing]);
    assert_eq!(site.own(Method::DELETE, &path(&site)).send().await.status, 204);
    assert!(detached(&site).await);
    assert!(site.app.snapshot(run.id).await.job.is_none());
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_conversation_whose_old_runs_may_be_alive_is_not_erased(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    let lost =
        "update boxrun.runs set state = 'lost', failure_reason = 'box_stopped', finished_at = t.at, updated_at = t.at
                  from (select clock_timestamp() as at) t where id = $1";
    site.app.execute(lost, run).await;
    site.app.server.script([Answer::broken()]);
    site.own(Method::DELETE, &site.conversation())
        .send()
        .await
        .refuses(503, "box_unreachable");
    // The next run on that box has to know of it.
    site.app.server.script([Answer::broken()]);
    let forced = site
        .own(Method::DELETE, &format!("{}?force=true", site.conversation()))
        .send()
        .await;
    forced.refuses(409, "box_run_in_progress");
    site.app.server.script([says("REMOVED=1")]);
    assert_eq!(site.own(Method::DELETE, &site.conversation()).send().await.status, 204);
    site.close().await;
}
