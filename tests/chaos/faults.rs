//! What goes wrong, when, and the log of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use boxrun::ids::BoxId;
use boxrun::sim::{Fault, FaultRule, FaultTarget, Work};
use chrono::{DateTime, Utc};
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::stage::Stage;
use crate::workers::{APPLICATION, LEASE_SECONDS};

/// Between a change of some run's state and the fault that follows it.
const SOON_AFTER_MAX_MS: u64 = 40;
const CLOCK_SHIFTS: [i64; 6] = [-86_400, -3600, -7, 7, 3600, 86_400];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kill,
    Freeze,
    Terminate,
    ClockShift,
    DatabaseRestart,
    DatabaseKill,
    Failover,
    ReadOnly,
    BackendsTerminated,
    ConnectionsCut,
    ConnectionsCutMidway,
    ConnectionsHalfOpen,
    DatabaseDelay,
    CallersCut,
    CallersHalfOpen,
    ProviderDown,
    ProviderCut,
    ProviderHalfOpen,
    RateLimitStorm,
    GatewayStorm,
    BoxRestarted,
    BoxStopped,
}

impl Kind {
    /// Each with its share of all.
    const ALL: [(Self, u32); 22] = [
        (Self::Kill, 16),
        (Self::Freeze, 8),
        (Self::Terminate, 6),
        (Self::ClockShift, 8),
        (Self::DatabaseRestart, 1),
        (Self::DatabaseKill, 1),
        (Self::Failover, 1),
        (Self::ReadOnly, 1),
        (Self::BackendsTerminated, 6),
        (Self::ConnectionsCut, 8),
        (Self::ConnectionsCutMidway, 8),
        (Self::ConnectionsHalfOpen, 4),
        (Self::DatabaseDelay, 2),
        (Self::CallersCut, 8),
        (Self::CallersHalfOpen, 2),
        (Self::ProviderDown, 2),
        (Self::ProviderCut, 8),
        (Self::ProviderHalfOpen, 2),
        (Self::RateLimitStorm, 1),
        (Self::GatewayStorm, 2),
        (Self::BoxRestarted, 3),
        (Self::BoxStopped, 3),
    ];

    fn random(random: &mut StdRng) -> Self {
        let total: u32 = Self::ALL.iter().map(|(_, share)| share).sum();
        let mut left = random.random_range(0..total);
        for (kind, share) in Self::ALL {
            match left.checked_sub(share) {
                Some(rest) => left = rest,
                None => return kind,
            }
        }
        Self::Kill
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Terminate => "terminate",
            Self::ClockShift => "clock",
            Self::DatabaseRestart => "database_restart",
            Self::DatabaseKill => "database_kill",
            Self::Failover => "failover",
            Self::ReadOnly => "read_only",
            Self::BackendsTerminated => "backends_terminated",
            Self::ConnectionsCut => "connections_cut",
            Self::ConnectionsCutMidway => "connections_cut_midway",
            Self::ConnectionsHalfOpen => "connections_half_open",
            Self::DatabaseDelay => "database_delay",
            Self::CallersCut => "callers_cut",
            Self::CallersHalfOpen => "callers_half_open",
            Self::ProviderDown => "provider_down",
            Self::ProviderCut => "provider_cut",
            Self::ProviderHalfOpen => "provider_half_open",
            Self::RateLimitStorm => "rate_limit_storm",
            Self::GatewayStorm => "gateway_storm",
            Self::BoxRestarted => "box_restarted",
            Self::BoxStopped => "box_stopped",
        }
    }
}

/// One fault, or the end of one that lasted.
#[derive(Debug, Clone)]
pub struct LoggedFault {
    pub at: DateTime<Utc>,
    pub kind: &'static str,
    pub detail: String,
    pub box_id: Option<BoxId>,
}

#[derive(Default)]
pub struct FaultLog {
    entries: Mutex<Vec<LoggedFault>>,
    counts: Mutex<BTreeMap<&'static str, usize>>,
}

impl FaultLog {
    fn begin(&self, kind: Kind, detail: String, box_id: Option<&BoxId>) {
        *self
            .counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(kind.name())
            .or_default() += 1;
        self.note(kind, detail, box_id);
    }

    fn note(&self, kind: Kind, detail: String, box_id: Option<&BoxId>) {
        self.entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(LoggedFault {
                at: Utc::now(),
                kind: kind.name(),
                detail,
                box_id: box_id.cloned(),
            });
    }

    pub fn entries(&self) -> Vec<LoggedFault> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Faults of the provider that meet requests by chance, all the time: each with the share of requests that it meets.
pub fn usual_provider_faults() -> Vec<(FaultTarget, Fault, f64)> {
    let rate_limited = Fault::RateLimited {
        retry_after: Some("1".to_owned()),
    };
    let server_error = |status, work| Fault::ServerError { status, work };
    vec![
        (FaultTarget::Dispatch, Fault::LostAnswer, 0.04),
        (FaultTarget::Dispatch, Fault::DelayedDelivery { ms: 2500 }, 0.03),
        (FaultTarget::Dispatch, Fault::Latency { ms: 16_000 }, 0.004),
        (FaultTarget::Dispatch, Fault::SlowAnswer { ms: 22_000 }, 0.004),
        (FaultTarget::Dispatch, server_error(502, Work::Done), 0.02),
        (FaultTarget::Dispatch, server_error(503, Work::NotDone), 0.02),
        (FaultTarget::Stop, Fault::LostAnswer, 0.05),
        (FaultTarget::Probe, Fault::LostAnswer, 0.05),
        (FaultTarget::Probe, Fault::Html { work: Work::NotDone }, 0.05),
        (FaultTarget::Info, server_error(500, Work::NotDone), 0.03),
        (FaultTarget::Poll, Fault::SlowAnswer { ms: 42_000 }, 0.0004),
        (FaultTarget::Command, Fault::LostAnswer, 0.01),
        (FaultTarget::Command, Fault::DroppedRequest, 0.006),
        (FaultTarget::Command, Fault::Latency { ms: 400 }, 0.012),
        (FaultTarget::Command, Fault::SlowAnswer { ms: 1500 }, 0.008),
        (FaultTarget::Command, server_error(502, Work::Done), 0.006),
        (FaultTarget::Command, server_error(504, Work::NotDone), 0.006),
        (FaultTarget::Command, Fault::Html { work: Work::NotDone }, 0.006),
        (FaultTarget::Command, Fault::Html { work: Work::Done }, 0.006),
        (FaultTarget::Any, Fault::NotFoundPage, 0.006),
        (FaultTarget::Command, Fault::TruncatedBody, 0.01),
        (FaultTarget::Command, Fault::DelayedDelivery { ms: 3000 }, 0.006),
        (FaultTarget::Command, rate_limited, 0.002),
        (FaultTarget::Command, Fault::BoxStarting, 0.006),
    ]
}

/// Lets things go wrong until it is enough, and returns once all of them have passed.
pub async fn rage(stage: Arc<Stage>, news: Arc<Notify>, seed: u64, enough: CancellationToken) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    for (on, fault, probability) in usual_provider_faults() {
        let seed = random.next_u64();
        stage.simulator.inject(FaultRule {
            probability: Some(probability),
            seed,
            ..FaultRule::once(on, fault)
        })?;
    }
    let mut lasting = JoinSet::new();
    while !enough.is_cancelled() {
        let next = Instant::now() + Duration::from_millis(random.random_range(100..900));
        let provoked = random.random_bool(0.5);
        let soon = Duration::from_millis(random.random_range(0..SOON_AFTER_MAX_MS));
        let heard = async {
            if provoked {
                news.notified().await;
                sleep(soon).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = heard => {}
            () = sleep_until(next) => {}
            () = enough.cancelled() => break,
        }
        let kind = Kind::random(&mut random);
        let dice = StdRng::seed_from_u64(random.next_u64());
        let stage = Arc::clone(&stage);
        lasting.spawn(async move { strike(&stage, kind, dice).await });
        while let Some(ended) = lasting.try_join_next() {
            ended??;
        }
    }
    while let Some(ended) = lasting.join_next().await {
        ended??;
    }
    Ok(())
}

async fn strike(stage: &Stage, kind: Kind, mut random: StdRng) -> anyhow::Result<()> {
    let log = &stage.faults;
    match kind {
        Kind::Kill | Kind::Freeze | Kind::Terminate | Kind::ClockShift => strike_worker(stage, kind, random).await?,
        Kind::DatabaseRestart | Kind::DatabaseKill | Kind::Failover | Kind::ReadOnly | Kind::BackendsTerminated => {
            strike_database(stage, kind, random).await?;
        }
        Kind::ConnectionsCut => {
            let share = random.random_range(0.1..1.0);
            let cut = stage.worker_way.cut(|_| random.random_bool(share));
            log.begin(kind, format!("{cut} of workers to the database"), None);
        }
        Kind::ConnectionsCutMidway => {
            let bytes = random.random_range(0..600);
            let cut = stage.worker_way.cut_after(bytes, |_| random.random_bool(0.4));
            log.begin(
                kind,
                format!("{cut} of workers to the database, after {bytes} bytes"),
                None,
            );
        }
        Kind::ConnectionsHalfOpen => {
            let count = stage.worker_way.swallow(|_| random.random_bool(0.2));
            log.begin(kind, format!("{count} of workers to the database"), None);
        }
        Kind::DatabaseDelay => {
            let delay = Duration::from_millis(random.random_range(20..300));
            log.begin(kind, format!("{delay:?} between workers and database"), None);
            stage.worker_way.delay(delay);
            sleep(Duration::from_millis(random.random_range(500..3000))).await;
            stage.worker_way.delay(Duration::ZERO);
            log.note(kind, "over".to_owned(), None);
        }
        Kind::CallersCut => {
            let bytes = random.random_range(0..400);
            let cut = stage.caller_way.cut_after(bytes, |_| random.random_bool(0.4));
            log.begin(
                kind,
                format!("{cut} of callers to the database, after {bytes} bytes"),
                None,
            );
        }
        Kind::CallersHalfOpen => {
            let count = stage.caller_way.swallow(|_| random.random_bool(0.2));
            log.begin(kind, format!("{count} of callers to the database"), None);
        }
        Kind::ProviderDown => {
            log.begin(kind, "connections are refused".to_owned(), None);
            stage.provider_way.refuse();
            if random.random_bool(0.5) {
                stage.provider_way.cut(|_| true);
            }
            sleep(Duration::from_millis(random.random_range(200..3000))).await;
            stage.provider_way.accept();
            log.note(kind, "over".to_owned(), None);
        }
        Kind::ProviderCut => {
            let bytes = random.random_range(0..300);
            let cut = stage.provider_way.cut_after(bytes, |_| random.random_bool(0.3));
            log.begin(
                kind,
                format!("{cut} of workers to the provider, after {bytes} bytes"),
                None,
            );
        }
        Kind::ProviderHalfOpen => {
            let count = stage.provider_way.swallow(|_| random.random_bool(0.1));
            log.begin(kind, format!("{count} of workers to the provider"), None);
        }
        Kind::RateLimitStorm | Kind::GatewayStorm => storm(stage, kind, random)?,
        Kind::BoxRestarted | Kind::BoxStopped => strike_box(stage, kind, random).await?,
    }
    Ok(())
}

/// A worker that something is done to already is left alone.
async fn strike_worker(stage: &Stage, kind: Kind, mut random: StdRng) -> anyhow::Result<()> {
    let victim = random.random_range(0..stage.workers.len());
    let Ok(mut worker) = stage.workers[victim].try_lock() else {
        return Ok(());
    };
    let log = &stage.faults;
    let name = worker.name.clone();
    match kind {
        Kind::Kill => {
            log.begin(kind, name, None);
            worker.kill9().await?;
        }
        Kind::Terminate => {
            log.begin(kind, name.clone(), None);
            if let Err(error) = worker.terminate().await {
                stage
                    .witness
                    .accuse(None, format!("worker {name} was asked to end: {error:#}"));
            }
        }
        Kind::ClockShift if stage.clocks_shift => {
            let seconds = CLOCK_SHIFTS[random.random_range(0..CLOCK_SHIFTS.len())];
            log.begin(kind, format!("{name}: {seconds:+} s"), None);
            worker.shift_clock(seconds)?;
        }
        Kind::Freeze => {
            let past = Duration::from_millis(random.random_range(200..3000)) + Duration::from_secs(LEASE_SECONDS);
            log.begin(kind, format!("{name} for {past:?}"), None);
            worker.freeze()?;
            sleep(past).await;
            worker.go_on()?;
            log.note(kind, format!("{name} goes on"), None);
        }
        _ => {}
    }
    Ok(())
}

async fn strike_database(stage: &Stage, kind: Kind, mut random: StdRng) -> anyhow::Result<()> {
    let Ok(mut database) = stage.database.try_lock() else {
        return Ok(());
    };
    let log = &stage.faults;
    match kind {
        Kind::DatabaseRestart => {
            log.begin(kind, String::new(), None);
            database.restart().await?;
        }
        Kind::DatabaseKill => {
            log.begin(kind, String::new(), None);
            database.kill9().await?;
        }
        Kind::Failover => {
            if database.fail_over().await? {
                log.begin(kind, "to the standby".to_owned(), None);
                stage.follow_primary(&database).await?;
                database.add_standby().await?;
                log.note(kind, "a new standby follows".to_owned(), None);
            }
        }
        Kind::ReadOnly => {
            log.begin(kind, "begins".to_owned(), None);
            database.alter("default_transaction_read_only", "on").await?;
            sleep(Duration::from_millis(random.random_range(500..4000))).await;
            database.alter("default_transaction_read_only", "off").await?;
            log.note(kind, "over".to_owned(), None);
        }
        _ => {
            let ended = database.terminate(APPLICATION, random.random_range(1..8)).await?;
            log.begin(kind, format!("{ended} of workers"), None);
        }
    }
    if matches!(kind, Kind::DatabaseRestart | Kind::DatabaseKill) {
        log.note(kind, "it is back".to_owned(), None);
    }
    Ok(())
}

fn storm(stage: &Stage, kind: Kind, mut random: StdRng) -> anyhow::Result<()> {
    // All workers wait when one is told to, so a storm of refusals lasts as long as all these waits together.
    let (times, fault) = if kind == Kind::RateLimitStorm {
        let retry_after = Some(random.random_range(1..3).to_string());
        (random.random_range(2..7), Fault::RateLimited { retry_after })
    } else {
        let fault = Fault::ServerError {
            status: random.random_range(500..505),
            work: if random.random_bool(0.5) {
                Work::Done
            } else {
                Work::NotDone
            },
        };
        (random.random_range(5..40), fault)
    };
    stage
        .faults
        .begin(kind, format!("the next {times} requests: {fault:?}"), None);
    stage.simulator.inject(FaultRule {
        times: Some(times),
        ..FaultRule::once(FaultTarget::Any, fault)
    })?;
    Ok(())
}

async fn strike_box(stage: &Stage, kind: Kind, mut random: StdRng) -> anyhow::Result<()> {
    let id = &stage.boxes[random.random_range(0..stage.boxes.len())];
    let log = &stage.faults;
    log.begin(kind, String::new(), Some(id));
    if kind == Kind::BoxRestarted {
        stage.simulator.restart_box(id).await?;
    } else {
        stage.simulator.stop_box(id).await?;
        sleep(Duration::from_millis(random.random_range(300..6000))).await;
        stage.simulator.resume_box(id).await?;
    }
    log.note(kind, "over".to_owned(), Some(id));
    Ok(())
}
