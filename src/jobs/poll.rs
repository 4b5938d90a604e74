//! poll: reads what is new in the log, whether the run is alive, and whether it ended.

use crate::box_api::answers::{PollAnswer, PollReport, read_poll};
use crate::box_api::{CommandOutput, scripts};
use crate::queue::ClaimedJob;
use crate::runs::Run;
use crate::runs::decide::{CallFailure, LogRead, PollSeen, after_poll};
use crate::runs::masking::{Carried, HELD_MAX_BYTES, LogEnd, Masker};

use super::{Context, calls, commit, let_go, place, secrets};

/// Bytes of the log that one poll asks for; base64 makes a third more of them, well below what an answer may have.
pub(super) const POLL_MAX_BYTES: i64 = 256 * 1024;
/// The smallest request after answers that the provider cut: more than is held back at most, so that reading goes on.
const POLL_MIN_BYTES: i64 = 16 * 1024;
#[expect(clippy::cast_possible_truncation, reason = "a constant, and a small one")]
const _: () = assert!(POLL_MIN_BYTES as usize > HELD_MAX_BYTES);

pub(super) async fn handle(context: &Context, job: &ClaimedJob, run: Run) {
    let offset = u64::try_from(run.log_offset).unwrap_or(0);
    let max_bytes = u64::try_from(request_bytes(job)).unwrap_or(0);
    let script = scripts::poll(&place(&run), offset, max_bytes);
    let answer = tokio::select! {
        answer = calls::ask(context, &run, &script) => answer,
        why = job.interrupted() => return let_go(context, job, why).await,
    };
    let seen = match answer {
        Ok(output) => match secrets::masker(context, job, &run).await {
            Some(Ok(masker)) => read(&masker, &run, offset, &output),
            // Without the run's secrets nothing of its output may be released.
            Some(Err(error)) => PollSeen::Failed(secrets::unreadable(&error)),
            None => return,
        },
        Err(failure) => PollSeen::Failed(failure),
    };
    commit::step(context, job, run, |run| after_poll(run, seen.clone())).await;
}

fn request_bytes(job: &ClaimedJob) -> i64 {
    job.poll_max_bytes
        .unwrap_or(POLL_MAX_BYTES)
        .clamp(POLL_MIN_BYTES, POLL_MAX_BYTES)
}

/// The request after an answer that the provider cut.
pub(super) fn smaller(job: &ClaimedJob) -> i64 {
    (request_bytes(job) / 2).max(POLL_MIN_BYTES)
}

fn read(masker: &Masker, run: &Run, offset: u64, output: &CommandOutput) -> PollSeen {
    match read_poll(&calls::printed(output), offset) {
        PollAnswer::Absent => PollSeen::Absent,
        PollAnswer::Truncated => PollSeen::Cut,
        PollAnswer::Unclear => PollSeen::Failed(CallFailure::unusable("the box's answer to a poll is not whole")),
        PollAnswer::Present(report) if report.from != offset => PollSeen::Failed(CallFailure::unusable(
            "the box answered for another offset than was asked",
        )),
        PollAnswer::Present(report) => present(masker, run, &report),
    }
}

fn present(masker: &Masker, run: &Run, report: &PollReport) -> PollSeen {
    // Nobody writes to the log any more: the run has exited, or its process is gone.
    let closed = report.exit.is_some() || run.exit_status.is_some() || !report.alive;
    PollSeen::Present {
        log: log_read(masker, run, report.size, &report.data, closed),
        exit: report.exit,
        killed: report.killed,
        alive: report.alive,
        never_started: report.never_started,
        restarted: report.restarted,
    }
}

/// Releases what was read of the log from the run's offset on.
pub(super) fn log_read(masker: &Masker, run: &Run, size: u64, data: &[u8], closed: bool) -> LogRead {
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    let read_to = run.log_offset + i64::try_from(data.len()).unwrap_or(i64::MAX);
    // A run whose exit is known is read up to the size that its log had then, whatever is written to it since.
    let end = run.final_log_size.map_or(size, |known| known.min(size));
    let data = match usize::try_from(end - run.log_offset) {
        Ok(wanted) => &data[..data.len().min(wanted)],
        Err(_) => &[],
    };
    let carried = Carried::from_words(&run.log_carried);
    let whole = closed && read_to >= end;
    let released = masker.release(data, if whole { LogEnd::Reached } else { LogEnd::Open }, carried);
    let last = if closed && !whole {
        masker.release(data, LogEnd::Lost, carried)
    } else {
        released.clone()
    };
    LogRead {
        size,
        read: i64::try_from(data.len()).unwrap_or(i64::MAX),
        released,
        last,
    }
}
