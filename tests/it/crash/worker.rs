//! One `boxrun worker` process.

use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::setting::{KEY, Setting};
use crate::support::wait::wait_until;

/// The lease of all workers here.
pub const LEASE: Duration = Duration::from_secs(2);
/// Between two polls of a run.
pub const POLL_INTERVAL: Duration = Duration::from_millis(200);
const EXIT_MAX: Duration = Duration::from_secs(40);

/// What a worker reaches.
pub struct Place<'a> {
    pub log: PathBuf,
    pub database_url: String,
    pub box_url: String,
    /// More of its environment.
    pub more: Vec<(&'a str, &'a str)>,
}

/// Killed when dropped; its log is in the setting's folder and shown when the test fails.
pub struct Worker {
    name: String,
    child: Child,
}

impl Worker {
    /// Starts a process; it may not be working yet on return.
    pub fn spawn(setting: &Setting, name: &str) -> Self {
        let lease = LEASE.as_secs().to_string();
        let place = Place {
            log: setting.log(name),
            database_url: setting.database_url(),
            box_url: setting.sim.url().to_string(),
            more: vec![("BOXRUN_LEASE_SECONDS", lease.as_str())],
        };
        Self::spawn_at(&place, name)
    }

    /// As [`Worker::spawn`], with what it reaches and how it is set.
    pub fn spawn_at(place: &Place<'_>, name: &str) -> Self {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&place.log)
            .expect("a log file");
        let child = Command::new(env!("CARGO_BIN_EXE_boxrun"))
            .arg("worker")
            .env_remove("BOXRUN_DATABASE_URL")
            .env("DATABASE_URL", &place.database_url)
            .env("BOX_API_URL", &place.box_url)
            .env("BOX_API_KEY", KEY)
            .env("BOXRUN_POLL_INTERVAL_MS", POLL_INTERVAL.as_millis().to_string())
            .env("RUST_LOG", "boxrun=debug")
            .env("BOXRUN_LOG_FORMAT", "json")
            .envs(place.more.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("a worker process");
        Self {
            name: name.to_owned(),
            child,
        }
    }

    /// Starts a process and waits until it works.
    pub async fn start(setting: &Setting, name: &str) -> Self {
        let worker = Self::spawn(setting, name);
        let of_this_process = format!("%/{}/%", worker.pid().as_raw_nonzero());
        let look = async || {
            sqlx::query_scalar::<_, i64>("select count(*) from boxrun.workers where id like $1")
                .bind(&of_this_process)
                .fetch_one(&setting.pool)
                .await
                .expect("the list of workers")
        };
        wait_until(&format!("worker {name} works"), look, |count| *count == 1).await;
        worker
    }

    /// `kill -9`, and the end of the process.
    pub async fn kill9(&mut self) {
        self.assert_alive();
        self.child.kill().await.expect("a process of ours");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a process of ours");
    }

    /// That nothing but the test has ended it.
    pub fn assert_alive(&mut self) {
        let ended = self.child.try_wait().expect("a process of ours");
        assert!(ended.is_none(), "worker {} ended by itself: {ended:?}", self.name);
    }

    /// Waits until the process has ended.
    pub async fn ended(&mut self) -> ExitStatus {
        let status = tokio::time::timeout(EXIT_MAX, self.child.wait()).await;
        status
            .unwrap_or_else(|_| panic!("worker {} did not end within {EXIT_MAX:?}", self.name))
            .expect("a process of ours")
    }

    fn pid(&self) -> Pid {
        let pid = self.child.id().expect("a process that was not waited for");
        Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid is not 0")
    }
}
