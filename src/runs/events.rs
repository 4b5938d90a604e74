//! The timeline of a run: append-only rows of what happened, when, by which worker, and what the box said.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::ids::RunId;

/// One thing that happened. Details hold codes and numbers, never output, commands or secrets.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub name: &'static str,
    pub detail: Value,
}

impl Event {
    /// An event that needs no detail.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            detail: json!({}),
        }
    }

    /// An event with what is worth knowing about it.
    #[must_use]
    pub fn with(name: &'static str, detail: Value) -> Self {
        Self { name, detail }
    }
}

/// A row of the timeline as it is shown.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TimelineEntry {
    #[serde(serialize_with = "super::view::time")]
    pub at: DateTime<Utc>,
    pub event: String,
    pub worker: Option<String>,
    #[schema(value_type = Object)]
    pub detail: Value,
}

/// Adds `events` in their order, at the run's own time.
pub(crate) async fn append(conn: &mut PgConnection, run_id: RunId, worker: &str, events: &[Event]) -> sqlx::Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = events.iter().map(|event| event.name.to_owned()).collect();
    let details: Vec<Value> = events.iter().map(|event| event.detail.clone()).collect();
    sqlx::query!(
        r#"insert into boxrun.run_events (run_id, at, event, worker, detail)
           select r.id, greatest(clock_timestamp(), r.updated_at), e.name, $2, e.detail
             from boxrun.runs r, unnest($3::text[], $4::jsonb[]) with ordinality as e(name, detail, position)
            where r.id = $1
            order by e.position"#,
        run_id.0,
        worker,
        &names,
        &details,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Reads the timeline of a run, oldest first.
///
/// # Errors
/// Only the database's.
pub async fn timeline(conn: &mut PgConnection, run_id: RunId) -> sqlx::Result<Vec<TimelineEntry>> {
    sqlx::query_as!(
        TimelineEntry,
        "select at, event, worker, detail from boxrun.run_events where run_id = $1 order by id",
        run_id.0
    )
    .fetch_all(conn)
    .await
}
