//! Live output: in order, each byte once, resumable from any event.

use boxrun::ids::RunId;
use boxrun::web::tokens::{self, Scope};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;

use super::site::{Event, Events, Site};
use crate::support::wait::wait_until;

fn stream_of(site: &Site, run: RunId) -> String {
    format!("{}/stream", site.run(run))
}

async fn events(site: &Site, path: &str) -> Events {
    Events::of(site.own(Method::GET, path)).await
}

fn names(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.name.as_str()).collect()
}

/// The output of these events; each begins where the one before ended.
fn output(events: &[Event]) -> String {
    let mut text = String::new();
    let mut next: Option<i64> = None;
    for event in events {
        match event.name.as_str() {
            "output" => {
                let from = event.data["offset"].as_i64().unwrap();
                assert!(next.is_none_or(|next| next == from), "{event:?} after {next:?}");
                let piece = event.data["output"].as_str().unwrap();
                assert_eq!(
                    event.data["next_offset"].as_i64().unwrap(),
                    from + i64::try_from(piece.len()).unwrap()
                );
                text += piece;
                next = event.data["next_offset"].as_i64();
            }
            "gap" => next = event.data["to"].as_i64(),
            _ => {}
        }
    }
    text
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_that_has_ended_gives_output_state_and_end_at_once(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    site.print(run, "one\n").await;
    site.print(run, "grüße\n").await;
    site.complete(run).await;
    let all = events(&site, &stream_of(&site, run)).await.rest().await;
    assert_eq!(names(&all), ["output", "state", "end"]);
    assert_eq!(output(&all), "one\ngrüße\n");
    assert_eq!(all[0].id.as_deref(), Some("12"));
    assert_eq!(all[2].data["run"]["state"], "completed");
    assert_eq!(all[1].data, all[2].data);
    // Of a box, too.
    let by_box = format!("{}/{run}/stream", site.runs_of(&site.app.box_id));
    assert_eq!(
        names(&events(&site, &by_box).await.rest().await),
        ["output", "state", "end"]
    );
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_live_run_is_followed_to_its_end(pool: PgPool) {
    let site = Site::open(pool).await;
    let started = site.start("x", "k").await;
    let run = started.run_id();
    let mut live = events(&site, &stream_of(&site, run)).await;
    let first = live.next().await.unwrap();
    assert_eq!(
        (first.name.as_str(), &first.data["run"]["state"]),
        ("state", &json!("admitted"))
    );
    site.app
        .execute(
            "update boxrun.runs r set state = 'running', dispatch_attempted_at = t.at, dispatched_at = t.at, started_at = t.at,
                    updated_at = t.at from (select clock_timestamp() as at) t where r.id = $1",
            run,
        )
        .await;
    let second = live.next().await.unwrap();
    assert_eq!(second.data["run"]["state"], "running", "{second:?}");
    let mut seen = Vec::new();
    for line in 1..=5 {
        site.print(run, &format!("line {line}\n")).await;
        let event = live.next().await.unwrap();
        assert_eq!(event.name, "output", "{event:?}");
        assert_eq!(event.id.as_deref(), Some((line * 7).to_string().as_str()));
        seen.push(event);
    }
    site.print(run, "last words").await;
    site.complete(run).await;
    let rest = live.rest().await;
    assert_eq!(names(&rest[rest.len() - 2..]), ["state", "end"], "{rest:?}");
    seen.extend(rest);
    assert_eq!(output(&seen), "line 1\nline 2\nline 3\nline 4\nline 5\nlast words");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_stream_that_is_cut_after_any_event_goes_on_exactly_there(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    // Pieces of which several make a part, and one that is larger than a part.
    let mut whole = String::new();
    for size in [10usize, 70_000, 3, 200_000, 65_536, 1, 90_000] {
        let piece: String = "grüße ".chars().cycle().take(size).collect();
        site.print(run, &piece).await;
        whole += &piece;
    }
    site.complete(run).await;
    let path = stream_of(&site, run);
    let all = events(&site, &path).await.rest().await;
    assert_eq!(output(&all), whole);
    assert!(all.len() >= 5, "{:?}", names(&all));
    for cut in 0..all.len() {
        let last_id = all[..=cut].iter().rev().find_map(|event| event.id.clone());
        let asking = site.own(Method::GET, &path);
        let asking = match &last_id {
            Some(id) => asking.header("last-event-id", id),
            None => asking,
        };
        if all[cut].name == "end" {
            let over = asking.send().await;
            assert_eq!((over.status, over.text.as_str()), (204, ""));
            continue;
        }
        let rest = Events::of(asking).await.rest().await;
        let before = output(&all[..=cut]);
        assert_eq!(before + &output(&rest), whole, "cut after event {cut}");
        assert_eq!(names(&rest[rest.len() - 2..]), ["state", "end"]);
    }
    for wrong in ["x", "-1", "x-end", "1-end-end"] {
        let refused = site.own(Method::GET, &path).header("last-event-id", wrong).send().await;
        refused.refuses(422, "invalid_output_offset");
    }
    // The id wins over the offset in the address, which a browser repeats as it was.
    let both = site
        .own(Method::GET, &format!("{path}?offset=0"))
        .header("last-event-id", "10")
        .stream()
        .await;
    drop(both);
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn what_is_no_longer_kept_is_a_gap_with_its_size(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    site.print(run, "old news\n").await;
    let mut live = events(&site, &stream_of(&site, run)).await;
    assert_eq!(live.next().await.unwrap().data["next_offset"], 9);
    assert_eq!(live.next().await.unwrap().name, "state");
    // As a poll that skips a backlog: what was there goes, the base moves past what was skipped.
    site.app
        .execute(
            "with gone as (delete from boxrun.run_output where run_id = $1)
             update boxrun.runs set last_output_offset = 1009, output_base_offset = 1000, log_offset = 1009 where id = $1",
            run,
        )
        .await;
    site.app
        .execute(
            "insert into boxrun.run_output (run_id, start_offset, text) values ($1, 1000, 'new news' || chr(10))",
            run,
        )
        .await;
    site.complete(run).await;
    let rest = live.rest().await;
    assert_eq!(names(&rest), ["gap", "output", "state", "end"], "{rest:?}");
    assert_eq!(rest[0].data, json!({ "from": 9, "to": 1000 }));
    assert_eq!(rest[0].id.as_deref(), Some("1000"));
    assert_eq!(rest[1].data["output"], "new news\n");
    let from_start = events(&site, &stream_of(&site, run)).await.rest().await;
    assert_eq!(from_start[0].data, json!({ "from": 0, "to": 1000 }));
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_stream_of_a_process_that_stops_goes_on_at_another(pool: PgPool) {
    let mut site = Site::open(pool).await;
    let run = site.app.running("x").await;
    site.print(run, "before\n").await;
    let mut live = events(&site, &stream_of(&site, run)).await;
    let first = live.next().await.unwrap();
    site.stop_web().await;
    let rest = live.rest().await;
    assert!(!names(&rest).contains(&"end"), "{rest:?}");

    site = site.another_web().await;
    site.print(run, "after\n").await;
    site.complete(run).await;
    let asking = site
        .own(Method::GET, &stream_of(&site, run))
        .header("last-event-id", first.id.as_deref().unwrap());
    let went_on = Events::of(asking).await.rest().await;
    assert_eq!(output(&went_on), "after\n");
    assert_eq!(went_on.last().unwrap().name, "end");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn followers_that_read_nothing_hold_nobody_up_and_all_get_everything(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    let path = stream_of(&site, run);
    // They never read.
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(site.own(Method::GET, &path).stream().await);
    }
    let mut quick = Vec::new();
    for _ in 0..20 {
        quick.push(events(&site, &path).await);
    }
    let mut whole = String::new();
    for round in 0..20 {
        let piece = format!("{round} {}\n", "x".repeat(50_000));
        site.print(run, &piece).await;
        whole += &piece;
    }
    site.complete(run).await;
    let followed = futures::future::join_all(quick.into_iter().map(Events::rest)).await;
    for events in followed {
        assert_eq!(output(&events), whole);
    }
    drop(idle);
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_follower_of_a_run_that_is_erased_is_let_go(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    let mut live = events(&site, &stream_of(&site, run)).await;
    assert_eq!(live.next().await.unwrap().name, "state");
    site.app.execute("delete from boxrun.runs where id = $1", run).await;
    assert_eq!(live.next().await, None);
    site.get(&stream_of(&site, run)).await.refuses(404, "box_run_not_found");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_change_is_seen_without_its_announcement(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    let mut live = events(&site, &stream_of(&site, run)).await;
    assert_eq!(live.next().await.unwrap().name, "state");
    // Whoever listens loses its connection, and the announcement with it.
    let listening = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                      where datname = current_database() and query ilike 'listen%'";
    let cut = async || {
        sqlx::query_scalar::<_, i64>(listening)
            .fetch_one(&site.app.pool)
            .await
            .unwrap()
    };
    wait_until("its LISTEN connection is cut", cut, |count| *count >= 1).await;
    sqlx::query("alter table boxrun.runs disable trigger notify_run_state")
        .execute(&site.app.pool)
        .await
        .unwrap();
    site.complete(run).await;
    let rest = live.rest().await;
    assert_eq!(names(&rest), ["state", "end"]);
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn all_followers_of_a_process_cost_one_listen_connection(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("x").await;
    let path = stream_of(&site, run);
    let mut followers = Vec::new();
    for _ in 0..50 {
        let mut live = events(&site, &path).await;
        assert_eq!(live.next().await.unwrap().name, "state");
        followers.push(live);
    }
    let count = async || {
        let listening =
            "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'";
        let all =
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
        let listening: i64 = sqlx::query_scalar(listening).fetch_one(&site.app.pool).await.unwrap();
        let all: i64 = sqlx::query_scalar(all).fetch_one(&site.app.pool).await.unwrap();
        (listening, all)
    };
    let (listening, all) = wait_until("it listens", count, |(listening, _)| *listening >= 1).await;
    assert_eq!(listening, 1);
    assert!(
        all <= 1 + 4 + 10,
        "{all} connections: one to listen, four of the web process, those of the test"
    );
    drop(followers);
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_command_is_masked_in_events(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = site.app.running("curl https://user:hunter2hunter2@example.com/").await;
    site.complete(run).await;
    let all = events(&site, &stream_of(&site, run)).await.rest().await;
    let text = serde_json::to_string(&all.iter().map(|event| &event.data).collect::<Vec<&Value>>()).unwrap();
    assert!(!text.contains("hunter2"), "{text}");
    // A token without the right to read follows nothing.
    let made = tokens::create(&site.app.pool, &site.app.principal, &[Scope::RunsWrite], None)
        .await
        .unwrap();
    let asking = site
        .ask(Method::GET, &stream_of(&site, run))
        .header("authorization", &format!("Bearer {}", made.token));
    asking.send().await.refuses(403, "forbidden");
    site.close().await;
}
