//! The worker processes under test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

pub const LEASE_SECONDS: u64 = 3;
/// What their sessions are called in the database.
pub const APPLICATION: &str = "boxrun";
/// `BOXRUN_SHUTDOWN_SECONDS` is 5; the rest is for a database that does not answer.
const SHUTDOWN_MAX: Duration = Duration::from_secs(45);
/// What a worker says once it has begun.
const WORKING: &str = "\"message\":\"working\"";
/// Where packages put the library that shifts clocks.
const FAKETIME: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

/// What all workers are told.
#[derive(Clone)]
pub struct WorkerSettings {
    pub database_url: String,
    pub box_api_url: String,
    pub box_api_key: String,
    pub secret_keys: String,
    pub logs: PathBuf,
    /// None: clocks can't be shifted here.
    pub faketime: Option<PathBuf>,
}

pub fn faketime() -> Option<PathBuf> {
    FAKETIME.iter().map(PathBuf::from).find(|path| path.is_file())
}

/// One place for a worker: when its process has been ended, another one takes it. Killed when dropped.
pub struct Worker {
    pub name: String,
    settings: WorkerSettings,
    child: Child,
    stopped: bool,
    /// Where the log of this process begins.
    log_from: u64,
}

impl Worker {
    pub fn start(name: &str, settings: &WorkerSettings) -> anyhow::Result<Self> {
        std::fs::write(clock_file(settings, name), "+0\n")?;
        Ok(Self {
            name: name.to_owned(),
            settings: settings.clone(),
            log_from: log_length(settings, name),
            child: spawn(name, settings)?,
            stopped: false,
        })
    }

    /// Ended though nobody asked it to; told once, then another process takes its place. One that could not reach the
    /// database as it started may end, as a supervisor starts it again.
    pub fn ended_by_itself(&mut self) -> anyhow::Result<Option<String>> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(None);
        };
        let worked = self.has_worked()?;
        self.begin_anew()?;
        Ok(worked.then(|| format!("worker {} ended by itself: {status}", self.name)))
    }

    fn has_worked(&self) -> anyhow::Result<bool> {
        let log = std::fs::read(log_file(&self.settings, &self.name))?;
        let own = log.get(usize::try_from(self.log_from)?..).unwrap_or_default();
        Ok(String::from_utf8_lossy(own).contains(WORKING))
    }

    pub async fn kill9(&mut self) -> anyhow::Result<()> {
        let pid = self.child.id();
        self.child.kill().await?;
        forget_clock(pid);
        self.begin_anew()
    }

    /// SIGTERM; another process begins once it has ended.
    pub async fn terminate(&mut self) -> anyhow::Result<()> {
        let pid = self.child.id();
        self.signal(Signal::TERM)?;
        let ended = tokio::time::timeout(SHUTDOWN_MAX, self.child.wait()).await;
        if ended.is_err() {
            self.child.kill().await?;
        }
        forget_clock(pid);
        // Before it works it does not know what SIGTERM means.
        let worked = self.has_worked()?;
        self.begin_anew()?;
        let status = ended.context("it lasts")??;
        anyhow::ensure!(status.success() || !worked, "it ended with {status}");
        Ok(())
    }

    fn begin_anew(&mut self) -> anyhow::Result<()> {
        self.log_from = log_length(&self.settings, &self.name);
        self.child = spawn(&self.name, &self.settings)?;
        self.stopped = false;
        Ok(())
    }

    pub fn freeze(&mut self) -> anyhow::Result<()> {
        self.stopped = true;
        self.signal(Signal::STOP)
    }

    pub fn go_on(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.stopped) {
            self.signal(Signal::CONT)?;
        }
        Ok(())
    }

    /// What the process takes for the time, from its true one.
    pub fn shift_clock(&self, seconds: i64) -> anyhow::Result<()> {
        let file = clock_file(&self.settings, &self.name);
        let new = file.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}\n"))?;
        Ok(std::fs::rename(new, file)?)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(kill_process(pid.context("a process that was not waited for")?, signal)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        forget_clock(self.child.id());
    }
}

fn spawn(name: &str, settings: &WorkerSettings) -> anyhow::Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(log_file(settings, name))?;
    let mut worker = Command::new(env!("CARGO_BIN_EXE_boxrun"));
    worker
        .arg("worker")
        .env_remove("BOXRUN_DATABASE_URL")
        .env("DATABASE_URL", &settings.database_url)
        .env("BOX_API_URL", &settings.box_api_url)
        .env("BOX_API_KEY", &settings.box_api_key)
        .env("BOXRUN_SECRET_KEYS", &settings.secret_keys)
        .env("BOXRUN_LEASE_SECONDS", LEASE_SECONDS.to_string())
        .env("BOXRUN_POLL_INTERVAL_MS", "400")
        .env("BOXRUN_SHUTDOWN_SECONDS", "5")
        .env("BOXRUN_RUN_DIRECTORY_RETENTION_SECONDS", "300")
        .env("RUST_LOG", "boxrun=info")
        .env("BOXRUN_LOG_FORMAT", "json")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true);
    if let Some(library) = &settings.faketime {
        worker
            .env("LD_PRELOAD", library)
            .env("FAKETIME_TIMESTAMP_FILE", clock_file(settings, name))
            .env("FAKETIME_CACHE_DURATION", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
    worker.spawn().context("a worker process")
}

fn log_file(settings: &WorkerSettings, name: &str) -> PathBuf {
    settings.logs.join(format!("{name}.log"))
}

fn log_length(settings: &WorkerSettings, name: &str) -> u64 {
    std::fs::metadata(log_file(settings, name)).map_or(0, |log| log.len())
}

fn clock_file(settings: &WorkerSettings, name: &str) -> PathBuf {
    settings.logs.join(format!("{name}.clock"))
}

/// What the library keeps of a process that it could not tidy up after.
fn forget_clock(pid: Option<u32>) {
    for name in pid
        .into_iter()
        .flat_map(|pid| [format!("sem.faketime_sem_{pid}"), format!("faketime_shm_{pid}")])
    {
        let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
    }
}
