//! The record of a run.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::types::Json;
use uuid::Uuid;

use super::RunState;
use crate::ids::{BoxId, ConversationId, RunId};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Principal {
    #[serde(rename = "type")]
    pub kind: String,
    pub id: String,
}

impl Principal {
    /// A user of the web app or of the command line.
    #[must_use]
    pub fn user(id: impl Into<String>) -> Self {
        Self {
            kind: "user".to_owned(),
            id: id.into(),
        }
    }
}

impl std::fmt::Display for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.kind, self.id)
    }
}

/// One command on one box: the durable record, as of one statement.
///
/// Offsets count bytes: `log_offset` of the log on the box, the two output offsets of the text released from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub id: RunId,
    pub conversation_id: ConversationId,
    pub box_id: BoxId,
    pub principal_type: String,
    pub principal_id: Option<String>,
    pub command: String,
    pub idempotency_key: String,
    pub cwd: Option<String>,
    pub env: Json<BTreeMap<String, String>>,
    pub run_directory: String,
    pub state: RunState,
    pub exit_status: Option<i16>,
    pub timed_out: bool,
    pub failure_reason: Option<String>,
    pub pid: Option<i64>,
    pub log_offset: i64,
    /// What came before `log_offset`, as the masker carries it on.
    pub log_carried: String,
    /// How often the log began anew.
    pub log_epoch: i64,
    pub final_log_size: Option<i64>,
    pub last_output_offset: i64,
    pub output_base_offset: i64,
    pub box_checked_at: Option<DateTime<Utc>>,
    pub admitted_at: DateTime<Utc>,
    pub dispatch_attempted_at: Option<DateTime<Utc>>,
    pub probe_attempted_at: Option<DateTime<Utc>>,
    pub dispatched_at: Option<DateTime<Utc>>,
    pub started_at: Option<DateTime<Utc>>,
    pub exit_learnt_at: Option<DateTime<Utc>>,
    pub progressed_at: Option<DateTime<Utc>>,
    pub finished_at: Option<DateTime<Utc>>,
    pub cancellation_requested_at: Option<DateTime<Utc>>,
    pub cancellation_effective_at: Option<DateTime<Utc>>,
    pub deadline_at: DateTime<Utc>,
    pub end_verified_at: Option<DateTime<Utc>>,
    /// Its output is redacted by secrets of its own.
    pub has_secrets: bool,
    pub updated_at: DateTime<Utc>,
    // From its job, for people; null once the job is gone.
    pub next_poll_at: Option<DateTime<Utc>>,
    pub last_seen_at: Option<DateTime<Utc>>,
    pub attempts: Option<i32>,
    pub last_error: Option<String>,
    pub last_error_code: Option<String>,
    pub worker: Option<String>,
    /// The database's clock when this was read.
    pub read_at: DateTime<Utc>,
}

impl Run {
    /// Whether a claim stands: the command may have reached the box.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        self.dispatch_attempted_at.is_some()
    }

    /// Whether a cancel was asked for before the deadline, so that it decides how the run ends.
    #[must_use]
    pub fn cancel_wins(&self) -> bool {
        self.cancellation_requested_at.is_some_and(|at| at < self.deadline_at)
    }
}

/// Reads runs by id, in the order of their ids.
pub(super) async fn load(conn: &mut sqlx::PgConnection, ids: &[Uuid]) -> sqlx::Result<Vec<Run>> {
    sqlx::query_file_as!(Run, "src/runs/sql/load.sql", ids)
        .fetch_all(conn)
        .await
}
