//! The programs in `tests/clients`, which do the same in each language, as a user who logs in with the rights of
//! `boxrun_app`: directly, and through PgBouncer in transaction mode.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::process::Command;
use uuid::Uuid;

use super::pgbouncer::PgBouncer;
use super::{BOX, app, run};

const USER: &str = "boxrun_test_app";
const PASSWORD: &str = "only-in-tests";
/// Ample on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where a program connects to.
struct Server {
    host: String,
    port: u16,
    database: String,
}

impl Server {
    /// PostgreSQL itself, made ready: a user who logs in, and a table of the app's own.
    async fn direct(pool: &PgPool) -> Self {
        app(pool).await;
        let mut owner = pool.acquire().await.unwrap();
        // Users belong to the whole server: tests that run side by side share this one, and whoever comes first makes it.
        run(
            &mut owner,
            &format!(
                "do $$ begin
                     if not exists (select from pg_roles where rolname = '{USER}') then
                         create role {USER} login password '{PASSWORD}' in role boxrun_app;
                     end if;
                 exception when duplicate_object or unique_violation then null;
                 end $$;
                 create table public.deployments (note text not null, run_id uuid);
                 grant select, insert, update on public.deployments to {USER}"
            ),
        )
        .await;
        let options = pool.connect_options();
        let socket = options.get_socket().map(|path| path.display().to_string());
        Self {
            host: socket.unwrap_or_else(|| options.get_host().to_owned()),
            port: options.get_port(),
            database: options.get_database().expect("a database").to_owned(),
        }
    }

    /// The same database, by a PgBouncer.
    async fn pooled(&self) -> (Self, PgBouncer) {
        let Self { host, port, .. } = self;
        let bouncer = PgBouncer::start(&format!("host={host} port={port} user={USER} password={PASSWORD}")).await;
        let pooled = Self {
            host: "127.0.0.1".to_owned(),
            port: bouncer.port,
            database: self.database.clone(),
        };
        (pooled, bouncer)
    }

    /// Runs a program to its end.
    async fn run(&self, mut command: Command) -> Output {
        command
            .env("PGHOST", &self.host)
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", USER)
            .env("PGPASSWORD", PASSWORD)
            .env("PGDATABASE", &self.database)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let ended = tokio::time::timeout(PATIENCE, command.output()).await;
        ended.unwrap_or_else(|_| panic!("it did not end: {command:?}")).unwrap()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Psql,
    Psycopg,
    Django,
    Node,
}

impl Client {
    const ALL: [Self; 4] = [Self::Psql, Self::Psycopg, Self::Django, Self::Node];

    /// The program, told which conversation and box to use.
    async fn command(self, conversation: Uuid) -> Command {
        let mut command = match self {
            Self::Psql => {
                let mut command = Command::new("psql");
                command
                    .args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only"])
                    .args([
                        "--set",
                        &format!("conversation={conversation}"),
                        "--set",
                        &format!("box={BOX}"),
                    ])
                    .arg("--file")
                    .arg(program("psql/with_psql.sql"));
                command
            }
            Self::Psycopg => python("python/with_psycopg.py").await,
            Self::Django => python("python/with_django.py").await,
            Self::Node => node("node/with_pg.js").await,
        };
        command.env("CONVERSATION", conversation.to_string()).env("BOX", BOX);
        command
    }
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// Where `bin/_need` puts what the system has no packages of.
fn fetched() -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_boxrun")).ancestors().nth(2);
    target.expect("the target folder").join("clients")
}

/// A Python that has the libraries: ours, the one on PATH, or the system's.
async fn python(name: &str) -> Command {
    let ours = fetched().join("python/bin/python3");
    for interpreter in [ours, "python3".into(), "/usr/bin/python3".into()] {
        let check = Command::new(&interpreter)
            .arg(program("python/check.py"))
            .output()
            .await;
        if check.is_ok_and(|check| check.status.success()) {
            let mut command = Command::new(interpreter);
            command.arg(program(name)).env("PYTHONDONTWRITEBYTECODE", "1");
            return command;
        }
    }
    panic!("no Python here has psycopg and Django; `bin/_need clients` installs them");
}

/// Node, with pg.
async fn node(name: &str) -> Command {
    let node = || {
        let mut node = Command::new("node");
        node.env("NODE_PATH", fetched().join("node/node_modules"));
        node
    };
    let check = node().args(["-e", "require('pg')"]).output().await;
    let usable = check.is_ok_and(|check| check.status.success());
    assert!(usable, "there is no Node with pg here; `bin/_need clients` installs it");
    let mut command = node();
    command.arg(program(name));
    command
}

/// What each program does and says, and what is in the database then.
async fn check(client: Client, server: &Server, pool: &PgPool) {
    let conversation = Uuid::new_v4();
    let output = server.run(client.command(conversation).await).await;
    let (said, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{client:?}: {said}{complained}");
    let said: Value = serde_json::from_str(said.trim()).unwrap_or_else(|error| panic!("{client:?}: {error}: {said}"));

    let runs: Vec<(String, String, String)> =
        sqlx::query_as("select id::text, idempotency_key, state from boxrun.runs where conversation_id = $1")
            .bind(conversation)
            .fetch_all(pool)
            .await
            .unwrap();
    let [(id, key, state)] = &runs[..] else {
        panic!("{client:?}: one run is kept, not {runs:?}")
    };
    assert_eq!((key.as_str(), state.as_str()), ("deploy-1", "cancelled"), "{client:?}");
    // psql's variables hold no DETAIL; it prints it.
    let active = said["active"].as_str().unwrap_or(&complained);
    assert!(
        active.contains(&format!("Run {id} is active on box {BOX}")),
        "{client:?}: {active}"
    );
    let expected = json!({
        "run": id,
        "repeated": id,
        "refusals": [["BX001", "invalid_command"], ["BX201", "box_run_in_progress"]],
        "active": said["active"],
        "listed": [id],
        "next_offset": 0,
        "ended": "cancelled",
    });
    assert_eq!(said, expected, "{client:?}");

    let deployments: Vec<(String, Option<String>)> =
        sqlx::query_as("select note, run_id::text from public.deployments")
            .fetch_all(pool)
            .await
            .unwrap();
    assert_eq!(deployments, [("committed".to_owned(), Some(id.clone()))], "{client:?}");
    // The next client attaches the box to a conversation of its own.
    let mut owner = pool.acquire().await.unwrap();
    run(
        &mut owner,
        "delete from public.deployments; update boxrun.boxes set conversation_id = null, attached_at = null",
    )
    .await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn each_client_commits_rolls_back_and_uses_savepoints(pool: PgPool) {
    let server = Server::direct(&pool).await;
    for client in Client::ALL {
        check(client, &server, &pool).await;
    }
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn each_client_does_so_through_pgbouncer_in_transaction_mode(pool: PgPool) {
    let (server, _bouncer) = Server::direct(&pool).await.pooled().await;
    for client in Client::ALL {
        check(client, &server, &pool).await;
    }
}
