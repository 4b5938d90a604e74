//! Detached commands, as the provider's agent on a box keeps them: started in the background, asked about by their pid,
//! with stdout and stderr in files below the home.
//!
//! The agent remembers in memory only. A box that went down, and a simulator that died, has forgotten them: their status is
//! then `lost`, their logs are read from the files, and whether one still runs is seen from its process.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use super::clock;
use super::exec::{Captured, DetachedScript, Logs, ScriptEnvironment};

/// The process id of a detached command, which is also its pid.
pub(super) type Pid = u32;

/// Those that the box remembers.
#[derive(Default)]
pub(super) struct Detached {
    known: Mutex<HashMap<Pid, Known>>,
}

struct Known {
    command: DetachedCommand,
    end: Option<End>,
}

/// What was started.
#[derive(Debug, Clone)]
pub(super) struct DetachedCommand {
    pub pid: Pid,
    pub command: String,
    pub cwd: PathBuf,
    pub started_at: String,
}

/// How it ended.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub finished_at: String,
}

/// What is said about one.
#[derive(Debug)]
pub(super) struct StatusReport {
    pub pid: Pid,
    /// None: forgotten.
    pub command: Option<DetachedCommand>,
    pub end: Option<End>,
    pub running: bool,
    pub stdout: Captured,
    pub stderr: Captured,
    pub logs: Logs,
}

impl Detached {
    /// Its logs are named after the pid, which shows only once it runs.
    pub fn start(
        &self,
        script: &str,
        environment: &ScriptEnvironment<'_>,
    ) -> io::Result<(DetachedScript, DetachedCommand)> {
        fs::create_dir_all(log_folder(environment.folder))?;
        let unnamed = Self::logs(environment.folder, &Uuid::new_v4().to_string());
        let started = DetachedScript::start(script, environment, &unnamed)?;
        let pid = started
            .pid()
            .ok_or_else(|| io::Error::other("the process has no pid"))?;
        let logs = Self::logs(environment.folder, &pid.to_string());
        fs::rename(unnamed.stdout, logs.stdout)?;
        fs::rename(unnamed.stderr, logs.stderr)?;
        let command = DetachedCommand {
            pid,
            command: script.to_owned(),
            cwd: environment.cwd.to_owned(),
            started_at: clock::now(),
        };
        let known = Known {
            command: command.clone(),
            end: None,
        };
        self.lock().insert(pid, known);
        Ok((started, command))
    }

    pub fn ended(&self, pid: Pid, status: ExitStatus) {
        if let Some(known) = self.lock().get_mut(&pid) {
            known.end = Some(End {
                exit_code: status.code(),
                signal: status.signal(),
                finished_at: clock::now(),
            });
        }
    }

    /// The box goes down, and its agent with it.
    pub fn forget(&self) {
        self.lock().clear();
    }

    /// `still_runs` is asked about a forgotten one.
    pub fn status(
        &self,
        pid: Pid,
        logs: Logs,
        tail_bytes: u64,
        still_runs: impl FnOnce() -> bool,
    ) -> io::Result<Option<StatusReport>> {
        let (command, end) = match self.lock().get(&pid) {
            Some(known) => (Some(known.command.clone()), known.end.clone()),
            None if logs.stdout.exists() => (None, None),
            None => return Ok(None),
        };
        let running = end.is_none() && (command.is_some() || still_runs());
        // Read after the end was looked at, so that one who is told of the end has all output.
        let stdout = Captured::tail_of(&logs.stdout, tail_bytes)?;
        let stderr = Captured::tail_of(&logs.stderr, tail_bytes)?;
        Ok(Some(StatusReport {
            pid,
            command,
            end,
            running,
            stdout,
            stderr,
            logs,
        }))
    }

    /// The logs of the command with this name in a box's folder.
    pub fn logs(box_folder: &Path, name: &str) -> Logs {
        let folder = log_folder(box_folder);
        Logs {
            stdout: folder.join(format!("{name}.log")),
            stderr: folder.join(format!("{name}.err.log")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Pid, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log_folder(box_folder: &Path) -> PathBuf {
    box_folder.join("home/.ascii/processes")
}
