//! Running one script: its own session, a clean environment, a time limit, and output that is bounded.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::clock;
use super::processes::{Mark, kill_group};

/// Of each of stdout and stderr; what is over is read and dropped, so that the script does not stall.
const OUTPUT_MAX_BYTES: usize = 1024 * 1024;
/// How long after a script's exit its output is still waited for, when a child that it left behind holds the pipe.
const DRAIN_MAX: Duration = Duration::from_millis(250);

/// Where a script runs.
pub(super) struct ScriptEnvironment<'a> {
    /// The box's own folder.
    pub folder: &'a Path,
    pub cwd: &'a Path,
    pub mark: &'a Mark,
}

/// Where a detached script's output goes.
#[derive(Debug, Clone)]
pub(super) struct Logs {
    pub stdout: PathBuf,
    pub stderr: PathBuf,
}

/// A script that has been started.
pub(super) struct RunningScript {
    child: Child,
    file: PathBuf,
    cwd: PathBuf,
    started_at: String,
    stdout: CapturedPipe,
    stderr: CapturedPipe,
}

/// A script that has been started with its output in files: nobody waits for it but the box.
pub(super) struct DetachedScript {
    child: Child,
    file: PathBuf,
}

/// How a script ended.
#[derive(Debug)]
pub(super) struct Finished {
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: Captured,
    pub stderr: Captured,
    pub timed_out: bool,
    pub cwd: PathBuf,
    pub started_at: String,
    pub ended_at: String,
}

#[derive(Debug, Default, Clone)]
pub(super) struct Captured {
    bytes: Vec<u8>,
    pub truncated: bool,
}

impl RunningScript {
    pub fn start(script: &str, environment: &ScriptEnvironment<'_>) -> io::Result<Self> {
        let (mut child, file) = spawn(script, environment, || Ok((Stdio::piped(), Stdio::piped())))?;
        let stdout = CapturedPipe::read(child.stdout.take().expect("stdout is piped"));
        let stderr = CapturedPipe::read(child.stderr.take().expect("stderr is piped"));
        Ok(Self {
            child,
            file,
            cwd: environment.cwd.to_owned(),
            started_at: clock::now(),
            stdout,
            stderr,
        })
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the script itself, not for what it left running; after `timeout` its process group is killed.
    pub async fn finish(mut self, timeout: Duration) -> io::Result<Finished> {
        let ended = tokio::time::timeout(timeout, self.child.wait()).await;
        let timed_out = ended.is_err();
        let status: ExitStatus = match ended {
            Ok(status) => status?,
            Err(_elapsed) => {
                // Not waited for yet, so the pid is still the script's.
                if let Some(pid) = self.child.id() {
                    kill_group(pid);
                }
                self.child.wait().await?
            }
        };
        remove(&self.file);
        let (stdout, stderr) = tokio::join!(self.stdout.finish(), self.stderr.finish());
        Ok(Finished {
            exit_code: status.code(),
            signal: status.signal(),
            stdout,
            stderr,
            timed_out,
            cwd: self.cwd,
            started_at: self.started_at,
            ended_at: clock::now(),
        })
    }
}

impl DetachedScript {
    pub fn start(script: &str, environment: &ScriptEnvironment<'_>, logs: &Logs) -> io::Result<Self> {
        let (child, file) = spawn(script, environment, || {
            Ok((File::create(&logs.stdout)?.into(), File::create(&logs.stderr)?.into()))
        })?;
        Ok(Self { child, file })
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    pub async fn finish(mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        remove(&self.file);
        status
    }
}

/// Starts the script from a file that is removed when it ends.
fn spawn(
    script: &str,
    environment: &ScriptEnvironment<'_>,
    outputs: impl FnOnce() -> io::Result<(Stdio, Stdio)>,
) -> io::Result<(Child, PathBuf)> {
    let name = format!("{}.sh", Uuid::new_v4());
    let file = environment.folder.join("scripts").join(name);
    write_private(&file, script)?;
    let spawned =
        outputs().and_then(|(stdout, stderr)| shell_command(&file, environment).stdout(stdout).stderr(stderr).spawn());
    let child = spawned.inspect_err(|_| remove(&file))?;
    Ok((child, file))
}

impl Captured {
    /// The last `max_bytes` of a file; nothing of one that is not there.
    pub fn tail_of(file: &Path, max_bytes: u64) -> io::Result<Self> {
        let mut file = match File::open(file) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let skipped = file.metadata()?.len().saturating_sub(max_bytes);
        file.seek(SeekFrom::Start(skipped))?;
        let mut bytes = Vec::new();
        file.take(max_bytes).read_to_end(&mut bytes)?;
        Ok(Self {
            bytes,
            truncated: skipped > 0,
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn append(&mut self, bytes: &[u8]) {
        let room = OUTPUT_MAX_BYTES - self.bytes.len();
        self.truncated |= bytes.len() > room;
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// A pipe being read into memory.
struct CapturedPipe {
    captured: Arc<Mutex<Captured>>,
    reading: JoinHandle<()>,
}

impl CapturedPipe {
    fn read(mut pipe: impl AsyncRead + Send + Unpin + 'static) -> Self {
        let captured = Arc::new(Mutex::new(Captured::default()));
        let into = Arc::clone(&captured);
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0; 16 * 1024];
            while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
                into.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .append(&buffer[..count]);
            }
        });
        Self { captured, reading }
    }

    async fn finish(mut self) -> Captured {
        if tokio::time::timeout(DRAIN_MAX, &mut self.reading).await.is_err() {
            self.reading.abort();
        }
        std::mem::take(&mut *self.captured.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// `sh file` as the provider would run it: in a session of its own (see `processes`), with nothing of our environment but
/// the search path.
#[expect(clippy::disallowed_methods, reason = "a box has the programs of this machine")]
fn shell_command(file: &Path, environment: &ScriptEnvironment<'_>) -> Command {
    let mut command = if cfg!(target_os = "linux") {
        // A child that is no group leader makes setsid(1) replace itself: the pid is the shell's.
        let mut command = Command::new("setsid");
        command.arg("sh");
        command
    } else {
        let mut command = Command::new("sh");
        command.process_group(0);
        command
    };
    let folder = environment.folder;
    let home = folder.join("home");
    command
        .arg(file)
        .current_dir(environment.cwd)
        .env_clear()
        .env(
            "PATH",
            std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
        )
        .env("HOME", &home)
        .env("LANG", "C.UTF-8")
        .env("BOXRUN_BOOT_ID_FILE", folder.join("boot-id"))
        .env("BOXRUN_SIM_STARTS", folder.join("starts"))
        .env(Mark::VARIABLE, environment.mark.value())
        .stdin(Stdio::null());
    command
}

/// A script can carry a run's secrets.
fn write_private(file: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?
        .write_all(text.as_bytes())
}

fn remove(file: &Path) {
    if let Err(error) = std::fs::remove_file(file) {
        tracing::warn!(%error, file = %file.display(), "the simulator can't remove a script");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_at_its_limit_and_says_so() {
        let mut captured = Captured::default();
        captured.append(&vec![b'x'; OUTPUT_MAX_BYTES]);
        assert!(!captured.truncated);
        captured.append(b"");
        assert!(!captured.truncated);
        captured.append(b"y");
        assert!(captured.truncated);
        assert_eq!(captured.bytes.len(), OUTPUT_MAX_BYTES);
    }
}
