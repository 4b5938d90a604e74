//! `boxrun up --once`: the first run from nothing, and nothing left of it but its folder.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Command;

use crate::support::program::copy_of_boxrun;
use crate::support::wait::wait_until;

const BOXRUN: &str = env!("CARGO_BIN_EXE_boxrun");
/// The user and group `nobody` on most systems; any number without rights does.
const NOBODY: u32 = 65_534;

#[tokio::test]
async fn up_once_prints_the_first_run_as_it_goes_and_leaves_no_process() {
    let folder = reachable_folder();
    see_first_run(Command::new(BOXRUN), folder.path()).await;
}

#[tokio::test]
async fn up_once_works_for_an_ordinary_user_too() {
    let home = reachable_folder();
    if home.path().metadata().expect("a folder").uid() != 0 {
        // Then the test above has shown it.
        return;
    }
    std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
    let mut command = Command::new(copy_of_boxrun(home.path()));
    command
        .uid(NOBODY)
        .gid(NOBODY)
        .env("HOME", home.path())
        .env("TMPDIR", home.path())
        .current_dir(home.path());
    see_first_run(command, home.path()).await;
}

#[tokio::test]
async fn up_goes_on_with_a_run_that_was_left_over_when_it_was_killed() {
    let folder = reachable_folder();
    let data = folder.path().join("data");
    let up = |once: &[&str]| {
        let mut command = Command::new(BOXRUN);
        command.arg("up").args(once).arg("--data").arg(&data);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        command.spawn().expect("a process")
    };
    let mut first = up(&[]);
    let mut lines = BufReader::new(first.stdout.take().expect("stdout is piped")).lines();
    while let Some(line) = lines.next_line().await.expect("text") {
        if line.starts_with("it ran on") {
            break;
        }
    }
    let left_over = async || {
        let mut run = Command::new(BOXRUN);
        run.args([
            "run",
            "--detach",
            "--box",
            "bx_8bhkse3n",
            "--",
            "echo left over; sleep 2; echo the end of it",
        ]);
        let url = std::fs::read_to_string(data.join("database-url")).expect("`up` wrote it");
        run.env("DATABASE_URL", url).env_remove("BOX_API_KEY");
        run.output().await.expect("a process").status.success()
    };
    // Refused while the first run is not over yet.
    wait_until("the run is admitted", left_over, |admitted| *admitted).await;
    first.kill().await.expect("a process of ours");

    let again = up(&["--once"]).wait_with_output().await.expect("a process of ours");
    let printed = String::from_utf8_lossy(&again.stdout);
    assert_eq!(again.status.code(), Some(0), "{printed}");
    let expected = printed.starts_with("left over\nthe end of it\nline 1 of 5") || printed.starts_with("line 1 of 5");
    assert!(expected && printed.contains("line 5 of 5"), "{printed}");
    let path = data.to_str().expect("a path in UTF-8").to_owned();
    wait_until("no process is left", async || processes_that_name(&path), Vec::is_empty).await;
}

async fn see_first_run(mut command: Command, folder: &Path) {
    let data = folder.join("data");
    command.args(["up", "--once", "--data"]).arg(&data);
    // Not its own: `up` touches nothing that it did not start.
    command.env("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut up = command.kill_on_drop(true).spawn().expect("a process");
    let mut stderr = up.stderr.take().expect("stderr is piped");
    let said = tokio::spawn(async move {
        let mut text = String::new();
        stderr.read_to_string(&mut text).await.map(|_| text)
    });
    let mut stdout = BufReader::new(up.stdout.take().expect("stdout is piped"));
    let mut printed = String::new();
    stdout.read_line(&mut printed).await.expect("a line");
    let ended = up.try_wait().expect("a process of ours");
    if printed.is_empty() || ended.is_some() {
        let said = said.await.expect("a task").expect("text");
        panic!("the first line comes while the run goes on; it was {printed:?}, {ended:?}, {said}");
    }
    let path = data.to_str().expect("a path in UTF-8").to_owned();
    let running = processes_that_name(&path);
    assert!(running.len() > 2, "`up` itself, PostgreSQL and more: {running:?}");

    stdout.read_to_string(&mut printed).await.expect("text");
    let status = up.wait().await.expect("a process of ours");
    let said = said.await.expect("a task").expect("text");
    assert_eq!(status.code(), Some(0), "{said}");
    let lines: Vec<&str> = printed.lines().collect();
    let expected = (1..=5).map(|line| format!("line {line} of 5 from your first run"));
    assert!(
        lines.len() == 6 && expected.zip(&lines).all(|(expected, line)| expected == *line),
        "{printed}"
    );
    let look = async || processes_that_name(&path);
    wait_until("no process is left", look, Vec::is_empty).await;
}

/// Everything that `up` starts is told on its command line where its files are.
fn processes_that_name(path: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(path))
        .collect()
}

/// A folder whose parents every user may enter, as the server's user must.
fn reachable_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("a folder of ours");
    folder
}
