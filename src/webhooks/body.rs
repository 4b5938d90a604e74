//! The body of a delivery. It is not stored: it is made of the run, which changes no more once it has ended, so that each
//! attempt has the same, and whoever erases the run erases it everywhere.

use serde::Serialize;

use crate::runs::masking::Masker;
use crate::runs::view::rfc3339;
use crate::runs::{Run, RunView};

/// The one event there is.
pub const RUN_FINISHED: &str = "run.finished";

#[derive(Serialize)]
struct Event {
    #[serde(rename = "type")]
    kind: &'static str,
    timestamp: String,
    data: Data,
}

#[derive(Serialize)]
struct Data {
    run: RunView,
}

/// `run.finished` of an ended run, as JSON.
pub(super) fn run_finished(run: &Run, masker: &Masker) -> Vec<u8> {
    let event = Event {
        kind: RUN_FINISHED,
        timestamp: rfc3339(run.finished_at.unwrap_or(run.updated_at)),
        data: Data {
            run: RunView::of_ended(run, masker),
        },
    };
    serde_json::to_vec(&event).expect("a run is JSON")
}
