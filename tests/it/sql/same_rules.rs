//! One behaviour for all ways in: the same inputs through Rust and SQL have the same outcome and look the same.

use std::collections::BTreeMap;
use std::time::Duration;

use boxrun::ids::{ConversationId, RunId};
use boxrun::runs::masking::Masker;
use boxrun::runs::{self, NewRun, Principal, RunView, StartRunError, read};
use chrono::DateTime;
use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool};

use super::{BOX, CONVERSATION, ELSEWHERE, app_with_box, row, run, run_id, start, value};

fn conversation() -> ConversationId {
    CONVERSATION.parse().unwrap()
}

fn new_run() -> NewRun {
    let mut new = NewRun::new(conversation(), BOX.parse().unwrap(), Principal::user("u1"), "make", "k");
    new.limit = Duration::from_secs(1800);
    new
}

/// Everything that `check` in admission.rs looks at, at and around each limit. NUL is left out: PostgreSQL takes none.
fn inputs() -> Vec<(String, NewRun)> {
    let mut inputs = vec![("as it should be".to_owned(), new_run())];
    let mut add = |name: String, change: &dyn Fn(&mut NewRun)| {
        let mut new = new_run();
        change(&mut new);
        inputs.push((name, new));
    };
    let commands = [
        String::new(),
        " \t\r\n\u{b}\u{c}".to_owned(),
        "\u{85}\u{a0}\u{1680}\u{2000}\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}".to_owned(),
        "\u{200b}".to_owned(),
        "\u{2003}x".to_owned(),
        "x".repeat(8000),
        "x".repeat(8001),
        "é".repeat(4000),
        "é".repeat(4001),
        "it's 100% \\ \"$quoted\" 😀".to_owned(),
    ];
    for command in commands {
        add(format!("command {command:.20?}"), &|new| {
            new.command.clone_from(&command);
        });
    }
    for key in [
        "",
        " ",
        &"k".repeat(256),
        &"k".repeat(257),
        &"é".repeat(128),
        &"é".repeat(129),
    ] {
        add(format!("key {key:.20?}"), &|new| {
            key.clone_into(&mut new.idempotency_key);
        });
    }
    for (kind, id) in [
        ("", "u1"),
        (&*"t".repeat(64), "u1"),
        (&*"t".repeat(65), "u1"),
        ("user", ""),
        ("user", &*"é".repeat(128)),
        ("user", &*"u".repeat(257)),
    ] {
        add(format!("principal {kind:.20?} {id:.20?}"), &|new| {
            new.principal = Principal {
                kind: kind.to_owned(),
                id: id.to_owned(),
            };
        });
    }
    for cwd in ["", "src", "/a b", "a\nb", "a\n", &"d".repeat(4096), &"d".repeat(4097)] {
        add(format!("cwd {cwd:.20?}"), &|new| new.cwd = Some(cwd.to_owned()));
    }
    let max = 32 * 1024;
    for (name, value) in [
        ("A", ""),
        ("_a9", "x\ny"),
        ("", "x"),
        ("9A", "x"),
        ("A-B", "x"),
        ("A\n", "x"),
        ("É", "x"),
        ("BOXRUN_RUN_ID", "x"),
        ("BOXRUN_", "x"),
        ("BOXRUN", "x"),
        ("boxrun_x", "x"),
        ("A", &*"x".repeat(max - 1)),
        ("A", &*"x".repeat(max)),
        ("A", &*"é".repeat(max / 2)),
    ] {
        add(format!("env {name:?} {value:.20?} {}", value.len()), &|new| {
            new.env = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        });
    }
    for seconds in [0, 1, 1800, 1801, 100_000] {
        add(format!("max_duration {seconds}"), &|new| {
            new.max_duration = Some(Duration::from_secs(seconds));
        });
    }
    inputs
}

/// By Rust: the stable code, or what is shown.
async fn by_rust(conn: &mut PgConnection, new: NewRun) -> Result<Value, String> {
    match runs::start_run(conn, new).await {
        Ok(run) => Ok(comparable(
            serde_json::to_value(RunView::of(&run, &Masker::default())).unwrap(),
        )),
        Err(StartRunError::Database(error)) => panic!("{error}"),
        Err(refused) => Err(refused.code().expect("a code").to_owned()),
    }
}

/// By SQL: the same.
async fn by_sql(conn: &mut PgConnection, new: &NewRun) -> Result<Value, String> {
    let seconds = new.max_duration.map(|asked| i32::try_from(asked.as_secs()).unwrap());
    let started = sqlx::query_scalar(
        "select to_jsonb(r) from boxrun.start_run(conversation_id => $1, box_id => $2, principal => $3, command => $4,
             idempotency_key => $5, max_duration_seconds => $6, cwd => $7, env => $8) r",
    )
    .bind(new.conversation_id.0)
    .bind(new.box_id.as_str())
    .bind(json!(new.principal))
    .bind(&new.command)
    .bind(&new.idempotency_key)
    .bind(seconds)
    .bind(&new.cwd)
    .bind(json!(new.env))
    .fetch_one(conn)
    .await;
    match started {
        Ok(run) => Ok(comparable(run)),
        Err(sqlx::Error::Database(error)) if error.code().is_some_and(|code| code.starts_with("BX")) => {
            Err(error.message().to_owned())
        }
        Err(error) => panic!("{error}"),
    }
}

/// Without what is another one's in each run: the id, and times, of which the duration is kept.
fn comparable(mut run: Value) -> Value {
    let at = |name: &str| DateTime::parse_from_rfc3339(run[name].as_str().expect("a time")).unwrap();
    let seconds = (at("deadline_at") - at("admitted_at")).num_seconds();
    let fields = run.as_object_mut().expect("an object");
    for different in ["id", "admitted_at", "deadline_at", "next_poll_at"] {
        fields.remove(different).expect("the field is shown");
    }
    fields.insert("seconds".to_owned(), json!(seconds));
    run
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_same_inputs_are_admitted_or_refused_alike(pool: PgPool) {
    let mut app = app_with_box(&pool).await;
    let mut owner = pool.acquire().await.unwrap();
    for (name, new) in inputs() {
        run(&mut owner, "begin").await;
        let rust = by_rust(&mut owner, new.clone()).await;
        run(&mut owner, "rollback").await;
        run(&mut app, "begin").await;
        let sql = by_sql(&mut app, &new).await;
        run(&mut app, "rollback").await;
        assert_eq!(sql, rust, "{name}");
    }
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn the_same_secrets_are_masked(pool: PgPool) {
    let mut owner = pool.acquire().await.unwrap();
    let token = format!("ghp_{}", "a1".repeat(18));
    for text in [
        "clone https://bob:pw@git.example/x.git now",
        "clone HTTPS://:pw@git.example/x.git 'and' svn+ssh://u:p@h",
        "see https://desktop.ascii.dev/s/abc and https://viewer.ascii.dev.",
        "GET https://api.example/v1?a=1&api-key=abc&b=2 ok",
        "GET \"https://api.example/v1?TOKEN=abc\" https://x/?authentication_token=1",
        "curl -H 'Authorization: Bearer abc' \\\n  -H \"authorization :x\"\nnext",
        &format!("token {token}."),
        &token,
        &format!("not1{token}"),
        "glpat-aaaaaaaaaaaaaaaaaaaa sk-aaaaaaaaaaaaaaaaaaaaaaaa AKIAABCDEFGHIJKLMNOP akiaabcdefghijklmnop",
        "https://openagents.com/clone https://example.org/?page=2 a:b@c mailto:x@y",
        "",
    ] {
        let masked: String = sqlx::query_scalar("select boxrun.mask($1)")
            .bind(text)
            .fetch_one(&mut *owner)
            .await
            .unwrap();
        assert_eq!(masked, Masker::default().mask(text), "{text}");
    }
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_run_is_shown_alike_at_every_step_of_its_life(pool: PgPool) {
    let mut app = app_with_box(&pool).await;
    let command = "git clone https://bob:pw@git.example/x";
    let more = r#", cwd => 'src', env => '{"H": "Authorization: Basic abc", "CI": "1"}'"#;
    let id = run_id(&mut app, &start(command, "k", more)).await;
    let mut owner = pool.acquire().await.unwrap();
    for step in [
        "select",
        "update boxrun.jobs set lease = gen_random_uuid(), lease_until = clock_timestamp(), leased_by = 'worker/1',
             attempts = 3, last_error = 'GET https://u:p@h', last_seen_at = clock_timestamp()",
        "update boxrun.runs set dispatch_attempted_at = clock_timestamp(), dispatched_at = clock_timestamp(),
             state = 'dispatched', pid = 4242",
        "update boxrun.runs set state = 'running', started_at = clock_timestamp(), last_output_offset = 9,
             output_base_offset = 4, cancellation_requested_at = clock_timestamp()",
        "update boxrun.runs set exit_status = 17, exit_learnt_at = clock_timestamp()",
        "update boxrun.runs set state = 'failed', finished_at = clock_timestamp()",
        "update boxrun.jobs set kind = 'cleanup', lease = null, lease_until = null, leased_by = null",
        "delete from boxrun.jobs",
    ] {
        run(&mut owner, step).await;
        let found = read::find(&mut owner, id.parse::<RunId>().unwrap())
            .await
            .unwrap()
            .unwrap();
        let rust = serde_json::to_value(RunView::of(&found, &Masker::default())).unwrap();
        let sql = row(&mut app, &format!("boxrun.get_run('{CONVERSATION}', '{id}')")).await;
        assert_eq!(with_times(sql), with_times(rust), "after {step}");
    }
}

/// Each time in one spelling.
fn with_times(run: Value) -> BTreeMap<String, Value> {
    let Value::Object(fields) = run else {
        panic!("no object: {run}")
    };
    let one_spelling = |(name, value): (String, Value)| {
        let value = match value.as_str() {
            Some(text) if name.ends_with("_at") => {
                json!(DateTime::parse_from_rfc3339(text).unwrap().timestamp_micros())
            }
            _ => value,
        };
        (name, value)
    };
    fields.into_iter().map(one_spelling).collect()
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn output_is_read_alike_from_every_offset(pool: PgPool) {
    let mut app = app_with_box(&pool).await;
    let id = run_id(&mut app, &start("make", "k", "")).await;
    let mut owner = pool.acquire().await.unwrap();
    assert_eq!(read_both(&mut app, &mut owner, &id, 0).await, "", "nothing yet");
    // The first piece begins before what is kept: its first bytes were cut away.
    let pieces = ["gone: é😀a", "ü", "€\nlast"];
    let mut offset = 100;
    for piece in pieces {
        sqlx::query("insert into boxrun.run_output (run_id, start_offset, text) values ($1, $2, $3)")
            .bind(id.parse::<RunId>().unwrap().0)
            .bind(offset)
            .bind(piece)
            .execute(&mut *owner)
            .await
            .unwrap();
        offset += i64::try_from(piece.len()).unwrap();
    }
    sqlx::query("update boxrun.runs set last_output_offset = $1, output_base_offset = 106")
        .bind(offset)
        .execute(&mut *owner)
        .await
        .unwrap();
    assert_eq!(read_both(&mut app, &mut owner, &id, 0).await, "é😀aü€\nlast");
    for from in (98..=offset + 2).chain([i64::MAX]) {
        read_both(&mut app, &mut owner, &id, from).await;
    }
    let foreign = format!("select * from boxrun.read_output('{ELSEWHERE}', '{id}', 0)");
    assert_eq!(super::refusal(&mut app, &foreign).await.message, "box_run_not_found");
    let following = format!("select next_offset from boxrun.read_output('{CONVERSATION}', '{id}')");
    assert_eq!(value::<i64>(&mut app, &following).await, offset);
}

async fn read_both(app: &mut PgConnection, owner: &mut PgConnection, id: &str, from: i64) -> String {
    let call =
        format!("boxrun.read_output(conversation_id => '{CONVERSATION}', run_id => '{id}', from_offset => {from})");
    let sql = row(app, &call).await;
    let rust = runs::read_output(owner, conversation(), id.parse().unwrap(), from)
        .await
        .unwrap();
    assert_eq!(sql, serde_json::to_value(&rust).unwrap(), "from {from}");
    rust.output
}
