//! stop: ends a run because somebody asked for it or its deadline passed.

use crate::box_api::answers::{LogPart, StopAnswer, read_stop};
use crate::box_api::{CommandOutput, scripts};
use crate::queue::{ClaimedJob, Interrupt};
use crate::runs::Run;
use crate::runs::decide::{CallFailure, LogRead, StopSeen, after_stop, without_claim};

use super::{Context, calls, commit, place, poll, secrets};

/// Bytes of the log that a stop reads along: it is the last look at what a killed run wrote.
const STOP_MAX_BYTES: u64 = 256 * 1024;

pub(super) async fn handle(context: &Context, job: &ClaimedJob, run: Run) {
    if !run.is_claimed() {
        let last_failure = job.last_error_code.as_deref();
        return commit::step(context, job, run, |run| without_claim(run, last_failure)).await;
    }
    let Some(seen) = kill(context, job, &run).await else {
        return;
    };
    commit::step(context, job, run, |run| after_stop(run, seen.clone())).await;
}

/// Sends the stop script; `None`: the lease was lost meanwhile. A kill in flight is finished at shutdown.
pub(super) async fn kill(context: &Context, job: &ClaimedJob, run: &Run) -> Option<StopSeen> {
    let offset = u64::try_from(run.log_offset).unwrap_or(0);
    let script = scripts::stop(&place(run), offset, STOP_MAX_BYTES, scripts::STOP_GRACE);
    let asked = calls::ask(context, run, &script);
    tokio::pin!(asked);
    let lost = async {
        while job.interrupted().await != Interrupt::LeaseLost {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        answer = &mut asked => match answer {
            Ok(output) => read(context, job, run, offset, &output).await,
            Err(failure) => Some(StopSeen::Failed(failure)),
        },
        () = lost => None,
    }
}

async fn read(context: &Context, job: &ClaimedJob, run: &Run, offset: u64, output: &CommandOutput) -> Option<StopSeen> {
    let masker = match secrets::masker(context, job, run).await? {
        Ok(masker) => Some(masker),
        // The kill counts; of the output nothing may be released.
        Err(error) => {
            tracing::warn!(run_id = %run.id, %error, "the last output of a run can't be redacted, so it is left out");
            None
        }
    };
    let log_of = |log: Option<LogPart>| -> Option<LogRead> {
        let log = log.filter(|log| log.from == offset)?;
        Some(poll::log_read(masker.as_ref()?, run, log.size, &log.data, true))
    };
    Some(match read_stop(&calls::printed(output), offset) {
        StopAnswer::Absent => StopSeen::Absent,
        StopAnswer::Cancelled { log, exit: _ } => StopSeen::Killed { log: log_of(log) },
        StopAnswer::NotCancelled { exit: Some(exit), log } => StopSeen::EndedBefore { exit, log: log_of(log) },
        StopAnswer::NotCancelled { exit: None, log: _ } => StopSeen::StillAlive,
        StopAnswer::Unclear => StopSeen::Failed(CallFailure::unusable("the box's answer to a stop is not whole")),
    })
}
