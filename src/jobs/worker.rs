//! The worker process: claimer, listener, one apalis worker a kind, delivery of webhooks, reconcile and heartbeat, until it is
//! told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use rand::Rng;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::box_api::BoxClient;
use crate::ops;
use crate::queue::{
    Claimer, ClaimerOptions, Interrupt, JobKind, Lanes, Listener, LivePool, Outage, answered, backend,
    without_silent_connections,
};
use crate::runs::SecretKeys;
use crate::runs::masking::Masker;
use crate::schema::{self, SchemaError};
use crate::telemetry::catalogue::Exporter;
use crate::webhooks::{Deliverer, WebhookClientError, WebhookOptions};

use super::throttle::Throttle;
use super::{Context, JobSettings, handle, reconcile};

const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
const RECONCILE_INTERVAL: Duration = Duration::from_secs(10);

/// Everything a worker needs to be told.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    pub database: PgConnectOptions,
    /// Connections beside the one for LISTEN; at least 2.
    pub connections: u32,
    /// After this a connection is made anew. One that was opened while the database was read-only stays so, and one that
    /// knows statements from before a migration may refuse them for ever: neither does harm for longer than this.
    pub connection_lifetime: Duration,
    pub lease: Duration,
    /// Jobs in hand per kind, as [`JobKind::ALL`].
    pub concurrency: [usize; 4],
    pub jobs: JobSettings,
    /// How long a run may last; written down for those who admit runs by SQL.
    pub max_duration: Duration,
    /// How long a shutdown waits for dispatches and kills in flight.
    pub shutdown: Duration,
    /// Where health and metrics are answered; `None`: nowhere.
    pub ops_listen: Option<SocketAddr>,
    /// What the database remembers the provider by.
    pub provider: String,
    /// Masked wherever they appear in output.
    pub secrets: Vec<String>,
    /// What opens the secrets of runs and of webhooks.
    pub secret_keys: Option<SecretKeys>,
    pub webhooks: WebhookOptions,
}

/// Why a worker does not start.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("the database could not be reached")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error(transparent)]
    Webhooks(#[from] WebhookClientError),
    #[error(transparent)]
    Ops(#[from] ops::ListenError),
}

/// Works until `stop`, then lets go: no claim any more, polls dropped and given back, dispatches and kills waited for. Drained by
/// an operator it claims no more either, but finishes all that it has in hand.
///
/// # Errors
/// Only before it works: from then on outages are waited out.
pub async fn run(client: BoxClient, options: WorkerOptions, stop: CancellationToken) -> Result<(), WorkerError> {
    let worker = identity();
    let ops = ops::bind(options.ops_listen).await?;
    // Renewals and claims have a connection of their own, so that no flood of outcomes can make a lease lapse.
    let queue_pool = pool(&options, 1);
    let pool = pool(&options, options.connections.saturating_sub(1).max(1));
    answered(prepare(&pool, &options)).await?;
    let claimer = Claimer::new(
        queue_pool,
        ClaimerOptions {
            worker: worker.clone(),
            lease: options.lease,
            concurrency: options.concurrency,
        },
    );
    let live_pool = LivePool::new(pool.clone());
    let masker = Masker::new(options.secrets.iter().cloned());
    let deliverer = Deliverer::new(
        worker.clone(),
        live_pool.clone(),
        masker.clone(),
        options.secret_keys.clone(),
        options.webhooks,
    )?;
    let context = Arc::new(Context {
        pool: live_pool,
        client,
        claimer: claimer.clone(),
        masker,
        secret_keys: options.secret_keys.clone(),
        throttle: Throttle::default(),
        settings: options.jobs.clone(),
    });
    answered(heartbeat(&pool, &worker)).await?;
    // Before the first claim: a worker that starts while the provider asked for patience has it too.
    answered(context.throttle.refresh(&pool)).await?;
    let ops_address = ops.as_ref().and_then(|listener| listener.local_addr().ok());
    tracing::info!(worker, concurrency = ?options.concurrency, provider = options.provider, ops = ?ops_address, "working");

    let (lanes, receivers) = Lanes::new();
    let mut served = JoinSet::new();
    for (kind, jobs) in JobKind::ALL.into_iter().zip(receivers) {
        let context = Arc::clone(&context);
        let handler = Arc::new(move |job| {
            let context = Arc::clone(&context);
            async move { handle(&context, job).await }
        });
        served.spawn(backend::serve(&worker, kind, jobs, handler));
    }
    let mut background = JoinSet::new();
    if ops.is_some() {
        let process = ops::Process::new(ops::Parts {
            by: Exporter::Worker,
            pool: context.pool.clone(),
            pools: vec![("jobs", context.pool.clone()), ("queue", claimer.pool())],
            provider: Some(options.provider.clone()),
            worker: Some(worker.clone()),
            stopping: stop.clone(),
        });
        background.spawn(process.serve(ops));
    }
    background.spawn(claimer.clone().renew());
    let listener = Listener::new(options.database.clone(), claimer.clone());
    background.spawn(listener.waking_for_deliveries(deliverer.wake()).run());
    background.spawn(keep_alive(Arc::clone(&context), worker.clone()));
    background.spawn(keep_reconciled(Arc::clone(&context)));
    let mut claiming = tokio::spawn(claimer.clone().run(lanes, stop.clone()));
    let last_delivery = CancellationToken::new();
    let delivering = tokio::spawn(deliverer.run(last_delivery.clone(), options.shutdown));

    tokio::select! {
        () = stop.cancelled() => {}
        () = drained(&claimer, &mut claiming, &stop, &last_delivery) => {}
    }
    last_delivery.cancel();
    stopping(&context.pool.get(), &worker).await;
    tracing::info!(
        worker,
        "stopping: claims no more, waits for dispatches and kills in flight"
    );
    // The claimer closes the lanes as it ends; a claim in flight may still hand out jobs, which are told like the rest.
    if !claiming.is_finished() {
        let _ = (&mut claiming).await;
    }
    let told = claimer.clone();
    background.spawn(async move {
        loop {
            told.interrupt_all(Interrupt::Shutdown);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    if tokio::time::timeout(options.shutdown, claimer.idle()).await.is_err() {
        tracing::warn!(worker, "some jobs did not finish in time; their leases lapse");
    }
    if let Err(error) = delivering.await {
        tracing::error!(worker, %error, "the delivery of webhooks ended");
    }
    // An apalis worker whose backend has ended still waits for a shutdown of its own; there is nothing left in it.
    served.shutdown().await;
    background.shutdown().await;
    forget(&context.pool.get(), &worker).await;
    tracing::info!(worker, "stopped");
    Ok(())
}

/// Resolves once the claimer has ended by itself, which it does only for a drain, and what it handed out is finished.
async fn drained(
    claimer: &Claimer,
    claiming: &mut JoinHandle<()>,
    stop: &CancellationToken,
    last_delivery: &CancellationToken,
) {
    let _ = claiming.await;
    last_delivery.cancel();
    if stop.is_cancelled() {
        return;
    }
    tracing::info!(
        worker = claimer.worker(),
        "draining: claims no more, finishes what is in hand"
    );
    claimer.idle().await;
    tracing::info!(worker = claimer.worker(), "drained: nothing is in hand any more");
}

/// That schema and provider are those that this process works with.
async fn prepare(pool: &PgPool, options: &WorkerOptions) -> Result<(), WorkerError> {
    schema::check(pool).await?;
    schema::check_provider(pool, &options.provider).await?;
    schema::record_max_duration(pool, options.max_duration).await?;
    Ok(())
}

/// New at each start, also of a process with the same number on a host of the same name.
fn identity() -> String {
    let host = whoami::hostname().unwrap_or_else(|_| "unknown".to_owned());
    let fresh = Uuid::new_v4().simple().to_string();
    format!("{host}/{}/{}", std::process::id(), &fresh[..8])
}

/// A pool whose statements don't wait long for rows that somebody else's transaction holds. A connection is not tested before
/// each use, which would double the round trips: one that broke shows in the statement, and that is tried again. A process that is frozen inside a transaction holds
/// its rows for seconds only.
fn pool(options: &WorkerOptions, connections: u32) -> PgPool {
    let database = options.database.clone().options([
        ("lock_timeout", "300ms"),
        ("statement_timeout", "30s"),
        ("idle_in_transaction_session_timeout", "5s"),
    ]);
    without_silent_connections(PgPoolOptions::new())
        .max_connections(connections)
        .max_lifetime(options.connection_lifetime)
        .acquire_timeout(Duration::from_secs(10))
        .test_before_acquire(false)
        .connect_lazy_with(database)
}

async fn keep_alive(context: Arc<Context>, worker: String) {
    let mut outage = Outage::of("the worker's heartbeat");
    let mut tick = tokio::time::interval(HEARTBEAT_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let beat = async {
            heartbeat(&context.pool.get(), &worker).await?;
            context.throttle.refresh(&context.pool.get()).await
        };
        match context.pool.noting(answered(beat).await) {
            Ok(()) => outage.ended(),
            Err(error) => {
                outage.failed(&error);
            }
        }
    }
}

async fn heartbeat(pool: &PgPool, worker: &str) -> sqlx::Result<()> {
    let host = worker.split('/').next().unwrap_or_default();
    sqlx::query!(
        "insert into boxrun.workers (id, host, version) values ($1, $2, $3)
         on conflict (id) do update set heartbeat_at = clock_timestamp()",
        worker,
        host,
        env!("CARGO_PKG_VERSION"),
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// For people: the worker is still there, but only to let go.
async fn stopping(pool: &PgPool, worker: &str) {
    let noted = sqlx::query!("update boxrun.workers set stopping = true where id = $1", worker).execute(pool);
    if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(1), noted).await {
        tracing::debug!(%error, "could not note that the worker is stopping");
    }
}

async fn forget(pool: &PgPool, worker: &str) {
    let forgotten = sqlx::query!("delete from boxrun.workers where id = $1", worker).execute(pool);
    if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(2), forgotten).await {
        tracing::debug!(%error, "could not take the worker off the list");
    }
}

async fn keep_reconciled(context: Arc<Context>) {
    let mut outage = Outage::of("reconciling runs and jobs");
    let retention = context.settings.retention.to_std().unwrap_or_default();
    loop {
        match answered(reconcile::reconcile(
            &context.pool.get(),
            context.settings.poll_interval,
            retention,
        ))
        .await
        {
            Ok(mended) => {
                outage.ended();
                if let Some(mended) = mended.filter(|mended| *mended != reconcile::Mended::default()) {
                    tracing::info!(?mended, "reconciled runs and jobs");
                }
            }
            Err(error) => {
                outage.failed(&error);
            }
        }
        tokio::time::sleep(RECONCILE_INTERVAL + spread()).await;
    }
}

/// So that the processes of one deployment don't come in step.
#[expect(
    clippy::disallowed_methods,
    reason = "randomness of the process's own rhythm, not of a decision"
)]
fn spread() -> Duration {
    Duration::from_millis(rand::rng().next_u64() % 1000)
}

/// The retention as the decisions take it.
#[must_use]
pub fn retention(seconds: u64) -> TimeDelta {
    TimeDelta::seconds(i64::try_from(seconds).unwrap_or(i64::MAX / 1000))
}
