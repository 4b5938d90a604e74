//! PostgreSQL with durable commits, the provider, and two worker processes.

use std::process::Stdio;
use std::time::Duration;

use boxrun::postgres::{Durability, LocalPostgres, LocalPostgresSettings};
use boxrun::schema;
use serde_json::Value;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions as _, PgConnection, PgPool};
use tokio::process::{Child, Command};
use uuid::Uuid;

use super::Outcome;
use super::provider::Provider;

pub const POLL_INTERVAL: Duration = Duration::from_millis(500);
pub const LEASE: Duration = Duration::from_secs(3);
const MAX_CONNECTIONS: u16 = 60;
const KEY: &str = "bench-key";
/// Ample for one statement of the bench's own while the database is in trouble.
const PATIENCE: Duration = Duration::from_secs(30);
const CLAIM: &str = include_str!("../../src/queue/sql/claim.sql");

pub struct Stage {
    postgres: Option<LocalPostgres>,
    url: String,
    pub provider: Provider,
    /// Of the web app: apart from the workers' connections.
    pub pool: PgPool,
    workers: Vec<Child>,
}

/// What the tables cost.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Cost {
    pub dead_rows: i64,
    pub jobs_bytes: i64,
    /// Pages that one claim reads, from the cache or not.
    pub pages_per_claim: i64,
}

impl Stage {
    pub async fn set(workers: usize) -> Outcome<Self> {
        let postgres = LocalPostgres::temporary_with(LocalPostgresSettings {
            durability: Durability::Kept,
            max_connections: MAX_CONNECTIONS,
            ..Default::default()
        });
        let postgres = postgres.await?;
        let url = postgres.url();
        let options: PgConnectOptions = url.parse()?;
        let pool = PgPoolOptions::new()
            .max_connections(6)
            .acquire_timeout(PATIENCE)
            .connect_with(options.application_name("bench"))
            .await?;
        schema::migrate(&pool).await?;
        let provider = Provider::start().await?;
        let mut stage = Self {
            postgres: Some(postgres),
            url,
            provider,
            pool,
            workers: Vec::new(),
        };
        for _ in 0..workers {
            let worker = stage.spawn_worker()?;
            stage.workers.push(worker);
        }
        Ok(stage)
    }

    fn spawn_worker(&self) -> Outcome<Child> {
        let worker = Command::new(env!("CARGO_BIN_EXE_boxrun"))
            .arg("worker")
            .env_remove("BOXRUN_DATABASE_URL")
            .env("DATABASE_URL", &self.url)
            .env("BOX_API_URL", self.provider.url.as_str())
            .env("BOX_API_KEY", KEY)
            .env("BOXRUN_POLL_INTERVAL_MS", POLL_INTERVAL.as_millis().to_string())
            .env("BOXRUN_LEASE_SECONDS", LEASE.as_secs().to_string())
            .env("BOXRUN_RUN_DIRECTORY_RETENTION_SECONDS", "0")
            .env("RUST_LOG", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(worker)
    }

    /// `kill -9` of one, as a process manager sees it: it is started again at once.
    pub async fn kill_worker(&mut self, index: usize) -> Outcome<()> {
        self.workers[index].kill().await?;
        self.workers[index] = self.spawn_worker()?;
        Ok(())
    }

    /// Workers that have ended by themselves.
    pub fn workers_gone(&mut self) -> Outcome<usize> {
        let mut gone = 0;
        for worker in &mut self.workers {
            gone += usize::from(worker.try_wait()?.is_some());
        }
        Ok(gone)
    }

    pub async fn restart_postgres(&mut self) -> Outcome<()> {
        let postgres = self.postgres.take().ok_or("PostgreSQL is not there")?;
        self.postgres = Some(postgres.restart().await?);
        Ok(())
    }

    /// A connection beside the pool.
    pub async fn connect(&self) -> Outcome<PgConnection> {
        let options: PgConnectOptions = self.url.parse()?;
        Ok(options.application_name("bench").connect().await?)
    }

    pub async fn cost(&self) -> Outcome<Cost> {
        let mut tx = self.pool.begin().await?;
        let explain = format!("explain (analyze, buffers, format json) {CLAIM}");
        let plan: Value = sqlx::query_scalar(sqlx::AssertSqlSafe(explain))
            .bind(Uuid::new_v4())
            .bind(15.0_f64)
            .bind("bench")
            .bind(10_i64)
            .bind(10_i64)
            .bind(10_i64)
            .bind(10_i64)
            .bind(0_i64)
            .bind(0_i64)
            .fetch_one(&mut *tx)
            .await?;
        tx.rollback().await?;
        let pages = |name: &str| plan[0]["Plan"][name].as_i64().unwrap_or_default();
        let pages_per_claim = pages("Shared Hit Blocks") + pages("Shared Read Blocks");
        let (dead_rows, jobs_bytes) = sqlx::query_as(
            "select (select coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables where schemaname = 'boxrun'),
                    pg_total_relation_size('boxrun.jobs')",
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(Cost {
            dead_rows,
            jobs_bytes,
            pages_per_claim,
        })
    }

    /// How many runs there are.
    pub async fn runs(&self) -> Outcome<u64> {
        let count: i64 = sqlx::query_scalar("select count(*) from boxrun.runs")
            .fetch_one(&self.pool)
            .await?;
        Ok(count.unsigned_abs())
    }

    pub async fn strike(mut self) -> Outcome<()> {
        for worker in &mut self.workers {
            worker.kill().await?;
        }
        self.pool.close().await;
        if let Some(postgres) = self.postgres.take() {
            postgres.stop().await?;
        }
        Ok(())
    }
}
