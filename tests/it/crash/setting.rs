//! What one test has to itself: PostgreSQL, simulator, a conversation, and a look at what really happened.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::{Path, PathBuf};

use boxrun::ids::{BoxId, ConversationId, RunId};
use boxrun::postgres::{Durability, LocalPostgres, LocalPostgresSettings};
use boxrun::runs::conversations::attach_box;
use boxrun::runs::{self, NewRun, Principal, Run, StartRunError};
use boxrun::schema;
use boxrun::sim::{Fault, FaultRule, FaultTarget, SimOptions, Simulator};
use chrono::{DateTime, Utc};
use futures::FutureExt as _;
use secrecy::SecretString;
use serde_json::Value;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use uuid::Uuid;

use super::command::Printing;
use crate::support::wait::wait_until;

pub const KEY: &str = "crash-test-key";
/// Longer than any test: until the one who waits is killed.
pub const FOR_EVER_MS: u64 = 120_000;
const LOG_TAIL_LINES: usize = 60;

pub struct Setting {
    pub sim: Simulator,
    pub pool: PgPool,
    pub conversation: ConversationId,
    principal: Principal,
    postgres: Option<LocalPostgres>,
    folder: tempfile::TempDir,
}

/// Runs a test in a setting of its own and takes everything down again, also when the test fails.
pub async fn in_setting(durability: Durability, test: impl AsyncFnOnce(&mut Setting)) {
    let mut setting = Setting::new(durability).await;
    let tested = AssertUnwindSafe(test(&mut setting)).catch_unwind().await;
    if tested.is_err() {
        setting.show_logs();
    }
    setting.sim.stop().await;
    setting.pool.close().await;
    let stopped = match setting.postgres {
        Some(postgres) => postgres.stop().await,
        None => Ok(()),
    };
    if let Err(panic) = tested {
        resume_unwind(panic);
    }
    stopped.expect("PostgreSQL stops");
}

impl Setting {
    async fn new(durability: Durability) -> Self {
        let postgres = LocalPostgres::temporary_with(LocalPostgresSettings {
            durability,
            ..Default::default()
        });
        let postgres = postgres.await.expect("a PostgreSQL");
        let folder = tempfile::tempdir().expect("a folder");
        let sim = Simulator::start(SimOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            root: folder.path().join("boxes"),
            key: SecretString::from(KEY),
            boxes: Vec::new(),
            allow_remote: false,
        });
        let sim = sim.await.expect("a simulator");
        let pool = PgPoolOptions::new().max_connections(5).connect(&postgres.url()).await;
        let pool = pool.expect("connections");
        schema::migrate(&pool).await.expect("a schema");
        Self {
            sim,
            pool,
            conversation: ConversationId(Uuid::from_u128(1)),
            principal: Principal::user("crash"),
            postgres: Some(postgres),
            folder,
        }
    }

    pub fn database_url(&self) -> String {
        self.postgres.as_ref().expect("PostgreSQL is there").url()
    }

    pub fn log(&self, worker: &str) -> PathBuf {
        self.folder.path().join(format!("{worker}.log"))
    }

    fn show_logs(&self) {
        let entries = std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten();
        for log in entries
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        {
            eprintln!("--- the end of {}\n{}", log.display(), tail(&log));
        }
    }

    /// Stops the server in an orderly way and starts it again.
    pub async fn restart_postgres(&mut self) {
        let postgres = self.postgres.take().expect("PostgreSQL is there");
        self.postgres = Some(postgres.restart().await.expect("PostgreSQL starts again"));
    }

    /// Kills the server as a crash would and starts it again.
    pub async fn crash_postgres(&mut self) {
        self.postgres.as_mut().expect("PostgreSQL is there").kill9().await;
        self.restart_postgres().await;
    }

    /// Box number `index`.
    #[expect(clippy::unused_self, reason = "boxes are the setting's")]
    pub fn box_id(&self, index: usize) -> BoxId {
        let alphabet: Vec<char> = "23456789abcdefghjkmnpqrstuvwxyz".chars().collect();
        let box_id = format!("bx_222222{}{}", alphabet[index / 31], alphabet[index % 31]);
        box_id.parse().expect("a box id")
    }

    /// Attaches box number `index` to the conversation.
    pub async fn attach(&self, index: usize) -> BoxId {
        let box_id = self.box_id(index);
        let mut tx = self.pool.begin().await.expect("a transaction");
        attach_box(&mut tx, self.conversation, &box_id, &self.principal)
            .await
            .expect("the box is free");
        tx.commit().await.expect("a commit");
        box_id
    }

    /// Admits a run of which the start job has to ask whether its box is ready.
    pub async fn admit(&self, box_id: &BoxId, command: Printing) -> RunId {
        self.try_admit(box_id, command).await.expect("the box is free").id
    }

    pub async fn try_admit(&self, box_id: &BoxId, command: Printing) -> Result<Run, StartRunError> {
        let key = Uuid::now_v7().to_string();
        let (conversation, principal) = (self.conversation, self.principal.clone());
        let new = NewRun::new(conversation, box_id.clone(), principal, command.command(), key);
        let mut tx = self.pool.begin().await?;
        let run = runs::start_run(&mut tx, new).await?;
        tx.commit().await?;
        Ok(run)
    }

    pub async fn cancel(&self, run: RunId) {
        let mut tx = self.pool.begin().await.expect("a transaction");
        runs::cancel(&mut tx, self.conversation, run)
            .await
            .expect("the run is there");
        tx.commit().await.expect("a commit");
    }

    pub async fn run(&self, run: RunId) -> Run {
        let mut conn = self.pool.acquire().await.expect("a connection");
        runs::read::find(&mut conn, run)
            .await
            .expect("the database answers")
            .expect("the run is there")
    }

    pub async fn output(&self, run: RunId) -> String {
        let mut conn = self.pool.acquire().await.expect("a connection");
        let read = runs::read_output(&mut conn, self.conversation, run, 0)
            .await
            .expect("the run is there");
        assert!(!read.truncated, "nothing here is longer than what is kept");
        read.output
    }

    /// Waits until the run has ended, and returns it.
    pub async fn ended(&self, run: RunId) -> Run {
        let look = async || self.run(run).await;
        wait_until("the run has ended", look, |run| run.state.is_terminal()).await
    }

    /// All that the database has of a run: the row, its timeline, output and job.
    pub async fn everything_about(&self, run: RunId) -> Value {
        sqlx::query_scalar(
            "select jsonb_build_object('run', to_jsonb(r),
                'events', (select jsonb_agg(e order by e.id) from boxrun.run_events e where e.run_id = r.id),
                'output', (select jsonb_agg(o order by o.start_offset) from boxrun.run_output o where o.run_id = r.id),
                'jobs', (select jsonb_agg(j) from boxrun.jobs j where j.run_id = r.id))
             from boxrun.runs r where r.id = $1",
        )
        .bind(run.0)
        .fetch_one(&self.pool)
        .await
        .expect("the run is there")
    }

    /// The clock of this machine, which the simulator's record has too.
    pub async fn now(&self) -> DateTime<Utc> {
        sqlx::query_scalar("select clock_timestamp()")
            .fetch_one(&self.pool)
            .await
            .expect("the database answers")
    }

    /// How often the run's command has really started.
    pub fn starts(&self, box_id: &BoxId, run: RunId) -> usize {
        let starts = self.sim.starts(box_id).expect("the simulator's files");
        starts.iter().filter(|start| **start == run.to_string()).count()
    }

    /// The next request of this kind to this box meets the fault.
    pub fn inject(&self, box_id: &BoxId, on: FaultTarget, fault: Fault) {
        let rule = FaultRule {
            box_id: Some(box_id.clone()),
            ..FaultRule::once(on, fault)
        };
        self.sim.inject(rule).expect("a valid rule");
    }

    /// The simulator's record of one run: events of this name about requests of this kind.
    pub fn recorded(&self, run: RunId, event: &str, kind: &str) -> Vec<Value> {
        let record = self.sim.record().expect("the simulator's files");
        let run = run.to_string();
        record
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("the record is JSON lines"))
            .filter(|line| line["run"] == *run && line["event"] == event && line["kind"] == kind)
            .collect()
    }

    /// Waits until the simulator has written down such an event.
    pub async fn wait_for_record(&self, run: RunId, event: &str, kind: &str) {
        let look = async || self.recorded(run, event, kind).len();
        wait_until(&format!("a {kind} of run {run} is {event}"), look, |count| *count > 0).await;
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}
