//! start: dispatches a run, at most once; in doubt it asks the box, and never sends again.

use std::time::Duration;

use chrono::TimeDelta;

use crate::box_api::answers::{DispatchAnswer, ProbeAnswer, read_dispatch, read_probe};
use crate::box_api::client::Readiness;
use crate::box_api::scripts::{self, Launch};
use crate::queue::{ClaimedJob, Finish, JobKind, NextJob, Remember, answered, hold};
use crate::runs::decide::{BoxSeen, CallFailure, DispatchSeen, ProbeSeen};
use crate::runs::decide::{after_box_check, after_dispatch, after_probe, secrets_unreadable};
use crate::runs::update::{self, RunUpdate};
use crate::runs::{self, Event, Run, events};

use super::{Context, calls, commit, hand_to_duty, let_go, place, secrets};

/// How often a start looks whether an earlier run of its box is verified dead.
const PREDECESSOR_INTERVAL: Duration = Duration::from_secs(1);
/// After the deadline and this, the box ends the command by itself, should no worker be left to do it.
const WATCHDOG_MARGIN: TimeDelta = TimeDelta::seconds(120);

pub(super) async fn handle(context: &Context, job: &ClaimedJob, run: Run) {
    if run.is_claimed() {
        return probe(context, job, run).await;
    }
    if let Some(held) = context.throttle.held() {
        return commit::step(context, job, run, |run| {
            after_box_check(run, BoxSeen::Failed(held.clone()))
        })
        .await;
    }
    if let Some(delay) = context.throttle.starts_held() {
        return wait(context, job, &run, delay).await;
    }
    if run.box_checked_at.is_none()
        && let Err(seen) = check_box(context, &run).await
    {
        return commit::step(context, job, run, |run| after_box_check(run, seen.clone())).await;
    }
    let waits = commit::retrying(job, "looking for an earlier run on the box", || {
        earlier_run_lives(context, &run)
    })
    .await;
    match waits {
        Some(false) => {}
        Some(true) => return wait(context, job, &run, PREDECESSOR_INTERVAL).await,
        None => return,
    }
    dispatch(context, job, run).await;
}

async fn wait(context: &Context, job: &ClaimedJob, run: &Run, delay: Duration) {
    let next = NextJob {
        kind: JobKind::Start,
        delay,
        not_after: Some(run.deadline_at),
        remember: Remember::Unchanged,
    };
    commit::finish_alone(context, job, &Finish::Next(next)).await;
}

/// Whether an earlier run of this box, of whatever conversation, was ended without being seen dead. Its cleanup is then
/// made due now, also while cleanups are paused, and made anew if it had been given up.
async fn earlier_run_lives(context: &Context, run: &Run) -> sqlx::Result<bool> {
    let wake = sqlx::query_scalar!(
        r#"with earlier as (
               select r.id from boxrun.runs r
                where r.box_id = $1 and r.id <> $2 and r.state in ('cancelled', 'timed_out', 'lost')
                  and r.end_verified_at is null and r.dispatch_attempted_at is not null),
           woken as (
               insert into boxrun.jobs as j (run_id, kind, due_at, despite_pause)
               select id, 'cleanup', clock_timestamp(), true from earlier
               on conflict (run_id) do update set due_at = least(j.due_at, clock_timestamp()), despite_pause = true
                where (j.due_at > clock_timestamp() or not j.despite_pause)
                  and (j.lease_until is null or j.lease_until <= clock_timestamp()))
           select count(*) as "count!" from earlier"#,
        run.box_id.as_str(),
        run.id.0
    );
    let woken = answered(wake.fetch_one(&context.pool.get())).await?;
    if woken > 0 {
        context.claimer.due_in(Duration::ZERO);
    }
    Ok(woken > 0)
}

/// Asks the provider whether the box takes commands.
async fn check_box(context: &Context, run: &Run) -> Result<(), BoxSeen> {
    match context.client.get_box(&run.box_id).await {
        Ok(info) => match info.readiness() {
            Readiness::Ready => Ok(()),
            Readiness::Starting => Err(BoxSeen::Starting),
            Readiness::Stopped => Err(BoxSeen::Stopped),
        },
        Err(error) => {
            let failure = calls::failure(error);
            context.throttle.notice(&context.pool.get(), &failure).await;
            Err(BoxSeen::Failed(failure))
        }
    }
}

async fn dispatch(context: &Context, job: &ClaimedJob, run: Run) {
    let secrets = match secrets::open(context, job, &run).await {
        Some(Ok(secrets)) => secrets,
        Some(Err(error)) => return commit::step(context, job, run, |run| secrets_unreadable(run, &error)).await,
        None => return,
    };
    let run = match claim(context, job, run).await {
        Some(Claim::Taken(run)) => run,
        // A cancel came first, or the run is not what it was: look again.
        Some(Claim::Refused(run)) => {
            return hand_to_duty(context, job, &run).await;
        }
        Some(Claim::Fenced) | None => return,
    };
    let watchdog = (run.deadline_at + WATCHDOG_MARGIN - run.read_at)
        .to_std()
        .unwrap_or_default();
    let secret_env: Vec<_> = secrets
        .env
        .iter()
        .map(|(name, secret)| (name.as_str(), secret.expose()))
        .collect();
    let git = secrets.git_credential.as_ref().map(secrets::GitLines::of);
    let launch = Launch {
        command: &run.command,
        cwd: run.cwd.as_deref(),
        env: &run.env,
        secret_env: &secret_env,
        git: git.as_ref().map(secrets::GitLines::login),
        watchdog,
    };
    let script = scripts::dispatch(&place(&run), &launch);
    let seen = match calls::dispatch(context, &run, &script).await {
        Ok(output) => match read_dispatch(&calls::printed(&output)) {
            DispatchAnswer::Started { pid } => DispatchSeen::Started { pid },
            DispatchAnswer::AlreadyThere => DispatchSeen::AlreadyThere,
            DispatchAnswer::Tombstone => DispatchSeen::Tombstone,
            DispatchAnswer::Refused { what } => DispatchSeen::Refused { what },
            DispatchAnswer::Unclear => {
                DispatchSeen::Failed(CallFailure::unusable("the box's answer to a dispatch is not whole"))
            }
        },
        Err(failure) => DispatchSeen::Failed(failure),
    };
    commit::step(context, job, run, |run| after_dispatch(run, seen.clone())).await;
}

#[derive(Debug)]
enum Claim {
    /// Durable: from here on the command may reach the box.
    Taken(Run),
    Refused(Run),
    Fenced,
}

/// Takes the dispatch claim, durably, before anything is sent. `None`: the database stayed out of reach.
///
/// A commit whose answer was lost is not an unknown: whoever holds the lease is the only one who claims, so a claim found
/// under the same lease is our own, and nothing was sent under it yet.
async fn claim(context: &Context, job: &ClaimedJob, run: Run) -> Option<Claim> {
    commit::retrying(job, "claiming a dispatch", || async {
        let mut tx = context.pool.get().begin().await?;
        let Some(now) = runs::read::find(&mut tx, run.id).await? else {
            return Ok(Claim::Fenced);
        };
        if !now.is_claimed() {
            let update = RunUpdate::claim_dispatch(&now);
            let applied = update::apply(&mut tx, &now, &update, context.settings.output_max_bytes).await?;
            if applied.is_none() {
                tx.rollback().await?;
                let mut conn = context.pool.get().acquire().await?;
                let now = runs::read::find(&mut conn, run.id).await?;
                return Ok(now.map_or(Claim::Fenced, Claim::Refused));
            }
            events::append(
                &mut tx,
                run.id,
                context.claimer.worker(),
                &[Event::new("dispatch_attempted")],
            )
            .await?;
        }
        if !hold(&mut tx, job.lease).await? {
            return Ok(Claim::Fenced);
        }
        let claimed = runs::read::find(&mut tx, run.id).await?;
        tx.commit().await?;
        Ok(claimed.map_or(Claim::Fenced, Claim::Taken))
    })
    .await
}

/// Asks the box whether it has the run: a claim stands, and what became of its dispatch is not known.
async fn probe(context: &Context, job: &ClaimedJob, run: Run) {
    let Some(Some(run)) = note_probe(context, job, run).await else {
        return;
    };
    let script = scripts::probe(&place(&run));
    let answer = tokio::select! {
        answer = calls::ask(context, &run, &script) => answer,
        why = job.interrupted() => return let_go(context, job, why).await,
    };
    let seen = match answer {
        Ok(output) => match read_probe(&calls::printed(&output)) {
            ProbeAnswer::Absent => ProbeSeen::Absent,
            ProbeAnswer::Present { pid } => ProbeSeen::Present { pid },
            ProbeAnswer::Unclear => {
                ProbeSeen::Failed(CallFailure::unusable("the box's answer to a probe is not whole"))
            }
        },
        Err(failure) => ProbeSeen::Failed(failure),
    };
    commit::step(context, job, run, |run| after_probe(run, seen.clone())).await;
}

/// Writes down that the box is asked, before it is: from here on the claim is never released.
async fn note_probe(context: &Context, job: &ClaimedJob, run: Run) -> Option<Option<Run>> {
    if run.probe_attempted_at.is_some() {
        return Some(Some(run));
    }
    commit::retrying(job, "noting a probe", || async {
        let mut tx = context.pool.get().begin().await?;
        let Some(now) = runs::read::find(&mut tx, run.id).await? else {
            return Ok(None);
        };
        let update = RunUpdate::probe_attempted(&now);
        if now.state.is_terminal() {
            return Ok(None);
        }
        let applied = update::apply(&mut tx, &now, &update, context.settings.output_max_bytes).await?;
        if applied.is_none() {
            return Ok(None);
        }
        events::append(
            &mut tx,
            run.id,
            context.claimer.worker(),
            &[Event::new("probe_attempted")],
        )
        .await?;
        if !hold(&mut tx, job.lease).await? {
            return Ok(None);
        }
        tx.commit().await?;
        let mut conn = context.pool.get().acquire().await?;
        runs::read::find(&mut conn, run.id).await
    })
    .await
}
