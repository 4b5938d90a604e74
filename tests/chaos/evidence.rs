//! What there is to judge a run by: the database's rows, the simulator's own record, and what callers saw.

use std::collections::HashMap;

use anyhow::Context as _;
use boxrun::ids::RunId;
use boxrun::runs::{self, OutputRead, Run};
use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection, Row as _};

use crate::stage::Stage;

/// All about one run.
pub struct Evidence {
    pub run: Run,
    pub output: OutputRead,
    pub events: Vec<Event>,
    pub job: Option<String>,
    /// What the simulator wrote down about it.
    pub record: Vec<Value>,
    /// How often its command began.
    pub starts: usize,
}

#[derive(Debug)]
pub struct Event {
    pub at: DateTime<Utc>,
    pub name: String,
    pub worker: Option<String>,
    pub detail: Value,
}

impl Evidence {
    pub fn has_event(&self, name: &str) -> bool {
        self.events.iter().any(|event| event.name == name)
    }

    pub fn recorded<'a>(&'a self, event: &'a str, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.record
            .iter()
            .filter(move |line| line["event"] == event && line["kind"] == kind)
    }
}

/// Everything in the database and the record, by run.
pub struct Archive {
    pub runs: HashMap<RunId, Evidence>,
    /// Requests that met a fault of the provider, by the fault's kind.
    pub provider_faults: HashMap<String, usize>,
}

impl Archive {
    pub async fn open(stage: &Stage) -> anyhow::Result<Self> {
        let mut conn = PgConnection::connect_with(&stage.quiet_options()).await?;
        let mut records: HashMap<String, Vec<Value>> = HashMap::new();
        let mut provider_faults: HashMap<String, usize> = HashMap::new();
        for line in stage.simulator.record()?.lines() {
            let line: Value = serde_json::from_str(line).context("the record is JSON lines")?;
            if let Some(kind) = line["fault"]["kind"].as_str() {
                *provider_faults.entry(kind.to_owned()).or_default() += 1;
            }
            if let Some(run) = line["run"].as_str() {
                records.entry(run.to_owned()).or_default().push(line);
            }
        }
        let mut starts: HashMap<String, usize> = HashMap::new();
        for id in &stage.boxes {
            for start in stage.simulator.starts(id)? {
                *starts.entry(start).or_default() += 1;
            }
        }
        let ids: Vec<uuid::Uuid> = sqlx::query_scalar("select id from boxrun.runs")
            .fetch_all(&mut conn)
            .await?;
        let mut found = HashMap::new();
        for id in ids.into_iter().map(RunId) {
            let name = id.to_string();
            let evidence = Evidence {
                run: runs::get_run(&mut conn, stage.conversation, id).await?,
                output: runs::read_output(&mut conn, stage.conversation, id, 0).await?,
                events: events(&mut conn, id).await?,
                job: sqlx::query_scalar("select kind from boxrun.jobs where run_id = $1")
                    .bind(id.0)
                    .fetch_optional(&mut conn)
                    .await?,
                record: records.remove(&name).unwrap_or_default(),
                starts: starts.get(&name).copied().unwrap_or(0),
            };
            found.insert(id, evidence);
        }
        conn.close().await?;
        Ok(Self {
            runs: found,
            provider_faults,
        })
    }
}

async fn events(conn: &mut PgConnection, id: RunId) -> anyhow::Result<Vec<Event>> {
    let rows = sqlx::query("select at, event, worker, detail from boxrun.run_events where run_id = $1 order by id")
        .bind(id.0)
        .fetch_all(conn)
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Event {
                at: row.try_get("at")?,
                name: row.try_get("event")?,
                worker: row.try_get("worker")?,
                detail: row.try_get("detail")?,
            })
        })
        .collect()
}
