//! The command line from another machine: `BOXRUN_URL` and `BOXRUN_TOKEN`, and no database.

use std::process::{Output, Stdio};

use boxrun::ids::RunId;
use boxrun::web::tokens::Scope;
use serde_json::Value;
use sqlx::PgPool;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Command;

use super::site::Site;
use crate::support::program::{boxrun, url_of};
use crate::support::scripted_box::Answer;
use crate::support::wait::wait_until;

/// `boxrun` as somebody with the site's token runs it.
fn remote(site: &Site, arguments: &[&str]) -> Command {
    let mut command = boxrun(None, arguments);
    command
        .env("BOXRUN_URL", site.url())
        .env("BOXRUN_TOKEN", &site.token)
        .stdin(Stdio::null());
    command
}

async fn output_of(mut command: Command) -> Output {
    command.output().await.expect("boxrun runs")
}

async fn succeeds(site: &Site, arguments: &[&str]) -> String {
    let output = output_of(remote(site, arguments)).await;
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

async fn json_of(site: &Site, arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(site, arguments).await).expect("JSON")
}

/// What it says on stderr as it fails with `status`.
async fn fails(command: Command, status: i32) -> String {
    let output = output_of(command).await;
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    assert_eq!(output.stdout, b"", "{output:?}");
    String::from_utf8(output.stderr).expect("text")
}

async fn started(site: &Site) -> RunId {
    let id = succeeds(
        site,
        &["run", "--detach", "--box", site.app.box_id.as_str(), "--", "make"],
    )
    .await;
    id.trim().parse().expect("a run id and nothing else")
}

/// The run runs, as a worker would have it.
async fn goes_on(site: &Site, run: RunId) {
    let dispatched = "update boxrun.runs set state = 'running', pid = 4242, dispatch_attempted_at = t.at,
             dispatched_at = t.at, started_at = t.at, updated_at = t.at from (select clock_timestamp() as at) t where id = $1";
    site.app.execute(dispatched, run).await;
}

async fn run_with_key(site: &Site, key: &str) -> Option<RunId> {
    let found = sqlx::query_scalar("select id from boxrun.runs where idempotency_key = $1").bind(key);
    found
        .fetch_optional(&site.app.pool)
        .await
        .expect("an answer")
        .map(RunId)
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_is_started_shown_listed_read_and_cancelled_by_http_alone(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = started(&site).await;
    let id = run.to_string();
    let shown = json_of(&site, &["show", &id, "--json"]).await;
    assert_eq!(shown["run"]["command"], "make");
    let listed = json_of(&site, &["ls", "--json"]).await;
    assert_eq!(listed[0]["id"], id.as_str(), "{listed}");
    goes_on(&site, run).await;
    site.print(run, "compiling\n").await;
    assert_eq!(succeeds(&site, &["logs", &id]).await, "compiling\n");
    assert_eq!(succeeds(&site, &["logs", "--offset", "4", &id]).await, "iling\n");
    assert!(succeeds(&site, &["ls"]).await.contains("running"));
    succeeds(&site, &["cancel", &id]).await;
    let asked = json_of(&site, &["show", &id, "--json"]).await;
    assert!(asked["run"]["cancellation_requested_at"].is_string(), "{asked}");

    let said = fails(remote(&site, &["ls", "--all"]), 125).await;
    assert!(said.contains("your own runs"), "{said}");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn following_prints_what_came_as_it_comes_and_ends_with_the_commands_exit_status(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = started(&site).await;
    goes_on(&site, run).await;
    let mut follower = remote(&site, &["logs", "-f", &run.to_string()]);
    let mut follower = follower.stdout(Stdio::piped()).spawn().expect("boxrun runs");
    let mut stdout = BufReader::new(follower.stdout.take().expect("stdout is piped"));
    let mut line = String::new();
    site.print(run, "one\n").await;
    stdout.read_line(&mut line).await.expect("text");
    assert_eq!(line, "one\n");
    // Only now is there more, so it did not wait for the end.
    site.print(run, "zwei: ü\n").await;
    site.complete(run).await;
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).await.expect("text");
    assert_eq!(rest, "zwei: ü\n");
    assert_eq!(follower.wait().await.expect("its status").code(), Some(0));

    let whole = output_of(remote(&site, &["logs", "-f", &run.to_string()])).await;
    assert_eq!(
        (whole.status.code(), whole.stdout.as_slice()),
        (Some(0), "one\nzwei: ü\n".as_bytes())
    );
    let json = [
        "run",
        "--json",
        "--box",
        site.app.box_id.as_str(),
        "--key",
        "again",
        "--",
        "true",
    ];
    let mut waiting = remote(&site, &json)
        .stdout(Stdio::piped())
        .spawn()
        .expect("boxrun runs");
    let second = wait_until(
        "the second run is admitted",
        async || run_with_key(&site, "again").await,
        Option::is_some,
    );
    let second = second.await.expect("waited for it");
    goes_on(&site, second).await;
    site.print(second, "not shown\n").await;
    site.complete(second).await;
    let mut printed = String::new();
    let mut stdout = waiting.stdout.take().expect("stdout is piped");
    stdout.read_to_string(&mut printed).await.expect("text");
    let ended: Value = serde_json::from_str(&printed).expect("the run as it ended, and nothing else");
    assert_eq!(
        (&ended["id"], &ended["state"]),
        (&second.to_string().into(), &"completed".into())
    );
    assert_eq!(waiting.wait().await.expect("its status").code(), Some(0));
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn following_goes_on_where_it_was_when_the_web_process_is_started_anew(pool: PgPool) {
    let mut site = Site::open(pool).await;
    let run = started(&site).await;
    goes_on(&site, run).await;
    let mut follower = remote(&site, &["logs", "-f", &run.to_string()]);
    let mut follower = follower.stdout(Stdio::piped()).spawn().expect("boxrun runs");
    let mut stdout = BufReader::new(follower.stdout.take().expect("stdout is piped"));
    let mut line = String::new();
    site.print(run, "before\n").await;
    stdout.read_line(&mut line).await.expect("text");
    site.stop_web().await;
    site.print(run, "meanwhile\n").await;
    let site = site.web_at_the_same_address().await;
    site.print(run, "after\n").await;
    site.complete(run).await;
    stdout.read_to_string(&mut line).await.expect("text");
    assert_eq!(line, "before\nmeanwhile\nafter\n");
    assert_eq!(follower.wait().await.expect("its status").code(), Some(0));
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn boxes_are_attached_listed_and_detached_by_http(pool: PgPool) {
    let site = Site::open(pool).await;
    let other = "bx_9bhkse3n";
    site.app.server.answer_gets(Answer::box_state(other, "ready"));
    let conversation = site.app.conversation.to_string();
    succeeds(&site, &["box", "attach", other, "--conversation", &conversation]).await;
    let boxes = json_of(&site, &["box", "ls", "--json"]).await;
    let names: Vec<&str> = boxes
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|it| it["id"].as_str())
        .collect();
    assert_eq!(names, [site.app.box_id.as_str(), other], "{boxes}");
    succeeds(&site, &["box", "detach", other]).await;
    let said = fails(remote(&site, &["box", "detach", other]), 125).await;
    assert!(said.contains("box_not_found"), "{said}");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn what_is_wrong_is_said_with_its_code_and_what_to_do(pool: PgPool) {
    let site = Site::open(pool).await;
    let run = started(&site).await;
    let said = fails(
        remote(&site, &["run", "--box", site.app.box_id.as_str(), "--", "x"]),
        125,
    )
    .await;
    assert!(said.contains("box_run_in_progress"), "{said}");
    assert!(said.contains(&run.to_string()), "{said}");

    let unknown = "0198c5a2-0000-7000-8000-000000000000";
    let said = fails(remote(&site, &["show", unknown]), 125).await;
    assert!(said.contains("box_run_not_found"), "{said}");

    let mut nobody = remote(&site, &["ls"]);
    nobody.env("BOXRUN_TOKEN", "boxrun_nonsense");
    let said = fails(nobody, 125).await;
    assert!(said.contains("unauthorized") && !said.contains("nonsense"), "{said}");

    let mut without = remote(&site, &["ls"]);
    without.env_remove("BOXRUN_TOKEN");
    let said = fails(without, 125).await;
    assert!(said.contains("BOXRUN_TOKEN is not"), "{said}");

    let mut nowhere = remote(&site, &["ls"]);
    nowhere.env("BOXRUN_URL", "http://127.0.0.1:1");
    let said = fails(nowhere, 125).await;
    assert!(said.contains("http://127.0.0.1:1"), "{said}");

    let mut no_address = remote(&site, &["ls"]);
    no_address.env("BOXRUN_URL", "ftp://elsewhere");
    let said = fails(no_address, 125).await;
    assert!(said.contains("BOXRUN_URL is an http or https address"), "{said}");
    site.close().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_token_is_shown_once_and_ends_when_it_is_revoked(pool: PgPool) {
    let site = Site::open(pool).await;
    let url = url_of(&site.app.pool);
    let owner = async |arguments: &[&str]| output_of(boxrun(Some(&url), arguments)).await;
    let made = owner(&[
        "token",
        "create",
        "--principal",
        "user:u1",
        "--expires",
        "30d",
        "--json",
    ])
    .await;
    assert!(made.status.success(), "{made:?}");
    let made: Value = serde_json::from_slice(&made.stdout).expect("JSON");
    let keys: Vec<&String> = made.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["expires_at", "id", "principal", "scopes", "token"]);
    assert_eq!(made["principal"], "user:u1");
    let default: Vec<String> = Scope::DEFAULT.iter().map(ToString::to_string).collect();
    assert_eq!(made["scopes"], serde_json::json!(default));
    let text = made["token"].as_str().expect("text");

    let as_made = |arguments: &[&str]| {
        let mut command = remote(&site, arguments);
        command.env("BOXRUN_TOKEN", text);
        command
    };
    assert!(output_of(as_made(&["ls", "--json"])).await.status.success());
    let said = fails(
        as_made(&[
            "box",
            "attach",
            "bx_9bhkse3n",
            "--conversation",
            &site.app.conversation.to_string(),
        ]),
        125,
    );
    assert!(said.await.contains("boxes:write"), "it names the scope that is missing");

    let listed = owner(&["token", "ls", "--json"]).await;
    let listed = String::from_utf8(listed.stdout).expect("text");
    let id = made["id"].as_str().expect("an id");
    assert!(listed.contains(id) && !listed.contains(text), "{listed}");
    assert!(owner(&["token", "revoke", id]).await.status.success());
    assert!(fails(as_made(&["ls"]), 125).await.contains("unauthorized"));

    let plain = owner(&["token", "create", "--principal", "service:ci"]).await;
    let printed = String::from_utf8(plain.stdout).expect("text");
    assert_eq!(printed.lines().count(), 1, "only the token: {printed}");
    for wrong in [
        &["token", "create", "--principal", "nobody"][..],
        &["token", "create", "--principal", "user:u1", "--scope", "everything"],
        &["token", "revoke", "none"],
    ] {
        assert_eq!(owner(wrong).await.status.code(), Some(2), "{wrong:?}");
    }
    let unknown = owner(&["token", "revoke", "0198c5a2-0000-7000-8000-000000000000"]).await;
    assert_eq!(unknown.status.code(), Some(125));
    site.close().await;
}
