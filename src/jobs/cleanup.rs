//! cleanup: leaves no process, no credential and, after the retention, no directory of an ended run on its box.

use crate::box_api::answers::{CleanupAnswer, read_cleanup};
use crate::box_api::scripts;
use crate::queue::{ClaimedJob, Finish, JobKind, NextJob, Remember};
use crate::runs::Run;
use crate::runs::decide::{CallFailure, CleanupSeen, StopSeen, after_cleanup, after_removal};

use super::{Context, calls, commit, let_go, place, retention_left, stop};

pub(super) async fn handle(context: &Context, job: &ClaimedJob, run: Run) {
    let retention = context.settings.retention;
    if run.end_verified_at.is_none() {
        let Some(seen) = stop::kill(context, job, &run).await else {
            return;
        };
        let seen = match seen {
            StopSeen::Absent | StopSeen::Killed { .. } | StopSeen::EndedBefore { .. } => CleanupSeen::NothingLeft,
            StopSeen::StillAlive => CleanupSeen::StillAlive,
            StopSeen::Failed(failure) => CleanupSeen::Failed(failure),
        };
        return commit::step(context, job, run, |run| after_cleanup(run, seen.clone(), retention)).await;
    }
    let left = retention_left(context, &run);
    if !left.is_zero() {
        let next = NextJob {
            kind: JobKind::Cleanup,
            delay: left,
            not_after: None,
            remember: Remember::Unchanged,
        };
        return commit::finish_alone(context, job, &Finish::Next(next)).await;
    }
    let script = scripts::cleanup(&place(&run));
    let answer = tokio::select! {
        answer = calls::ask(context, &run, &script) => answer,
        why = job.interrupted() => return let_go(context, job, why).await,
    };
    let removed = answer.and_then(|output| match read_cleanup(&calls::printed(&output)) {
        CleanupAnswer::Removed => Ok(()),
        CleanupAnswer::Unclear => Err(CallFailure::unusable(
            "the box did not say that the run directory is gone",
        )),
    });
    commit::step(context, job, run, |run| after_removal(run, removed.clone(), retention)).await;
}
