//! What a job does for its run: one file a kind, the worker process, and reconcile.
//!
//! Each handler looks at the run first (`runs::decide::duty`), makes at most one call to the box, lets a pure decision say
//! what follows, and commits run and job together ([`commit`]). No transaction is open across a call.

mod backoff;
mod calls;
mod cleanup;
mod commit;
mod measure;
mod poll;
pub mod reconcile;
mod secrets;
mod start;
mod stop;
mod throttle;
pub mod worker;

use std::time::Duration;

use chrono::TimeDelta;

use crate::box_api::BoxClient;
use crate::queue::{ClaimedJob, Claimer, Finish, Interrupt, JobKind, LivePool, NextJob, Remember, answered, give_back};
use crate::runs::decide::{Activity, duty};
use crate::runs::masking::Masker;
use crate::runs::{self, Run, SecretKeys};
use throttle::Throttle;

/// What handlers may be told to do otherwise.
#[derive(Debug, Clone)]
pub struct JobSettings {
    pub poll_interval: Duration,
    /// Output kept per run, in bytes.
    pub output_max_bytes: i64,
    /// How long the run directory stays on the box after the run's end.
    pub retention: TimeDelta,
}

/// What every handler works with.
#[derive(Debug)]
pub(crate) struct Context {
    pub pool: LivePool,
    pub client: BoxClient,
    pub claimer: Claimer,
    pub masker: Masker,
    pub secret_keys: Option<SecretKeys>,
    pub throttle: Throttle,
    pub settings: JobSettings,
}

/// Does one job: looks at its run, and does what the run needs, or hands the job on to the kind that does.
///
/// Whatever is logged meanwhile says which run and job it is about. At this level, so that a warning does where less is logged.
#[tracing::instrument(level = "warn", name = "job", skip_all,
    fields(run_id = %job.lease.run_id, kind = %job.kind, worker = context.claimer.worker(), box_id))]
pub(crate) async fn handle(context: &Context, job: ClaimedJob) {
    let found = commit::retrying(&job, "reading a run", || async {
        let mut conn = context.pool.get().acquire().await?;
        runs::read::find(&mut conn, job.lease.run_id).await
    })
    .await;
    let Some(found) = found else { return };
    if let Some(run) = &found {
        tracing::Span::current().record("box_id", tracing::field::display(&run.box_id));
    }
    match found.as_ref().map(duty) {
        // A run that was removed took its job along; one without a duty needs no job.
        None | Some(None) => commit::finish_alone(context, &job, &Finish::Done).await,
        Some(Some(activity)) if kind_of(activity) != job.kind => hand_on(context, &job, kind_of(activity)).await,
        Some(Some(activity)) => {
            let run = found.expect("a duty is a run's");
            match activity {
                Activity::Start => start::handle(context, &job, run).await,
                Activity::Poll => poll::handle(context, &job, run).await,
                Activity::Stop => stop::handle(context, &job, run).await,
                Activity::Cleanup => cleanup::handle(context, &job, run).await,
            }
        }
    }
}

/// Makes the job due now under another kind, so that it is done in a slot of that kind.
async fn hand_on(context: &Context, job: &ClaimedJob, kind: JobKind) {
    let next = NextJob {
        kind,
        delay: Duration::ZERO,
        not_after: None,
        remember: Remember::Unchanged,
    };
    commit::finish_alone(context, job, &Finish::Next(next)).await;
}

/// Makes the job due now for what its run needs, or ends it where the run needs nothing any more.
async fn hand_to_duty(context: &Context, job: &ClaimedJob, run: &Run) {
    match duty(run) {
        Some(activity) => hand_on(context, job, kind_of(activity)).await,
        None => commit::finish_alone(context, job, &Finish::Done).await,
    }
}

/// How much longer the run directory stays on the box.
fn retention_left(context: &Context, run: &Run) -> Duration {
    let ended_at = run.finished_at.unwrap_or(run.read_at);
    (ended_at + context.settings.retention - run.read_at)
        .to_std()
        .unwrap_or_default()
}

/// Lets go of a job whose call was dropped.
async fn let_go(context: &Context, job: &ClaimedJob, why: Interrupt) {
    match why {
        // The finish turns it into a stop.
        Interrupt::Urgent => hand_on(context, job, job.kind).await,
        Interrupt::Shutdown => {
            if let Err(error) = answered(give_back(&context.pool.get(), job.lease)).await {
                tracing::warn!(run_id = %job.lease.run_id, %error, "could not give a job back; its lease lapses");
            }
        }
        Interrupt::LeaseLost => {}
    }
}

fn kind_of(activity: Activity) -> JobKind {
    match activity {
        Activity::Start => JobKind::Start,
        Activity::Poll => JobKind::Poll,
        Activity::Stop => JobKind::Stop,
        Activity::Cleanup => JobKind::Cleanup,
    }
}

fn place(run: &Run) -> crate::box_api::scripts::RunPlace<'_> {
    crate::box_api::scripts::RunPlace {
        run_id: run.id,
        run_directory: &run.run_directory,
    }
}
