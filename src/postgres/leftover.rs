//! A server that an earlier process left behind in the same folder. Its watchdog is shutting it down, which takes a moment.

use std::path::Path;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::Instant;

use super::LocalPostgresError;

/// Longer than the watchdog waits before it cuts a hanging shutdown short.
const LONGEST_SHUTDOWN: Duration = Duration::from_secs(40);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Waits until no server works on `data`.
///
/// The file `postmaster.pid` stays after a crash, and its number may meanwhile be another program's, in which case PostgreSQL
/// would refuse to start: then the file is removed. When no process has the number, PostgreSQL copes by itself.
pub(super) async fn wait_until_gone(data: &Path) -> Result<(), LocalPostgresError> {
    let file = data.join("postmaster.pid");
    let give_up = Instant::now() + LONGEST_SHUTDOWN;
    while let Some(pid) = read_pid(&file) {
        match command_of(pid).await {
            None => return Ok(()),
            Some(command) if !is_server(&command) => {
                return std::fs::remove_file(&file).map_err(LocalPostgresError::file("remove", &file));
            }
            Some(_) if Instant::now() > give_up => {
                return Err(LocalPostgresError::StillRunning {
                    folder: data.to_path_buf(),
                    pid,
                });
            }
            Some(_) => tokio::time::sleep(BETWEEN_LOOKS).await,
        }
    }
    Ok(())
}

fn read_pid(file: &Path) -> Option<u32> {
    std::fs::read_to_string(file).ok()?.lines().next()?.trim().parse().ok()
}

/// The name of a living process' program: from `/proc`, elsewhere from `ps`.
async fn command_of(pid: u32) -> Option<String> {
    if Path::new("/proc/self/stat").exists() {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        return living_command(&stat).map(str::to_owned);
    }
    let output = Command::new("ps")
        .args(["-o", "comm=", "-p", &pid.to_string()])
        .output()
        .await
        .ok()?;
    let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!name.is_empty()).then_some(name)
}

/// The name in `/proc/PID/stat` (`42 (postgres) S 1 …`). A zombie is reported as something else than a server: it does nothing.
fn living_command(stat: &str) -> Option<&str> {
    let (_, rest) = stat.split_once('(')?;
    let (name, rest) = rest.rsplit_once(") ")?;
    Some(if rest.starts_with('Z') { "" } else { name })
}

fn is_server(command: &str) -> bool {
    let name = command.rsplit('/').next().unwrap_or(command);
    name.starts_with("postgres") || name.starts_with("postmaster")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zombie_and_a_stranger_are_no_server() {
        assert!(is_server(living_command("42 (postgres) S 1 2").unwrap()));
        assert!(is_server("/usr/lib/postgresql/15/bin/postgres"));
        assert!(!is_server(living_command("42 (postgres) Z 1 2").unwrap()));
        assert!(!is_server(living_command("42 (a) b (c) R 1 2").unwrap()));
        assert_eq!(living_command("42 (a) b (c) R 1 2"), Some("a) b (c"));
    }

    #[tokio::test]
    async fn a_recycled_process_number_does_not_block_the_start() {
        let data = tempfile::tempdir().unwrap();
        let file = data.path().join("postmaster.pid");
        std::fs::write(&file, format!("{}\n", std::process::id())).unwrap();
        wait_until_gone(data.path()).await.unwrap();
        assert!(!file.exists());
    }
}
