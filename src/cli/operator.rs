//! `boxrun pause`, `resume`, `drain`, `nudge`: what an operator orders. [`OperatorCommand`] lists these and the looks at the
//! queue, the doctor, completions and manual pages.

use std::process::ExitCode;

use anyhow::bail;
use clap::Subcommand;
use clap_complete::Shell;

use super::desk::Desk;
use super::{doctor, generated, overview};
use crate::ids::RunId;
use crate::queue::JobKind;
use crate::queue::operator::{self, Nudged};
use crate::queue::overview::JobFilter;

#[derive(Debug, Subcommand)]
pub(super) enum OperatorCommand {
    /// Show what is due, scheduled, in hand and failing, per kind of job.
    Queue {
        #[arg(long)]
        json: bool,
    },
    /// List jobs, those due first on top.
    Jobs {
        /// Only jobs that failed since the box last gave a usable answer.
        #[arg(long)]
        failing: bool,
        /// Only this kind.
        #[arg(long)]
        kind: Option<JobKind>,
        /// At most this many.
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: u16,
        #[arg(long)]
        json: bool,
    },
    /// List worker processes.
    Workers {
        #[arg(long)]
        json: bool,
    },
    /// Let no worker claim jobs of this kind until it is resumed; deadlines and cancels go on. `stop` can't be paused.
    Pause {
        kind: JobKind,
        /// For those who wonder later.
        #[arg(long)]
        reason: String,
    },
    /// Let a paused kind go on.
    Resume { kind: JobKind },
    /// Let a worker finish what it has in hand, claim no more, and exit with 0.
    ///
    /// Its process manager may start it again: then it is a new worker with a new id, and works.
    Drain {
        /// Its id, as `boxrun workers` shows it.
        worker: String,
    },
    /// Make the job of a run due now.
    Nudge { run: RunId },
    /// Check configuration, database, provider and workers; exits with 0 if nothing failed, else with 1.
    Doctor {
        #[arg(long)]
        json: bool,
    },
    /// Print completions for a shell.
    Completions { shell: Shell },
    /// Print the manual page, of boxrun or of a subcommand.
    Man { subcommand: Option<String> },
}

pub(super) async fn operate(command: OperatorCommand) -> anyhow::Result<ExitCode> {
    match command {
        OperatorCommand::Queue { json } => overview::queue(json).await,
        OperatorCommand::Jobs {
            failing,
            kind,
            limit,
            json,
        } => overview::jobs(JobFilter { kind, failing, limit }, json).await,
        OperatorCommand::Workers { json } => overview::workers(json).await,
        OperatorCommand::Pause { kind, reason } => pause(kind, &reason).await,
        OperatorCommand::Resume { kind } => resume(kind).await,
        OperatorCommand::Drain { worker } => drain(&worker).await,
        OperatorCommand::Nudge { run } => nudge(run).await,
        OperatorCommand::Doctor { json } => doctor::doctor(json).await,
        OperatorCommand::Completions { shell } => generated::completions(shell),
        OperatorCommand::Man { subcommand } => generated::man(subcommand.as_deref()),
    }
}

async fn pause(kind: JobKind, reason: &str) -> anyhow::Result<ExitCode> {
    match kind {
        JobKind::Stop => bail!(
            "invalid_kind: stops can't be paused: a cancel or a deadline waits for nobody; start, poll and cleanup can be"
        ),
        JobKind::Start | JobKind::Poll | JobKind::Cleanup => {}
    }
    if reason.trim().is_empty() || reason.len() > 1000 {
        bail!("invalid_reason: a reason has 1 to 1000 bytes and is not blank");
    }
    let desk = Desk::open().await?;
    operator::pause(&desk.pool, kind, &desk.principal.to_string(), reason).await?;
    eprintln!("boxrun: {kind} is paused for all workers; `boxrun resume {kind}` lets it go on");
    Ok(ExitCode::SUCCESS)
}

async fn resume(kind: JobKind) -> anyhow::Result<ExitCode> {
    let desk = Desk::open().await?;
    if operator::resume(&desk.pool, kind).await? {
        eprintln!("boxrun: {kind} goes on");
    } else {
        eprintln!("boxrun: {kind} was not paused");
    }
    Ok(ExitCode::SUCCESS)
}

async fn drain(worker: &str) -> anyhow::Result<ExitCode> {
    let desk = Desk::open().await?;
    if !operator::drain(&desk.pool, worker).await? {
        bail!("worker_not_found: there is no worker `{worker}`; `boxrun workers` lists them");
    }
    eprintln!(
        "boxrun: {worker} claims no more and ends once it has nothing in hand; `boxrun workers` shows it until then"
    );
    Ok(ExitCode::SUCCESS)
}

async fn nudge(id: RunId) -> anyhow::Result<ExitCode> {
    let desk = Desk::open().await?;
    let run = desk.find(id).await?;
    match operator::nudge(&desk.pool, id).await? {
        Nudged::Due(kind) => eprintln!("boxrun: the {kind} job of run {id} is due now"),
        Nudged::InHand { kind, worker } => {
            eprintln!("boxrun: the {kind} job of run {id} is in hand of {worker} right now");
        }
        Nudged::NoJob if run.state.is_terminal() => {
            eprintln!("boxrun: run {id} is {} and cleaned up; it has no job", run.state);
        }
        Nudged::NoJob => {
            eprintln!("boxrun: run {id} has no job at the moment; a living worker gives it one within ten seconds");
        }
    }
    Ok(ExitCode::SUCCESS)
}
