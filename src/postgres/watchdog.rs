//! A program that does not outlive us, even when we are killed: it runs as the child of a small `sh` script that reads from a
//! pipe which we alone hold open (see `watchdog.sh`).

use std::path::Path;
use std::process::{ExitStatus, Stdio};

use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::LocalPostgresError;

/// The script, for [`Account::command`](super::account::Account::command) as `sh -c`.
const SCRIPT: &str = include_str!("watchdog.sh");

/// A program under a watchdog. Dropping it stops the program too, but does not wait for the end.
#[derive(Debug)]
pub(super) struct Watched {
    watchdog: Child,
    orders: ChildStdin,
    /// Ends when the last process of the program is gone.
    program: ChildStdout,
}

impl Watched {
    /// Completes `sh` (a command that starts a shell) so that it runs `command_line` under the watchdog. At the end the folder
    /// `scrap` is removed; what the program says on standard error goes to `log`.
    pub(super) fn spawn(
        mut sh: Command,
        scrap: Option<&Path>,
        command_line: &Command,
        log: std::fs::File,
    ) -> Result<Self, LocalPostgresError> {
        sh.args(["-c", SCRIPT, "boxrun-watchdog"])
            .arg(scrap.unwrap_or(Path::new("")));
        sh.arg(command_line.as_std().get_program())
            .args(command_line.as_std().get_args());
        sh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let failed = |source| LocalPostgresError::Program {
            program: "sh".to_owned(),
            source,
        };
        let mut watchdog = sh.spawn().map_err(failed)?;
        match (watchdog.stdin.take(), watchdog.stdout.take()) {
            (Some(orders), Some(program)) => Ok(Self {
                watchdog,
                orders,
                program,
            }),
            (_, _) => Err(failed(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Returns when every process of the program is gone.
    pub(super) async fn ended(&mut self) {
        // An error of this pipe means the same as its end: there is nobody left at the other side.
        let _ = tokio::io::copy(&mut self.program, &mut tokio::io::sink()).await;
    }

    /// Leave the scrap folder where it is: more is done in it.
    pub(super) async fn keep_scrap(&mut self) {
        self.order("keep").await;
    }

    /// Kill the program as a crash would.
    pub(super) async fn kill(&mut self) {
        self.order("kill").await;
    }

    /// Stops the program and waits; the status is the program's own.
    pub(super) async fn stop(mut self) -> Result<ExitStatus, LocalPostgresError> {
        drop(self.orders);
        let status = self.watchdog.wait().await;
        status.map_err(|source| LocalPostgresError::Program {
            program: "sh".to_owned(),
            source,
        })
    }

    async fn order(&mut self, order: &str) {
        // A watchdog that is gone can't be told anything; `stop` reports its end.
        let _ = self.orders.write_all(format!("{order}\n").as_bytes()).await;
    }
}
