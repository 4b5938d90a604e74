//! `boxrun postgres -- COMMAND…`: a command with a PostgreSQL of its own, for as long as it runs.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::postgres::LocalPostgres;

/// Starts a temporary PostgreSQL, runs `command` with `DATABASE_URL` set to it and its programs on `PATH`, stops it, and returns the command's exit status
/// (128 + the signal that ended it). SIGINT, SIGTERM and SIGHUP are passed on to the command. After a `kill -9` of this process
/// the server still stops; the command does not hear of it.
///
/// # Errors
/// The server can't be started or stopped, or there is no such command.
pub async fn with_postgres(command: Vec<String>) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let postgres = tokio::select! {
        started = LocalPostgres::temporary() => started.context("could not start a temporary PostgreSQL")?,
        // The dropped start takes its processes and its folder with it.
        received = signals.next() => return Ok(ExitCode::from(128 + received.number)),
    };
    let status = run(command, &postgres, &mut signals).await;
    postgres
        .stop()
        .await
        .context("could not stop the temporary PostgreSQL")?;
    Ok(exit_code(status?))
}

/// Who hears the signals that are passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hearer {
    /// The command and all its children, in a group of their own.
    Group,
    /// The command alone: on a terminal it stays in our group, to be able to read from it, and hears Ctrl-C from the terminal.
    Command,
}

async fn run(command: Vec<String>, postgres: &LocalPostgres, signals: &mut Signals) -> anyhow::Result<ExitStatus> {
    let Some((program, arguments)) = command.split_first() else {
        bail!("no command was given")
    };
    let hearer = if std::io::stdin().is_terminal() {
        Hearer::Command
    } else {
        Hearer::Group
    };
    let mut prepared = Command::new(program);
    prepared.env("PATH", path_with(postgres.programs())?);
    // It would win over DATABASE_URL in boxrun's own processes.
    prepared
        .args(arguments)
        .env("DATABASE_URL", postgres.url())
        .env_remove("BOXRUN_DATABASE_URL");
    if hearer == Hearer::Group {
        prepared.process_group(0);
    }
    let mut child = prepared.spawn().with_context(|| format!("could not run {program}"))?;
    loop {
        tokio::select! {
            status = child.wait() => return status.with_context(|| format!("could not wait for {program}")),
            received = signals.next() => pass_on(&child, hearer, received).await?,
        }
    }
}

/// `PATH` with the server's own programs first, so that the command finds the `psql` and `pg_dump` that fit.
#[expect(
    clippy::disallowed_methods,
    reason = "PATH is where programs are looked up, not a setting"
)]
fn path_with(programs: &Path) -> anyhow::Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(programs.to_path_buf()).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).context("could not put the server's programs on PATH")
}

async fn pass_on(child: &Child, hearer: Hearer, received: Received) -> anyhow::Result<()> {
    let Some(pid) = child.id() else { return Ok(()) };
    let target = match hearer {
        Hearer::Group => format!("-{pid}"),
        Hearer::Command if received == INTERRUPT => return Ok(()),
        Hearer::Command => pid.to_string(),
    };
    // The shell's own `kill`: the program of that name is not installed everywhere. A command that has just ended is no fault.
    let script = format!("kill -{} {target} 2>/dev/null", received.number);
    Command::new("sh")
        .args(["-c", &script])
        .status()
        .await
        .context("could not run sh to pass on a signal")?;
    Ok(())
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let number = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    ExitCode::from(u8::try_from(number).unwrap_or(1))
}

/// A signal that asks us to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Received {
    number: u8,
}

// The numbers are POSIX's (`kill -2`, `kill -15`, `kill -1`).
const INTERRUPT: Received = Received { number: 2 };
const TERMINATE: Received = Received { number: 15 };
const HANG_UP: Received = Received { number: 1 };

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("could not listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Received {
        tokio::select! {
            _ = self.interrupt.recv() => INTERRUPT,
            _ = self.terminate.recv() => TERMINATE,
            _ = self.hang_up.recv() => HANG_UP,
        }
    }
}
