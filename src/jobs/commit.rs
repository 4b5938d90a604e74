//! Committing what a job decided: run and job in one transaction, fenced by the lease.

use std::fmt::Debug;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use chrono::{DateTime, Utc};

use crate::queue::{self, ClaimedJob, Finish, Interrupt, JobKind, NextJob, Remember};
use crate::runs::decide::{Heard, Next, Step, When};
use crate::runs::{self, Run, events, update};
use crate::telemetry;

use super::{Context, backoff, hand_to_duty, kind_of, measure, poll, retention_left};

/// An outcome that the database does not take is tried again for so long: an outage is survived, and what was learnt of
/// the box is not thrown away.
const PATIENCE: Duration = Duration::from_mins(2);
/// How often a run that changed meanwhile is decided anew.
const DECISIONS_MAX: usize = 5;

/// What became of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Committed {
    /// With the time of the change; `None`: the run did not change.
    Yes(Option<DateTime<Utc>>),
    /// The run was not as expected: decide again.
    Stale,
    /// Somebody else holds the job: nothing was changed.
    Fenced,
}

impl Committed {
    /// The word in the metrics.
    fn as_str(self) -> &'static str {
        match self {
            Self::Yes(_) => "committed",
            Self::Stale => "stale",
            Self::Fenced => "fenced",
        }
    }
}

/// Decides and commits. `decide` is called again where the run changed meanwhile, for example because a cancel came in.
pub(super) async fn step(context: &Context, job: &ClaimedJob, run: Run, decide: impl Fn(&Run) -> Step) {
    let (state, log_offset) = (run.state, run.log_offset);
    let mut run = run;
    for _ in 0..DECISIONS_MAX {
        let step = decide(&run);
        let committing = || measure::timed(commit(context, job, &run, &step), |committed| committed.as_str());
        let Some(committed) = retrying(job, "committing an outcome", committing).await else {
            return;
        };
        match committed {
            Committed::Yes(changed_at) => {
                if let Some(at) = changed_at {
                    measure::committed(&run, &step, at);
                }
                return log(&run, &step);
            }
            Committed::Fenced => {
                tracing::debug!(run_id = %run.id, "another worker has the job; this outcome is dropped");
                return;
            }
            Committed::Stale => {}
        }
        let reread = retrying(job, "reading a run", || async {
            let mut conn = context.pool.get().acquire().await?;
            runs::read::find(&mut conn, run.id).await
        });
        match reread.await {
            // What was observed still tells something: only a caller's wish came in between.
            Some(Some(now)) if now.state == state && now.log_offset == log_offset => run = now,
            Some(Some(now)) => {
                return hand_to_duty(context, job, &now).await;
            }
            Some(None) | None => return,
        }
    }
    tracing::error!(run_id = %run.id, "the run kept changing while its job was finished");
}

async fn commit(context: &Context, job: &ClaimedJob, run: &Run, step: &Step) -> sqlx::Result<Committed> {
    let finish = finish_of(context, job, run, &step.next);
    let mut tx = context.pool.get().begin().await?;
    let mut changed_at = None;
    if !step.update.is_quiet() {
        changed_at = update::apply(&mut tx, run, &step.update, context.settings.output_max_bytes).await?;
        if changed_at.is_none() {
            return Ok(Committed::Stale);
        }
    }
    events::append(&mut tx, run.id, context.claimer.worker(), &step.events).await?;
    if !queue::finish(&mut tx, job.lease, &finish).await? {
        return Ok(Committed::Fenced);
    }
    tx.commit().await?;
    wake(context, &finish);
    Ok(Committed::Yes(changed_at))
}

/// Finishes a job whose run does not change.
pub(super) async fn finish_alone(context: &Context, job: &ClaimedJob, finish: &Finish) {
    let finished = retrying(job, "finishing a job", || {
        let finishing = async {
            let mut conn = context.pool.get().acquire().await?;
            queue::finish(&mut conn, job.lease, finish).await
        };
        measure::timed(finishing, |held| if *held { "committed" } else { "fenced" })
    });
    if finished.await == Some(true) {
        wake(context, finish);
    }
}

/// The claimer of this process learns at once when the job that it just finished is due again.
fn wake(context: &Context, finish: &Finish) {
    if let Finish::Next(next) = finish {
        context.claimer.due_in(next.delay);
    }
}

/// Runs a piece of database work until it succeeds. `None`: the lease is lost, the process shuts down, or the database
/// stayed out of reach; the lease lapses then, and another worker goes on.
pub(super) async fn retrying<T, F>(job: &ClaimedJob, what: &str, work: impl Fn() -> F) -> Option<T>
where
    T: Debug,
    F: Future<Output = sqlx::Result<T>>,
{
    let mut delays = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(1))
        .with_jitter()
        .without_max_times()
        .with_total_delay(Some(PATIENCE))
        .build();
    loop {
        let error = match queue::answered(Box::pin(work())).await {
            Ok(done) => return Some(done),
            Err(error) => error,
        };
        telemetry::database_retried();
        let Some(delay) = delays.next() else {
            tracing::error!(run_id = %job.lease.run_id, %error, "{what} failed for too long; its lease lapses");
            return None;
        };
        tracing::debug!(run_id = %job.lease.run_id, %error, "{what} failed; trying again");
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            why = job.interrupted() => match why {
                Interrupt::LeaseLost => return None,
                Interrupt::Shutdown | Interrupt::Urgent => tokio::time::sleep(delay).await,
            },
        }
    }
}

fn finish_of(context: &Context, job: &ClaimedJob, run: &Run, next: &Next) -> Finish {
    let Some(activity) = next.activity else {
        return Finish::Done;
    };
    let kind = kind_of(activity);
    let failures = if kind == job.kind {
        u32::try_from(job.attempts).unwrap_or(0)
    } else {
        0
    };
    let retry_after = match &next.heard {
        Heard::Failure(fault) => fault.retry_after,
        Heard::Nothing | Heard::Answer | Heard::Cut => None,
    };
    let delay = match next.when {
        When::Now => Duration::ZERO,
        When::Interval => context.settings.poll_interval,
        When::After(delay) => delay.max(retry_after.unwrap_or_default()),
        When::Backoff => backoff::delay(paced_as(kind, run), failures + 1, retry_after, random()),
        When::Retention => retention_left(context, run),
    };
    let remember = match &next.heard {
        Heard::Nothing => Remember::Unchanged,
        Heard::Answer => Remember::Answer,
        Heard::Failure(fault) => Remember::Failure {
            code: fault.code,
            text: fault.text.clone(),
        },
        Heard::Cut => Remember::Cut {
            poll_max_bytes: poll::smaller(job),
        },
    };
    let not_after = (kind != JobKind::Cleanup).then_some(run.deadline_at);
    Finish::Next(NextJob {
        kind,
        delay,
        not_after,
        remember,
    })
}

/// A probe is a start's, and asked again as often as a poll: the run may be going on already.
fn paced_as(kind: JobKind, run: &Run) -> JobKind {
    match kind {
        JobKind::Start if run.probe_attempted_at.is_some() => JobKind::Poll,
        JobKind::Start | JobKind::Poll | JobKind::Stop | JobKind::Cleanup => kind,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where jobs draw their jitter; decisions take it as an argument"
)]
fn random() -> f64 {
    rand::random()
}

fn log(run: &Run, step: &Step) {
    for event in &step.events {
        tracing::info!(run_id = %run.id, box_id = %run.box_id, event = event.name, detail = %event.detail, "run");
    }
    if let Heard::Failure(fault) = &step.next.heard {
        tracing::debug!(run_id = %run.id, box_id = %run.box_id, code = fault.code, error = fault.text, "no usable answer");
    }
}
