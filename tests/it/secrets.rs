//! Secrets of a run: with the real simulator, real scripts, a real worker process and a PostgreSQL whose files are searched.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use boxrun::ids::{BoxId, RunId};
use boxrun::postgres::LocalPostgres;
use boxrun::runs::conversations::{attach_box, default_conversation};
use boxrun::runs::output::read_output;
use boxrun::runs::read::find;
use boxrun::runs::{GitCredential, NewRun, Principal, Run, RunSecrets, Secret, SecretKeys, StartRunError, start_run};
use boxrun::schema;
use boxrun::sim::{SimOptions, Simulator};
use secrecy::SecretString;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::support::wait::wait_until;
use git_server::GitServer;

mod git_server;

const BOX: &str = "bx_8bhkse3n";
const API_KEY: &str = "sim-key-Qz81WvTn44";
const TOKEN: &str = "tok_Zx93kfPLmw22";
const PASSWORD: &str = "pa:ss@w0rd/Hq7TzR";

/// A database, a simulator and a worker process of one test.
struct Setting {
    postgres: LocalPostgres,
    pool: PgPool,
    sim: Simulator,
    worker: Option<Child>,
    folder: TempDir,
    box_id: BoxId,
}

impl Setting {
    async fn start(worker_keys: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let postgres = LocalPostgres::temporary().await.unwrap();
        let pool = PgPoolOptions::new()
            .max_connections(3)
            .connect(&postgres.url())
            .await
            .unwrap();
        schema::migrate(&pool).await.unwrap();
        let sim = Simulator::start(SimOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            root: folder.path().join("boxes"),
            key: SecretString::from(API_KEY),
            boxes: Vec::new(),
            allow_remote: false,
        });
        let sim = sim.await.unwrap();
        let mut setting = Self {
            postgres,
            pool,
            sim,
            worker: None,
            folder,
            box_id: BOX.parse().unwrap(),
        };
        let mut conn = setting.pool.acquire().await.unwrap();
        let user = Principal::user("u1");
        attach_box(&mut conn, default_conversation(&user), &setting.box_id, &user)
            .await
            .unwrap();
        drop(conn);
        setting.worker = Some(setting.spawn_worker(worker_keys));
        setting
    }

    fn spawn_worker(&self, keys: Option<&str>) -> Child {
        let log = std::fs::File::create(self.worker_log()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_boxrun"));
        command
            .arg("worker")
            .env_remove("BOXRUN_DATABASE_URL")
            .env_remove("BOXRUN_SECRET_KEYS")
            .env("DATABASE_URL", self.postgres.url())
            .env("BOX_API_URL", self.sim.url().as_str())
            .env("BOX_API_KEY", API_KEY)
            .env("BOXRUN_POLL_INTERVAL_MS", "50")
            .env("RUST_LOG", "trace");
        if let Some(keys) = keys {
            command.env("BOXRUN_SECRET_KEYS", keys);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    fn worker_log(&self) -> PathBuf {
        self.folder.path().join("worker.log")
    }

    async fn admit(&self, command: &str, secrets: RunSecrets, keys: Option<SecretKeys>) -> Result<Run, StartRunError> {
        let user = Principal::user("u1");
        let conversation = default_conversation(&user);
        let mut new = NewRun::new(
            conversation,
            self.box_id.clone(),
            user,
            command,
            uuid::Uuid::new_v4().to_string(),
        );
        new.box_checked = true;
        new.secrets = secrets;
        new.secret_keys = keys;
        let mut tx = self.pool.begin().await.unwrap();
        let admitted = start_run(&mut tx, new).await;
        tx.commit().await.unwrap();
        admitted
    }

    /// The run when it has ended, and its output.
    async fn ended(&self, id: RunId) -> (Run, String) {
        let look = async || {
            find(&mut self.pool.acquire().await.unwrap(), id)
                .await
                .unwrap()
                .unwrap()
        };
        let run = wait_until("the run has ended", look, |run| run.state.is_terminal()).await;
        let mut conn = self.pool.acquire().await.unwrap();
        let read = read_output(&mut conn, run.conversation_id, id, 0).await.unwrap();
        (run, read.output)
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("boxes").join(BOX).join("home")
    }

    fn run_directory(&self, run: &Run) -> PathBuf {
        PathBuf::from(run.run_directory.replace("$HOME", self.home().to_str().unwrap()))
    }

    /// Stops everything and hands out what was written: the database's files and the worker's log.
    async fn stop(mut self) -> Vec<(PathBuf, Vec<u8>)> {
        if let Some(mut worker) = self.worker.take() {
            worker.kill().await.unwrap();
        }
        self.pool.close().await;
        let folder = self.postgres.folder().to_owned();
        let mut written = vec![(self.worker_log(), std::fs::read(self.worker_log()).unwrap())];
        // A checkpoint has everything in the tables' files, and the log of it is still there.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect(&self.postgres.url())
            .await
            .unwrap();
        sqlx::query("checkpoint").execute(&pool).await.unwrap();
        pool.close().await;
        files(&folder.join("data"), &mut written);
        self.sim.stop().await;
        self.postgres.stop().await.unwrap();
        written
    }
}

fn files(folder: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if let Ok(bytes) = std::fs::read(&path) {
            found.push((path, bytes));
        }
    }
}

fn keys() -> (String, SecretKeys) {
    let text = STANDARD.encode([7u8; 32]);
    let keys = SecretKeys::parse(&text).unwrap();
    (text, keys)
}

fn token() -> RunSecrets {
    RunSecrets {
        env: BTreeMap::from([("TOKEN".to_owned(), Secret::new(TOKEN))]),
        git_credential: None,
    }
}

#[tokio::test]
async fn a_command_has_its_secrets_and_nobody_else_does() {
    let (text, keys) = keys();
    let setting = Setting::start(Some(&text)).await;
    let command = format!(
        "printf 'x%sx\\n' \"$TOKEN\"; echo \"key is {}\"; [ \"${{#TOKEN}}\" = {} ] && echo as long as it should be; \
         tr '\\0' '\\n' </proc/self/cmdline",
        API_KEY,
        TOKEN.len()
    );
    // The provider's key stands in the command here, as a user's mistake; it is not searched for in the database.
    let run = setting.admit(&command, token(), Some(keys)).await.unwrap();
    let (run, output) = setting.ended(run.id).await;
    assert_eq!(run.exit_status, Some(0), "{output}");
    assert!(
        output.starts_with("x[REDACTED]x\nkey is [REDACTED]\nas long as it should be\n"),
        "{output}"
    );
    let kept: i64 = sqlx::query_scalar("select count(*) from boxrun.run_secrets")
        .fetch_one(&setting.pool)
        .await
        .unwrap();
    assert_eq!(kept, 0, "secrets of a run that has ended are erased");
    let written = setting.stop().await;
    assert!(written.len() > 100, "the database's files were searched");
    assert_nowhere(&written, TOKEN);
}

/// No piece of 6 bytes of `secret`, plain or in base64, is in what was written.
fn assert_nowhere(written: &[(PathBuf, Vec<u8>)], secret: &str) {
    let pieces = secret.as_bytes().windows(6);
    let searched: Vec<Vec<u8>> = pieces
        .map(<[u8]>::to_vec)
        .chain((0..3).map(|cut| {
            // The middle of each of the three ways in which base64 can meet it.
            let encoded = STANDARD.encode(&secret.as_bytes()[cut..]);
            encoded.as_bytes()[..12].to_vec()
        }))
        .collect();
    let patterns: Vec<String> = searched
        .iter()
        .map(|piece| {
            piece
                .iter()
                .fold(String::from("(?-u)"), |all, byte| all + &format!("\\x{byte:02x}"))
        })
        .collect();
    let patterns = regex::bytes::RegexSet::new(patterns).unwrap();
    for (path, bytes) in written {
        let found: Vec<_> = patterns
            .matches(bytes)
            .into_iter()
            .map(|index| String::from_utf8_lossy(&searched[index]))
            .collect();
        assert!(found.is_empty(), "{found:?} in {}", path.display());
    }
}

#[tokio::test]
async fn git_clones_with_its_password_and_leaves_nothing_behind() {
    let (text, keys) = keys();
    let setting = Setting::start(Some(&text)).await;
    let server = GitServer::start("bob", PASSWORD).await;
    let home = setting.home();
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(home.join(".gitconfig"), "[user]\n\tname = The Box's Own\n").unwrap();
    let secrets = RunSecrets {
        env: BTreeMap::new(),
        git_credential: Some(GitCredential {
            host: server.host(),
            username: "bob".to_owned(),
            password: Secret::new(PASSWORD),
        }),
    };
    let command = format!(
        "git clone -q http://{}/project.git && cat project/README && git config user.name && cat \"${{GIT_CONFIG_GLOBAL%/*}}/forge-credential\"",
        server.host()
    );
    let run = setting.admit(&command, secrets, Some(keys)).await.unwrap();
    let (run, output) = setting.ended(run.id).await;
    assert_eq!(
        output, "hello from the repository\nThe Box's Own\n[REDACTED_URL]\n",
        "{run:?}"
    );
    assert!(
        server.refused_without_password() > 0,
        "the server asks for the password"
    );
    let left: Vec<_> = std::fs::read_dir(setting.run_directory(&run))
        .unwrap()
        .flatten()
        .map(|file| file.file_name())
        .collect();
    assert!(
        !left
            .iter()
            .any(|name| name == "forge-credential" || name == "gitconfig"),
        "{left:?}"
    );
    let mut on_the_box = Vec::new();
    files(&home, &mut on_the_box);
    on_the_box.retain(|(path, _)| !path.ends_with("output.log"));
    assert_nowhere(&on_the_box, PASSWORD);
    let written = setting.stop().await;
    assert_nowhere(&written, PASSWORD);
    server.stop().await;
}

#[tokio::test]
async fn a_cancelled_run_leaves_no_credential_on_its_box() {
    let (text, keys) = keys();
    let setting = Setting::start(Some(&text)).await;
    let secrets = RunSecrets {
        env: BTreeMap::new(),
        git_credential: Some(GitCredential {
            host: "git.example".to_owned(),
            username: "bob".to_owned(),
            password: Secret::new(PASSWORD),
        }),
    };
    let run = setting
        .admit("echo started; sleep 600", secrets, Some(keys))
        .await
        .unwrap();
    let directory = setting.run_directory(&run);
    let look = async || {
        directory.join("forge-credential").exists()
            && directory.join("output.log").metadata().is_ok_and(|log| log.len() > 0)
    };
    wait_until("the command has its credential", look, |there| *there).await;
    let mut tx = setting.pool.begin().await.unwrap();
    boxrun::runs::cancel(&mut tx, run.conversation_id, run.id)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let (run, _) = setting.ended(run.id).await;
    assert_eq!(run.state.as_str(), "cancelled");
    assert!(!directory.join("forge-credential").exists() && !directory.join("gitconfig").exists());
    setting.stop().await;
}

#[tokio::test]
async fn a_run_whose_secrets_can_t_be_opened_is_not_started_without_them() {
    let (_, keys) = keys();
    let setting = Setting::start(None).await;
    let run = setting.admit("echo $TOKEN", token(), Some(keys)).await.unwrap();
    let (run, output) = setting.ended(run.id).await;
    assert_eq!(
        (run.state.as_str(), run.failure_reason.as_deref()),
        ("failed", Some("secret_unreadable"))
    );
    assert_eq!((output.as_str(), run.dispatch_attempted_at), ("", None));
    setting.stop().await;
}

#[tokio::test]
async fn secrets_are_refused_where_nothing_can_seal_them() {
    let setting = Setting::start(None).await;
    let refused = setting.admit("true", token(), None).await.unwrap_err();
    assert_eq!(refused.code(), Some("secrets_not_configured"));
    let in_progress: i64 = sqlx::query_scalar("select count(*) from boxrun.runs")
        .fetch_one(&setting.pool)
        .await
        .unwrap();
    assert_eq!(in_progress, 0);
    setting.stop().await;
}

#[tokio::test]
async fn the_secrets_of_a_run_that_waits_are_sealed() {
    let (text, keys) = keys();
    let mut setting = Setting::start(Some(&text)).await;
    let mut worker = setting.worker.take().unwrap();
    worker.kill().await.unwrap();
    setting.admit("sleep 1", token(), Some(keys)).await.unwrap();
    let kept: i64 = sqlx::query_scalar("select count(*) from boxrun.run_secrets")
        .fetch_one(&setting.pool)
        .await
        .unwrap();
    assert_eq!(kept, 1);
    let written = setting.stop().await;
    assert_nowhere(&written, TOKEN);
}
