//! Chaos: real workers over a real PostgreSQL with its standby and the simulator, while everything around them fails at
//! moments that a seed chooses; then a checker compares what was promised with what really happened.
//!
//! `bin/chaos --help`. Not part of `cargo test`: it lasts as long as it is told to.

#![allow(
    clippy::disallowed_methods,
    reason = "a test looks at the machine itself: its clock and its processes"
)]

mod checker;
mod database;
mod evidence;
mod faults;
mod finale;
mod leftovers;
mod plan;
mod proxy;
mod report;
mod stage;
mod tenant;
mod witness;
mod workers;

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use boxrun::ids::RunId;
use boxrun::runs::RunState;
use clap::Parser;
use futures::FutureExt as _;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde::Deserialize;
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use evidence::Archive;
use stage::Stage;
use tenant::Tenant;

/// After the last fault: within this all runs have ended, whatever happened to them.
const SETTLE_MAX: Duration = Duration::from_secs(150);

/// Lets workers, database, provider and boxes fail in every way for some time, and checks what boxrun promises.
#[derive(Parser)]
#[command(name = "bin/chaos", version)]
struct Arguments {
    /// How long things fail; after that all runs are followed to their ends.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Chooses commands, faults and moments; without it a random one is taken and printed.
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Deserialize)]
struct News {
    run_id: RunId,
    state: RunState,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(run(arguments))
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!("seed {seed}: bin/chaos --minutes {} --seed {seed}", arguments.minutes);
    let folder = tempfile::Builder::new().prefix("boxrun-chaos-").tempdir()?;
    let stage = Arc::new(Stage::set_up(folder.path()).await?);
    if !stage.clocks_shift {
        println!("clock faults are skipped: libfaketime is not installed");
    }
    let duration = Duration::from_secs_f64(arguments.minutes.max(0.0) * 60.0);
    let performed = AssertUnwindSafe(perform(&stage, seed, duration)).catch_unwind().await;

    let stage = Arc::into_inner(stage).context("somebody still acts on the stage")?;
    let taken_down = stage.take_down().await;
    let violations = match performed {
        Ok(violations) => violations,
        Err(panic) => resume_unwind(panic),
    };
    taken_down?;
    if matches!(violations, Ok(0)) {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "logs of the workers and the record of the boxes: {}",
        folder.keep().display()
    );
    violations?;
    Ok(ExitCode::FAILURE)
}

/// Everything between set-up and the end; the number of violations.
async fn perform(stage: &Arc<Stage>, seed: u64, duration: Duration) -> anyhow::Result<usize> {
    let mut random = StdRng::seed_from_u64(seed);
    let enough = CancellationToken::new();
    let news = Arc::new(Notify::new());
    let mut watchers = JoinSet::new();
    watchers.spawn(listen(Arc::clone(stage), Arc::clone(&news)));
    watchers.spawn(supervise(Arc::clone(stage)));
    let mut tenants = JoinSet::new();
    for id in &stage.boxes {
        tenants.spawn(Tenant::new(stage, id.clone(), random.next_u64()).live(enough.clone()));
    }
    let rage = tokio::spawn(faults::rage(Arc::clone(stage), news, random.next_u64(), enough.clone()));

    let (mut interrupted, mut terminated) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        () = tokio::time::sleep(duration) => {}
        _ = interrupted.recv() => eprintln!("interrupted: no more faults, the rest is followed to its end and checked"),
        _ = terminated.recv() => {}
    }
    enough.cancel();
    rage.await??;
    stage.heal().await?;
    if tokio::time::timeout(SETTLE_MAX, finish(&mut tenants)).await.is_err() {
        stage.witness.accuse(
            None,
            format!("{SETTLE_MAX:?} after the last fault some runs have not ended"),
        );
    }
    tenants.shutdown().await;
    finale::each_worker_works_alone(stage, random.next_u64()).await?;
    leftovers::wait_for_verified_ends(stage, SETTLE_MAX).await?;
    watchers.shutdown().await;
    stage.witness.sort_early_news();

    let archive = Archive::open(stage).await?;
    let living = leftovers::living(&archive.runs);
    let mut violations = checker::check(stage, &archive, &living);
    violations.extend(leftovers::secrets_in_logs(stage)?);
    report::print_violations(&violations, &archive, stage);
    println!("{}", report::ends(&archive));
    println!("{}", report::last_line(&archive, stage, violations.len()));
    Ok(violations.len())
}

async fn finish(tenants: &mut JoinSet<()>) {
    while let Some(ended) = tenants.join_next().await {
        ended.expect("a tenant does not panic");
    }
}

/// Starts workers again that have ended, as whoever runs them does, for as long as it is let.
async fn supervise(stage: Arc<Stage>) {
    loop {
        if let Err(error) = stage.look_at_workers() {
            stage
                .witness
                .accuse(None, format!("a worker does not start again: {error:#}"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Hears of each change of state for as long as it is let.
async fn listen(stage: Arc<Stage>, heard: Arc<Notify>) {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(stage.quiet_options());
    loop {
        if let Ok(mut listener) = PgListener::connect_with(&pool).await
            && listener.listen("boxrun_runs").await.is_ok()
        {
            // None: the connection was lost, and what was said meanwhile.
            while let Ok(Some(news)) = listener.try_recv().await {
                if let Ok(News { run_id, state }) = serde_json::from_str(news.payload()) {
                    stage.witness.announced(run_id, state);
                    heard.notify_waiters();
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
