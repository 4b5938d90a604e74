//! Who may do what: every route, asked by everybody who may not.

use boxrun::ids::RunId;
use boxrun::runs::Principal;
use boxrun::web::tokens::{self, Scope};
use reqwest::Method;
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use super::site::{Asking, Reply, Site};

/// A route with what it needs.
struct Route {
    method: Method,
    path: String,
    needs: Scope,
    by_ticket: bool,
}

fn routes(site: &Site, run: RunId) -> Vec<Route> {
    let (conversation, boxes) = (site.conversation(), format!("{}/boxes", site.conversation()));
    let one_box = format!("{boxes}/{}", site.app.box_id);
    let mut routes = vec![
        (Method::PUT, conversation.clone(), Scope::RunsWrite),
        (Method::DELETE, conversation.clone(), Scope::RunsWrite),
        (Method::GET, boxes, Scope::RunsRead),
        (Method::PUT, one_box.clone(), Scope::BoxesWrite),
        (Method::DELETE, one_box.clone(), Scope::BoxesWrite),
        (Method::POST, format!("{one_box}/runs"), Scope::RunsWrite),
        (Method::GET, format!("{one_box}/runs"), Scope::RunsRead),
        (Method::GET, format!("{conversation}/runs"), Scope::RunsRead),
    ];
    let by_ticket = ["", "/output", "/stream"];
    for run in [format!("{conversation}/runs/{run}"), format!("{one_box}/runs/{run}")] {
        routes.push((Method::GET, run.clone(), Scope::RunsRead));
        routes.push((Method::GET, format!("{run}/output"), Scope::RunsRead));
        routes.push((Method::GET, format!("{run}/stream"), Scope::RunsRead));
        routes.push((Method::GET, format!("{run}/events"), Scope::RunsRead));
        routes.push((Method::POST, format!("{run}/cancel"), Scope::RunsWrite));
        routes.push((Method::POST, format!("{run}/tickets"), Scope::RunsRead));
    }
    let is_by_ticket = |method: &Method, path: &str| {
        let rest = path.rsplit_once(&run.to_string()).map(|(_, rest)| rest);
        *method == Method::GET && rest.is_some_and(|rest| by_ticket.contains(&rest))
    };
    routes
        .into_iter()
        .map(|(method, path, needs)| Route {
            by_ticket: is_by_ticket(&method, &path),
            method,
            path,
            needs,
        })
        .collect()
}

fn with_body<'a>(route: &Route, asking: Asking<'a>) -> Asking<'a> {
    if route.method == Method::POST && route.path.ends_with("/runs") {
        asking.body(&json!({ "command": "x", "idempotency_key": "another" }))
    } else {
        asking
    }
}

async fn ask(site: &Site, route: &Route, token: &str) -> Reply {
    let asking = site.ask(route.method.clone(), &route.path);
    with_body(route, asking.header("authorization", &format!("Bearer {token}")))
        .send()
        .await
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn every_route_refuses_everybody_who_may_not(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    site.complete(run).await;
    let before = site.app.snapshot(run).await;
    let routes = routes(&site, run);
    assert_eq!(routes.len(), 20);
    let owner = site.app.principal.clone();
    let expired = tokens::create(&site.app.pool, &owner, &Scope::ALL, Some(0))
        .await
        .unwrap()
        .token;
    let revoked = tokens::create(&site.app.pool, &owner, &Scope::ALL, None).await.unwrap();
    assert!(tokens::revoke(&site.app.pool, revoked.id).await.unwrap());
    let foreign = site.token_of(&Principal::user("somebody else"), &Scope::ALL).await;
    let other_type = Principal {
        kind: "service".to_owned(),
        id: owner.id.clone(),
    };
    let other_type = site.token_of(&other_type, &Scope::ALL).await;

    for route in &routes {
        let named = format!("{} {}", route.method, route.path);
        let nobody = with_body(route, site.ask(route.method.clone(), &route.path))
            .send()
            .await;
        assert_eq!(
            (nobody.status, nobody.code().as_str()),
            (401, "unauthorized"),
            "{named}"
        );
        assert_eq!(nobody.headers["www-authenticate"], "Bearer", "{named}");
        let basic = site
            .ask(route.method.clone(), &route.path)
            .header("authorization", "Basic dTpw");
        assert_eq!(with_body(route, basic).send().await.status, 401, "{named}");
        for token in [
            "boxrun_wrong",
            "",
            &"x".repeat(5000),
            &expired,
            &revoked.token,
            &site.token[..site.token.len() - 1],
        ] {
            let refused = ask(&site, route, token).await;
            assert_eq!(
                (refused.status, refused.code().as_str()),
                (401, "unauthorized"),
                "{named} {token}"
            );
        }
        let lacking: Vec<_> = Scope::ALL.into_iter().filter(|scope| *scope != route.needs).collect();
        let refused = ask(&site, route, &site.token_of(&owner, &lacking).await).await;
        assert_eq!((refused.status, refused.code().as_str()), (403, "forbidden"), "{named}");
        assert!(refused.message().contains(route.needs.as_str()), "{named}: {refused:?}");

        // Foreign and missing look alike.
        for token in [&foreign, &other_type] {
            let refused = ask(&site, route, token).await;
            assert_eq!(
                (refused.status, refused.code().as_str()),
                (404, "conversation_not_found"),
                "{named}"
            );
            if route.method != Method::PUT || route.path.contains("boxes") {
                let missing = Route {
                    method: route.method.clone(),
                    path: route
                        .path
                        .replace(&site.app.conversation.to_string(), &Uuid::new_v4().to_string()),
                    needs: route.needs,
                    by_ticket: route.by_ticket,
                };
                let missing = ask(&site, &missing, token).await;
                assert_eq!(
                    (missing.status, &missing.text),
                    (refused.status, &refused.text),
                    "{named}"
                );
            }
        }
    }
    let after = site.app.snapshot(run).await;
    assert_eq!((after.run.state, after.timeline), (before.run.state, before.timeline));
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_ticket_reads_one_run_and_nothing_else(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    site.complete(run).await;
    let other = site.app.running("y").await;
    site.complete(other).await;
    let made = site
        .own(Method::POST, &format!("{}/tickets", site.run(run)))
        .send()
        .await
        .is(201);
    let ticket = made["ticket"].as_str().unwrap();
    for route in routes(&site, run) {
        let named = format!("{} {}", route.method, route.path);
        let path = format!("{}?ticket={ticket}", route.path);
        let reply = with_body(&route, site.ask(route.method.clone(), &path)).send().await;
        assert_eq!(
            reply.status,
            if route.by_ticket { 200 } else { 401 },
            "{named}: {reply:?}"
        );
    }
    for route in routes(&site, other).into_iter().filter(|route| route.by_ticket) {
        let path = format!("{}?ticket={ticket}", route.path);
        let reply = site.ask(route.method.clone(), &path).send().await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (404, "box_run_not_found"),
            "{}",
            route.path
        );
    }
    let path = site.run(run);
    let expired = sqlx::query("update boxrun.run_tickets set expires_at = clock_timestamp()");
    for bad in ["", "boxrunticket_wrong", site.token.as_str()] {
        site.ask(Method::GET, &format!("{path}?ticket={bad}"))
            .send()
            .await
            .refuses(401, "unauthorized");
    }
    expired.execute(&site.app.pool).await.unwrap();
    site.ask(Method::GET, &format!("{path}?ticket={ticket}"))
        .send()
        .await
        .refuses(401, "unauthorized");

    // It ends with the token that it was made with.
    let (id, token) = {
        let made = tokens::create(&site.app.pool, &site.app.principal, &[Scope::RunsRead], None)
            .await
            .unwrap();
        (made.id, format!("Bearer {}", made.token))
    };
    let asking = site
        .ask(Method::POST, &format!("{path}/tickets"))
        .header("authorization", &token);
    let made = asking.send().await.is(201);
    let by_ticket = format!("{path}?ticket={}", made["ticket"].as_str().unwrap());
    site.ask(Method::GET, &by_ticket).send().await.is(200);
    tokens::revoke(&site.app.pool, id).await.unwrap();
    site.ask(Method::GET, &by_ticket)
        .send()
        .await
        .refuses(401, "unauthorized");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn act_as_asks_for_somebody_else_and_needs_its_scope(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    let service = Principal {
        kind: "service".to_owned(),
        id: "web".to_owned(),
    };
    let scopes = [Scope::RunsRead, Scope::ActAs];
    let trusted = format!("Bearer {}", site.token_of(&service, &scopes).await);
    let ordinary = format!("Bearer {}", site.token_of(&service, &[Scope::RunsRead]).await);
    let path = site.run(run);
    let asking = |token: &str, whom: &str| {
        site.ask(Method::GET, &path)
            .header("authorization", token)
            .header("boxrun-on-behalf-of", whom)
    };
    asking(&trusted, "user:u1").send().await.is(200);
    asking(&trusted, "user:u2")
        .send()
        .await
        .refuses(404, "conversation_not_found");
    asking(&ordinary, "user:u1").send().await.refuses(403, "forbidden");
    for wrong in ["u1", ":u1", "user:", &format!("user:{}", "x".repeat(257))] {
        asking(&trusted, wrong).send().await.refuses(422, "invalid_request");
    }
    // Without the header it asks for itself.
    let itself = site
        .ask(Method::GET, &path)
        .header("authorization", &trusted)
        .send()
        .await;
    itself.refuses(404, "conversation_not_found");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_database_knows_no_token_and_no_ticket_by_its_text(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    let made = site
        .own(Method::POST, &format!("{}/tickets", site.run(run)))
        .send()
        .await
        .is(201);
    let ticket = made["ticket"].as_str().unwrap();
    let dump: String = sqlx::query_scalar(
        "select (select string_agg(t::text, ' ') from boxrun.api_tokens t)
             || (select string_agg(t::text, ' ') from boxrun.run_tickets t)",
    )
    .fetch_one(&site.app.pool)
    .await
    .unwrap();
    let bare = |text: &str| text.split_once('_').unwrap().1.to_owned();
    assert!(
        !dump.contains(&bare(ticket)) && !dump.contains(&bare(&site.token)),
        "{dump}"
    );
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_page_of_an_allowed_origin_may_ask_and_no_other(pool: PgPool) {
    let site = Site::open(pool).await;
    let path = format!("{}/runs", site.conversation());
    let allowed = async |origin: &str, method: &str| {
        let asking = site.ask(Method::OPTIONS, &path).header("origin", origin);
        let asking = asking.header("access-control-request-method", method);
        let asking = asking.header("access-control-request-headers", "authorization,content-type");
        let reply = asking.send().await;
        reply
            .headers
            .get("access-control-allow-origin")
            .map(|origin| origin.to_str().unwrap().to_owned())
    };
    assert_eq!(
        allowed("https://app.example.com", "GET").await.as_deref(),
        Some("https://app.example.com")
    );
    assert_eq!(allowed("https://evil.example.com", "GET").await, None);
    assert_eq!(allowed("null", "GET").await, None);
    let simple = site
        .own(Method::GET, &path)
        .header("origin", "https://app.example.com")
        .send()
        .await;
    assert_eq!(simple.headers["access-control-allow-origin"], "https://app.example.com");
    assert!(simple.headers.get("access-control-allow-credentials").is_none());
    site.close().await;
}
