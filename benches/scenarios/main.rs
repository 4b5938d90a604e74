//! What the queue does in nine kinds of trouble: `bin/scenarios --help`, and docs/scenarios.md.
//!
//! Each goes through three phases, before, trouble and after, under the same load, so that every figure has its own
//! baseline from the same minute on the same machine.

mod figures;
mod load;
mod provider;
mod stage;
mod trouble;

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum as _};
use serde::Serialize;

use figures::{Phase, recovery};
use load::{Ledger, Load};
use stage::{Cost, POLL_INTERVAL, Stage};
use trouble::Trouble;

/// Each has one live run.
const CALLERS: usize = 60;
const WORKERS: usize = 2;
/// Caches are filled and runs are spread over the interval.
const WARM_UP: Duration = Duration::from_secs(4);
/// The phase after is as much longer as it takes until all is as before, but not more than this.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// Trouble that is over at once is looked at for so long.
const TROUBLE_MIN: Duration = Duration::from_secs(4);

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Puts the queue into nine kinds of trouble and says what is lost and how long it takes until all is as before.
#[derive(Parser)]
#[command(name = "bin/scenarios")]
struct Arguments {
    /// Which ones; all without.
    names: Vec<Trouble>,
    /// How long each of the phases before, trouble and after lasts.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,
    /// One line of JSON for each.
    #[arg(long)]
    json: bool,
    /// Only name them.
    #[arg(long)]
    list: bool,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    scenario: String,
    before: Phase,
    trouble: Phase,
    after: Phase,
    /// From the end of the trouble; none: not within a minute.
    recovery_seconds: Option<f64>,
    completed: usize,
    /// Said to be lost as `dispatch_ambiguous`: never started, and the caller was told so.
    said_lost: usize,
    /// Whether the trouble can explain those.
    may_say_lost: bool,
    /// Runs that callers were told of and that are not there, or the other way round.
    unaccounted: u64,
    never_ended: usize,
    wrong_output: usize,
    dispatched_again: usize,
    workers_gone: usize,
    cost_before: Cost,
    cost_at_the_end_of_trouble: Cost,
}

impl Report {
    fn is_good(&self) -> bool {
        let wrong = self.never_ended + self.wrong_output + self.dispatched_again + self.workers_gone;
        let is_measured = self.completed > 0 && self.before.polls_per_second > 0.0;
        let is_explained = self.said_lost == 0 || self.may_say_lost;
        wrong == 0 && self.unaccounted == 0 && is_explained && is_measured && self.recovery_seconds.is_some()
    }
}

#[tokio::main]
async fn main() -> Outcome<ExitCode> {
    let arguments = Arguments::parse();
    // Under `cargo test --all-targets` there is nothing to measure.
    if !arguments.bench && arguments.names.is_empty() && !arguments.list {
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.list {
        for trouble in Trouble::value_variants() {
            println!("{:<20} {}", trouble.name(), trouble.about());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let names = if arguments.names.is_empty() {
        Trouble::value_variants().to_vec()
    } else {
        arguments.names
    };
    let mut bad = 0;
    for trouble in &names {
        let report = scenario(*trouble, Duration::from_secs(arguments.seconds)).await?;
        if arguments.json {
            println!("{}", serde_json::to_string(&report)?);
        } else {
            print(&report);
        }
        bad += usize::from(!report.is_good());
    }
    if !arguments.json {
        println!("{} scenarios, {bad} not as they should be", names.len());
    }
    Ok(ExitCode::from(u8::from(bad > 0)))
}

async fn scenario(trouble: Trouble, time: Duration) -> Outcome<Report> {
    let mut stage = Stage::set(WORKERS).await?;
    let mut load = Load::new(stage.pool.clone());
    load.add(CALLERS);
    tokio::time::sleep(WARM_UP).await;

    let begin = Instant::now();
    tokio::time::sleep(time).await;
    let cost_before = stage.cost().await?;
    let struck = Instant::now();
    let over = trouble.happen(&mut stage, &mut load, time).await?;
    let cost_at_the_end_of_trouble = stage.cost().await?;
    let calm = over.max(struck + TROUBLE_MIN);
    tokio::time::sleep_until((calm + time).into()).await;
    let rate_before = Phase::of(&stage.provider.polls(), &[], begin, struck, POLL_INTERVAL);
    let recovered = |now| recovery(&stage.provider.polls(), &rate_before, over, now, POLL_INTERVAL);
    while recovered(Instant::now()).is_none() && over.elapsed() < RECOVERY_MAX {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let end = Instant::now();
    let recovered = recovered(end);
    let workers_gone = stage.workers_gone()?;
    load.drain().await?;

    let (polls, starts) = (stage.provider.polls(), start_times(&stage, &load.ledger));
    let phase = |from: Instant, to: Instant| {
        let in_phase = starts.iter().filter(|(at, _)| *at >= from && *at < to);
        let starts: Vec<Duration> = in_phase.map(|(_, took)| *took).collect();
        Phase::of(&polls, &starts, from, to, POLL_INTERVAL)
    };
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let report = Report {
        scenario: trouble.name(),
        before: phase(begin, struck),
        trouble: phase(struck, calm),
        after: phase(calm, end),
        recovery_seconds: recovered.map(|took| took.as_secs_f64()),
        completed: count(&load.ledger.completed),
        said_lost: count(&load.ledger.said_lost),
        may_say_lost: trouble.breaks_something(),
        unaccounted: stage
            .runs()
            .await?
            .abs_diff(u64::try_from(load.ledger.admitted().len())?),
        never_ended: count(&load.ledger.never_ended),
        wrong_output: count(&load.ledger.wrong_output),
        dispatched_again: stage.provider.dispatched_again(),
        workers_gone,
        cost_before,
        cost_at_the_end_of_trouble,
    };
    stage.strike().await?;
    Ok(report)
}

/// When each run was admitted, and how long it took from there to its dispatch.
fn start_times(stage: &Stage, ledger: &Ledger) -> Vec<(Instant, Duration)> {
    let started: std::collections::HashMap<_, _> = stage.provider.starts().into_iter().collect();
    let admitted = ledger.admitted();
    let known = admitted
        .into_iter()
        .filter_map(|(run, at)| Some((at, *started.get(&run)?)));
    known
        .map(|(at, started)| (at, started.saturating_duration_since(at)))
        .collect()
}

fn print(report: &Report) {
    println!("{}", report.scenario);
    println!("           polls/s  of before   late p50   late p99   start p50   start p99   (milliseconds)");
    for (name, phase) in [
        ("before", &report.before),
        ("trouble", &report.trouble),
        ("after", &report.after),
    ] {
        println!(
            "  {name:<8} {:>7.0} {:>9.0} %   {:>8.0}   {:>8.0}   {:>9.0}   {:>9.0}",
            phase.polls_per_second,
            100.0 * phase.polls_per_second / report.before.polls_per_second,
            phase.lateness_ms_p50,
            phase.lateness_ms_p99,
            phase.start_ms_p50,
            phase.start_ms_p99,
        );
    }
    let (before, then) = (&report.cost_before, &report.cost_at_the_end_of_trouble);
    println!(
        "  dead rows {} → {}, jobs {} → {} KiB, pages a claim {} → {}",
        before.dead_rows,
        then.dead_rows,
        before.jobs_bytes / 1024,
        then.jobs_bytes / 1024,
        before.pages_per_claim,
        then.pages_per_claim,
    );
    let recovered = report
        .recovery_seconds
        .map_or("not".to_owned(), |took| format!("after {took:.1} s"));
    println!(
        "  as before {recovered}; {} completed, {} said to be lost; {} never ended, {} with wrong output, {} dispatched \
         again, {} unaccounted for, {} workers gone\n",
        report.completed,
        report.said_lost,
        report.never_ended,
        report.wrong_output,
        report.dispatched_again,
        report.unaccounted,
        report.workers_gone,
    );
}
