//! A run as it is shown to people and programs: by HTTP, in SQL and on the command line alike.

use std::collections::BTreeMap;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use super::masking::Masker;
use super::run::{Principal, Run};
use super::state::RunState;
use crate::ids::{BoxId, ConversationId, RunId};

/// The fields of a run that may be shown. Times are RFC 3339 in UTC with microseconds.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    #[schema(value_type = Uuid)]
    pub id: RunId,
    #[schema(value_type = Uuid)]
    pub conversation_id: ConversationId,
    #[schema(value_type = String, example = "bx_8bhkse3n")]
    pub box_id: BoxId,
    pub principal: Principal,
    pub idempotency_key: String,
    /// Secrets in it are masked.
    pub command: String,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub state: RunState,
    pub exit_status: Option<i16>,
    pub timed_out: bool,
    /// Bytes of output released so far.
    pub output_offset: i64,
    /// The first byte of output that is still kept.
    pub output_base_offset: i64,
    pub failure_reason: Option<String>,
    #[serde(serialize_with = "time")]
    pub admitted_at: DateTime<Utc>,
    #[serde(serialize_with = "time_if_any")]
    pub dispatched_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "time_if_any")]
    pub started_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "time_if_any")]
    pub finished_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "time")]
    pub deadline_at: DateTime<Utc>,
    #[serde(serialize_with = "time_if_any")]
    pub cancellation_requested_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "time_if_any")]
    pub cancellation_effective_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "time_if_any")]
    pub last_seen_at: Option<DateTime<Utc>>,
    #[serde(serialize_with = "time_if_any")]
    pub next_poll_at: Option<DateTime<Utc>>,
    pub attempts: Option<i32>,
    pub last_error: Option<String>,
    pub worker: Option<String>,
}

impl RunView {
    /// What may be shown of `run`.
    #[must_use]
    pub fn of(run: &Run, masker: &Masker) -> Self {
        let mask = |text: &str| masker.mask(text).into_owned();
        Self {
            id: run.id,
            conversation_id: run.conversation_id,
            box_id: run.box_id.clone(),
            principal: Principal {
                kind: run.principal_type.clone(),
                id: run.principal_id.clone().unwrap_or_default(),
            },
            idempotency_key: run.idempotency_key.clone(),
            command: mask(&run.command),
            cwd: run.cwd.clone(),
            env: run
                .env
                .iter()
                .map(|(name, value)| (name.clone(), mask(value)))
                .collect(),
            state: run.state,
            // Before the run is terminal its exit may be known already; it is shown with the state that it leads to.
            exit_status: run.exit_status.filter(|_| run.state.is_terminal()),
            timed_out: run.timed_out,
            output_offset: run.last_output_offset,
            output_base_offset: run.output_base_offset,
            failure_reason: run.failure_reason.clone(),
            admitted_at: run.admitted_at,
            dispatched_at: run.dispatched_at,
            started_at: run.started_at,
            finished_at: run.finished_at,
            deadline_at: run.deadline_at,
            cancellation_requested_at: run.cancellation_requested_at,
            cancellation_effective_at: run.cancellation_effective_at,
            last_seen_at: run.last_seen_at,
            next_poll_at: run.next_poll_at,
            attempts: run.attempts,
            last_error: run.last_error.as_deref().map(mask),
            worker: run.worker.clone(),
        }
    }

    /// An ended run without what is its job's, which goes on to clean up: it is the same whenever it is asked for.
    #[must_use]
    pub fn of_ended(run: &Run, masker: &Masker) -> Self {
        Self {
            last_seen_at: None,
            next_poll_at: None,
            attempts: None,
            last_error: None,
            worker: None,
            ..Self::of(run, masker)
        }
    }
}

/// A time as it is shown everywhere.
#[must_use]
pub fn rfc3339(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

pub(crate) fn time<S: Serializer>(time: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&rfc3339(*time))
}

#[expect(clippy::ref_option, reason = "serde hands fields over by reference")]
pub(crate) fn time_if_any<S: Serializer>(time: &Option<DateTime<Utc>>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(rfc3339).serialize(serializer)
}
