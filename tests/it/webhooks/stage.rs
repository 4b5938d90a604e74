//! A web process with keys, a receiver, and what tests of webhooks do with them.

use boxrun::ids::RunId;
use boxrun::jobs::worker::WorkerOptions;
use boxrun::runs::SecretKeys;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use super::receiver::Receiver;
use crate::support::wait::wait_until;
use crate::support::worker::Worker;
use crate::web::site::{Reply, Site};

pub const KEYS: &str = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=";

pub struct Stage {
    pub site: Site,
    pub receiver: Receiver,
}

/// A row of the outbox.
#[derive(Debug, Clone, PartialEq, sqlx::FromRow)]
pub struct Delivery {
    pub id: Uuid,
    pub run_id: Uuid,
    pub state: String,
    pub attempts: i32,
    pub last_status: Option<i16>,
    pub last_error_code: Option<String>,
    pub last_error: Option<String>,
    pub lease: Option<Uuid>,
    /// Seconds until it is due.
    pub due_in: f64,
}

impl Stage {
    pub async fn open(pool: PgPool) -> Self {
        Self::of(Site::open_with(pool, |options| options.secret_keys = SecretKeys::parse(KEYS).ok()).await).await
    }

    /// As [`Stage::open`], with no more rights than a role has.
    pub async fn open_as(pool: PgPool, role: &str) -> Self {
        let site = Site::open_with(pool, |options| {
            options.secret_keys = SecretKeys::parse(KEYS).ok();
            options.database = options.database.clone().options([("role", role)]);
        });
        Self::of(site.await).await
    }

    async fn of(site: Site) -> Self {
        Self {
            site,
            receiver: Receiver::start().await,
        }
    }

    /// As [`Stage::open`], with a webhook `ci` at the receiver and a worker that serves nothing but webhooks.
    pub async fn delivering(pool: PgPool) -> Self {
        let mut stage = Self::open(pool).await;
        stage.put("ci", &json!({ "url": stage.receiver.url() })).await.is(201);
        stage.start_worker(|_| {});
        stage
    }

    pub fn start_worker(&mut self, change: impl FnOnce(&mut WorkerOptions)) {
        self.site.app.start_worker_with(|options| {
            webhooks_alone(options);
            change(options);
        });
    }

    /// A worker that the test ends by itself.
    pub fn new_worker(&self) -> Worker {
        self.site.app.new_worker(webhooks_alone)
    }

    pub async fn put(&self, name: &str, body: &Value) -> Reply {
        let path = format!("/api/v1/webhooks/{name}");
        self.site.own(Method::PUT, &path).body(body).send().await
    }

    pub async fn deliveries_of(&self, name: &str) -> Vec<Value> {
        let page = self
            .site
            .get(&format!("/api/v1/webhooks/{name}/deliveries"))
            .await
            .is(200);
        page["deliveries"].as_array().expect("a list").clone()
    }

    pub async fn redeliver(&self, name: &str, id: Uuid) -> Reply {
        let path = format!("/api/v1/webhooks/{name}/deliveries/{id}/redeliver");
        self.site.own(Method::POST, &path).send().await
    }

    /// A run that has ended with exit status 0.
    pub async fn ended_run(&self) -> RunId {
        let run = self.site.app.running("make test").await;
        self.site.complete(run).await;
        run
    }

    /// The rows of the outbox, oldest first.
    pub async fn outbox(&self) -> Vec<Delivery> {
        let rows = "select id, run_id, state, attempts, last_status, last_error_code, last_error, lease,
                           extract(epoch from due_at - clock_timestamp())::float8 as due_in
                      from boxrun.webhook_deliveries order by inserted_at, id";
        sqlx::query_as(rows)
            .fetch_all(&self.site.app.pool)
            .await
            .expect("a database")
    }

    /// Waits until the only delivery is as wanted.
    pub async fn wait_until(&self, expected: &str, wanted: impl Fn(&Delivery) -> bool) -> Delivery {
        let seen = wait_until(
            expected,
            async || self.outbox().await,
            |rows| rows.len() == 1 && wanted(&rows[0]),
        );
        seen.await.remove(0)
    }

    /// Waits until the only delivery has been attempted so often, and nobody holds it.
    pub async fn wait_for_attempt(&self, attempts: i32) -> Delivery {
        let expected = format!("{attempts} attempts have ended");
        self.wait_until(&expected, |row| row.attempts == attempts && row.lease.is_none())
            .await
    }

    pub async fn wait_for_state(&self, state: &str) -> Delivery {
        self.wait_until(&format!("the delivery is {state}"), |row| row.state == state)
            .await
    }

    /// The time until the next attempts goes by.
    pub async fn pass_backoff(&self) {
        self.execute(
            "with due as (update boxrun.webhook_deliveries set due_at = clock_timestamp() where state = 'pending' returning id)
             select pg_notify('boxrun_jobs', 'webhook') from due",
        )
        .await;
    }

    /// As if whoever holds deliveries had died long ago.
    pub async fn lapse_leases(&self) {
        self.execute(
            "with lapsed as (update boxrun.webhook_deliveries set lease_until = clock_timestamp()
                              where lease is not null returning id)
             select pg_notify('boxrun_jobs', 'webhook') from lapsed",
        )
        .await;
    }

    pub async fn execute(&self, sql: &'static str) {
        sqlx::query(sql)
            .execute(&self.site.app.pool)
            .await
            .expect("a statement that works");
    }

    pub async fn close(self) {
        self.site.close().await;
    }
}

fn webhooks_alone(options: &mut WorkerOptions) {
    options.concurrency = [0; 4];
    options.webhooks.concurrency = 20;
    options.secret_keys = SecretKeys::parse(KEYS).ok();
}
