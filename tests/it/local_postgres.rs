//! A local PostgreSQL starts for whoever asks, keeps what it is told to keep, and leaves nothing else behind.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use boxrun::postgres::{LocalPostgres, LocalPostgresError, LocalPostgresSettings};
use sqlx::{Connection as _, PgConnection, query, query_scalar};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::support::program::copy_of_boxrun;
use crate::support::wait::wait_until;

const BOXRUN: &str = env!("CARGO_BIN_EXE_boxrun");
/// The user and group `nobody` on most systems; for these tests any number without rights does.
const NOBODY: u32 = 65_534;

#[tokio::test]
async fn a_temporary_server_answers_and_takes_its_folder_with_it() {
    let postgres = LocalPostgres::temporary().await.unwrap();
    let folder = postgres.folder().to_path_buf();
    let mut connection = PgConnection::connect(&postgres.url()).await.unwrap();
    let limit: String = query_scalar("show max_connections")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(limit, "300");
    let pid = server_pid(&mut connection).await;

    // A session that is still open does not hold up the shutdown.
    postgres.stop().await.unwrap();
    assert!(!alive(pid));
    assert!(!folder.exists(), "{} is left", folder.display());
}

#[tokio::test]
async fn a_wrong_password_is_refused() {
    let postgres = LocalPostgres::temporary().await.unwrap();
    let url = postgres.url();
    let password = url.split([':', '@']).nth(2).unwrap().to_owned();
    let refused = PgConnection::connect(&url.replace(&password, "guessed"))
        .await
        .unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().unwrap(), "28P01");
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn data_and_password_stay_for_the_next_start_in_the_same_folder() {
    let parent = reachable_folder();
    let path = parent.path().join("database");

    let first = LocalPostgres::in_folder(&path).await.unwrap();
    write_note(&first.url()).await;
    let password = first.url().split([':', '@']).nth(2).unwrap().to_owned();
    first.stop().await.unwrap();

    let second = LocalPostgres::in_folder(&path).await.unwrap();
    assert!(second.url().contains(&password));
    assert_eq!(read_note(&second.url()).await, "kept");
    second.stop().await.unwrap();
}

#[tokio::test]
async fn a_restart_keeps_the_address_and_the_data() {
    let postgres = LocalPostgres::temporary().await.unwrap();
    let url = postgres.url();
    write_note(&url).await;

    let postgres = postgres.restart().await.unwrap();
    assert_eq!(postgres.url(), url);
    assert_eq!(read_note(&url).await, "kept");
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn a_killed_server_starts_again_with_what_was_committed() {
    let parent = reachable_folder();
    let mut postgres = LocalPostgres::in_folder(parent.path().join("database")).await.unwrap();
    let url = postgres.url();
    write_note(&url).await;

    postgres.kill9().await;
    PgConnection::connect(&url).await.unwrap_err();
    let postgres = postgres.restart().await.unwrap();
    assert_eq!(read_note(&url).await, "kept");
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn a_folder_that_a_living_process_holds_is_refused() {
    let parent = reachable_folder();
    let path = parent.path().join("database");
    let postgres = LocalPostgres::in_folder(&path).await.unwrap();
    let refused = LocalPostgres::in_folder(&path).await.unwrap_err();
    assert!(matches!(refused, LocalPostgresError::InUse { .. }), "{refused}");
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let settings = LocalPostgresSettings {
        port: Some(port),
        ..Default::default()
    };
    let refused = LocalPostgres::temporary_with(settings).await.unwrap_err();
    assert!(
        matches!(refused, LocalPostgresError::PortTaken { port: named } if named == port),
        "{refused}"
    );
}

#[tokio::test]
async fn the_command_has_the_database_and_its_exit_status_is_ours() {
    let mut command = Command::new(BOXRUN);
    command
        .args(["postgres", "--", "sh", "-c", "printenv DATABASE_URL; exit 7"])
        .stdin(Stdio::null());
    let output = command.output().await.unwrap();
    assert!(
        String::from_utf8_lossy(&output.stdout).starts_with("postgres://"),
        "{output:?}"
    );
    assert_eq!(output.status.code(), Some(7));
}

#[tokio::test]
async fn nothing_is_left_after_kill_9() {
    let mut running = Running::start(Command::new(BOXRUN)).await;
    running.boxrun.kill().await.unwrap();
    running.nothing_is_left().await;
}

#[tokio::test]
async fn nothing_is_left_after_sigterm_and_the_command_hears_it() {
    let mut running = Running::start(Command::new(BOXRUN)).await;
    let pid = running.boxrun.id().unwrap();
    Command::new("sh")
        .args(["-c", &format!("kill -TERM {pid}")])
        .status()
        .await
        .unwrap();
    assert_eq!(running.status().await.code(), Some(128 + 15));
    running.nothing_is_left().await;
}

#[tokio::test]
async fn a_start_in_the_folder_of_a_killed_process_waits_for_its_server_to_end() {
    let parent = reachable_folder();
    let path = parent.path().join("database");
    let first = LocalPostgres::in_folder(&path).await.unwrap();
    write_note(&first.url()).await;

    // What the end of the process does: the lock and the watchdog's pipe go, nobody waits.
    drop(first);
    let second = LocalPostgres::in_folder(&path).await.unwrap();
    assert_eq!(read_note(&second.url()).await, "kept");
    second.stop().await.unwrap();
}

#[tokio::test]
async fn an_ordinary_user_can_start_it_too() {
    if !is_root() {
        // Then every other test has shown it.
        return;
    }
    let home = reachable_folder();
    std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = Command::new(copy_of_boxrun(home.path()));
    command
        .uid(NOBODY)
        .gid(NOBODY)
        .env("HOME", home.path())
        .env("TMPDIR", home.path())
        .current_dir(home.path());

    let mut running = Running::start(command).await;
    assert_eq!(running.owner, NOBODY);
    assert!(running.folder.starts_with(home.path().canonicalize().unwrap()));
    drop(running.boxrun.stdin.take());
    assert_eq!(running.status().await.code(), Some(0));
    running.nothing_is_left().await;
}

#[tokio::test]
async fn a_folder_that_roots_server_can_not_reach_is_replaced_by_a_link() {
    if !is_root() {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    std::fs::set_permissions(parent.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let path = parent.path().join("database");

    let first = LocalPostgres::in_folder(&path).await.unwrap();
    write_note(&first.url()).await;
    first.stop().await.unwrap();
    let second = LocalPostgres::in_folder(&path).await.unwrap();
    assert_eq!(read_note(&second.url()).await, "kept");
    let target = std::fs::read_link(&path).unwrap();
    assert!(target.starts_with("/var/lib/boxrun"), "{}", target.display());
    second.stop().await.unwrap();
    std::fs::remove_dir_all(target).unwrap();
}

/// `boxrun postgres -- …` with a command that lasts until its standard input ends.
struct Running {
    boxrun: Child,
    folder: PathBuf,
    server: u32,
    owner: u32,
}

impl Running {
    async fn start(mut command: Command) -> Self {
        command
            .args(["postgres", "--", "sh", "-c", "printenv DATABASE_URL; exec cat"])
            .kill_on_drop(true);
        let mut boxrun = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(boxrun.stdout.take().unwrap());
        let mut url = String::new();
        lines.read_line(&mut url).await.unwrap();
        let mut connection = PgConnection::connect(url.trim()).await.unwrap();
        let data: String = query_scalar("show data_directory")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        let server = server_pid(&mut connection).await;
        let owner = std::fs::metadata(&data).unwrap().uid();
        boxrun.stdout = Some(lines.into_inner());
        Self {
            boxrun,
            folder: Path::new(&data).parent().unwrap().to_path_buf(),
            server,
            owner,
        }
    }

    async fn status(&mut self) -> ExitStatus {
        // The command's output ends before boxrun does.
        let mut rest = String::new();
        self.boxrun
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut rest)
            .await
            .unwrap();
        self.boxrun.wait().await.unwrap()
    }

    async fn nothing_is_left(&self) {
        let look = async || (alive(self.server), self.folder.exists());
        wait_until("the server and its folder are gone", look, |seen| {
            *seen == (false, false)
        })
        .await;
    }
}

async fn server_pid(connection: &mut PgConnection) -> u32 {
    let text: String = query_scalar("select pg_read_file('postmaster.pid')")
        .fetch_one(connection)
        .await
        .unwrap();
    text.lines().next().unwrap().parse().unwrap()
}

/// A zombie counts as gone: it waits for its parent, which may be a container's idle first process.
fn alive(pid: u32) -> bool {
    let state = std::process::Command::new("sh")
        .args(["-c", &format!("kill -0 {pid} 2>/dev/null")])
        .status()
        .unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.success() && !stat.rsplit(") ").next().unwrap_or_default().starts_with('Z')
}

/// A folder whose parents every user may enter, as the server's user must.
fn reachable_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

fn is_root() -> bool {
    tempfile::tempfile().unwrap().metadata().unwrap().uid() == 0
}

async fn write_note(url: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    query("create table notes (note text)")
        .execute(&mut connection)
        .await
        .unwrap();
    query("insert into notes values ('kept')")
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

async fn read_note(url: &str) -> String {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let note = query_scalar("select note from notes")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    note
}
