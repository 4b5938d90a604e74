//! A worker as a process of its own would be: on a runtime of its own, so that it can be stopped, and killed.

use std::time::Duration;

use boxrun::box_api::BoxClient;
use boxrun::jobs::JobSettings;
use boxrun::jobs::worker::{self, WorkerError, WorkerOptions};
use boxrun::webhooks::WebhookOptions;
use chrono::TimeDelta;
use sqlx::PgPool;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::scripted_box::KEY;

/// The name of a worker's connections, by which a test can end them.
pub const APPLICATION: &str = "boxrun-test-worker";
/// A worker that does not stop within this fails its test.
const STOP_MAX: Duration = Duration::from_secs(10);

pub struct Worker {
    stop: CancellationToken,
    work: JoinHandle<Result<(), WorkerError>>,
    runtime: Option<Runtime>,
}

impl Worker {
    pub fn start(client: BoxClient, options: WorkerOptions) -> Self {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let stop = CancellationToken::new();
        let work = runtime.spawn(worker::run(client, options, stop.clone()));
        Self {
            stop,
            work,
            runtime: Some(runtime),
        }
    }

    /// As by SIGTERM; fails when it does not end.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let stopped = tokio::time::timeout(STOP_MAX, &mut self.work).await;
        let ended = stopped.unwrap_or_else(|_| panic!("a worker did not stop within {STOP_MAX:?}"));
        ended.expect("a worker does not panic").expect("a worker works");
    }

    /// As by SIGKILL: everything that it is doing ends where it stands, nothing is given back.
    pub fn kill(self) {
        drop(self);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Quick, with few connections, and with a lease that does not lapse unless a test makes it.
pub fn options(pool: &PgPool, provider: String) -> WorkerOptions {
    WorkerOptions {
        database: (*pool.connect_options()).clone().application_name(APPLICATION),
        connections: 4,
        connection_lifetime: Duration::from_secs(60),
        lease: Duration::from_secs(60),
        concurrency: [4; 4],
        jobs: JobSettings {
            poll_interval: Duration::from_millis(20),
            output_max_bytes: 24 * 1024,
            retention: TimeDelta::hours(24),
        },
        max_duration: Duration::from_secs(1800),
        ops_listen: None,
        shutdown: Duration::from_secs(5),
        provider,
        secrets: vec![KEY.to_owned()],
        secret_keys: None,
        webhooks: WebhookOptions {
            concurrency: 4,
            allow_private: true,
            attempt_timeout: Duration::from_secs(60),
        },
    }
}
