//! The app of one test: its own database, a scripted box, and workers in process.
//!
//! ```ignore
//! let app = App::start(pool, [started(4242), says("PRESENT=1 SIZE=0 DATA= EXIT=0 ALIVE=0")]).await;
//! let run = app.admit("echo one").await;
//! app.wait_for(run, RunState::Completed).await;
//! app.finish().await;
//! ```

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::atomic::{AtomicUsize, Ordering};

use boxrun::ids::{BoxId, ConversationId, RunId};
use boxrun::jobs::worker::WorkerOptions;
use boxrun::queue::JobKind;
use boxrun::runs::conversations::attach_box;
use boxrun::runs::{self, NewRun, OutputRead, Principal, Run, RunState, StartRunError};
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgPool;
use uuid::Uuid;

use super::box_says::Sent;
use super::scripted_box::{Answer, ScriptedBox};
use super::wait::wait_until;
use super::worker::{self, Worker};

/// The box of a test that needs but one.
pub const BOX: &str = "bx_8bhkse3n";
/// The process of a run made by [`App::running`].
pub const PID: i64 = 4242;

pub struct App {
    pub pool: PgPool,
    pub server: ScriptedBox,
    pub conversation: ConversationId,
    pub box_id: BoxId,
    pub principal: Principal,
    workers: Vec<Worker>,
    made: AtomicUsize,
    finished: bool,
}

/// A run with its job and its timeline: what a failed wait shows.
#[derive(Debug)]
pub struct Snapshot {
    pub run: Run,
    pub job: Option<Job>,
    pub timeline: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, sqlx::FromRow)]
pub struct Job {
    pub kind: JobKind,
    pub due_at: DateTime<Utc>,
    pub lease: Option<Uuid>,
    pub lease_until: Option<DateTime<Utc>>,
    pub leased_by: Option<String>,
    pub urgent: bool,
    pub attempts: i32,
    pub last_error_code: Option<String>,
    pub poll_max_bytes: Option<i64>,
}

impl App {
    /// With one worker, and a box that answers commands in this order.
    pub async fn start(pool: PgPool, script: impl IntoIterator<Item = Answer>) -> Self {
        let mut app = Self::idle(pool, script).await;
        app.start_worker();
        app
    }

    /// As [`App::start`], but nobody works yet.
    pub async fn idle(pool: PgPool, script: impl IntoIterator<Item = Answer>) -> Self {
        let app = Self {
            server: ScriptedBox::with_script(script).await,
            conversation: ConversationId(Uuid::new_v4()),
            box_id: BOX.parse().expect("a box id"),
            principal: Principal::user("u1"),
            workers: Vec::new(),
            made: AtomicUsize::new(0),
            finished: false,
            pool,
        };
        app.attach(&app.box_id).await;
        app
    }

    pub fn start_worker(&mut self) {
        self.start_worker_with(|_| {});
    }

    pub fn start_worker_with(&mut self, change: impl FnOnce(&mut WorkerOptions)) {
        let worker = self.new_worker(change);
        self.workers.push(worker);
    }

    /// A worker that the test ends by itself.
    pub fn new_worker(&self, change: impl FnOnce(&mut WorkerOptions)) -> Worker {
        let client = self.server.client();
        let mut options = worker::options(&self.pool, client.origin());
        change(&mut options);
        Worker::start(client, options)
    }

    /// Stops the workers; fails when one does not stop, or when the box was asked more or less than its script says.
    pub async fn finish(mut self) {
        self.finished = true;
        for worker in self.workers.drain(..) {
            worker.stop().await;
        }
        let unexpected: Vec<_> = self.server.unexpected().iter().map(Sent::of).collect();
        assert_eq!(unexpected, [], "the script has no answer for these");
        assert_eq!(
            self.server.answers_left(),
            0,
            "answers that nothing asked for; asked was {:?}",
            self.sent()
        );
    }

    async fn attach(&self, id: &BoxId) {
        let mut conn = self.pool.acquire().await.expect("a connection");
        let attached = attach_box(&mut conn, self.conversation, id, &self.principal).await;
        attached.expect("a box that nobody has");
    }

    /// One more box of the same conversation.
    pub async fn another_box(&self) -> BoxId {
        const DIGITS: &[u8] = b"23456789";
        let number = self.count();
        let code: String = (0..8)
            .map(|place| char::from(DIGITS[(number >> (3 * place)) % DIGITS.len()]))
            .collect();
        let id: BoxId = format!("bx_{code}").parse().expect("a box id");
        self.attach(&id).await;
        id
    }

    fn count(&self) -> usize {
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    // Admission and cancel

    /// A run that is not admitted yet: on the first box, under a fresh key, as by HTTP (the box is checked).
    pub fn new_run(&self, command: &str) -> NewRun {
        self.new_run_on(&self.box_id, command)
    }

    pub fn new_run_on(&self, box_id: &BoxId, command: &str) -> NewRun {
        let key = format!("key {}", self.count());
        let mut new = NewRun::new(self.conversation, box_id.clone(), self.principal.clone(), command, key);
        new.box_checked = true;
        new
    }

    pub async fn try_admit(&self, new: NewRun) -> Result<Run, StartRunError> {
        let mut conn = self.pool.acquire().await.expect("a connection");
        runs::start_run(&mut conn, new).await
    }

    pub async fn admit(&self, command: &str) -> RunId {
        self.admit_new(self.new_run(command)).await
    }

    /// As by SQL or the library: the start job checks the box.
    pub async fn admit_unchecked(&self, command: &str) -> RunId {
        let mut new = self.new_run(command);
        new.box_checked = false;
        self.admit_new(new).await
    }

    pub async fn admit_new(&self, new: NewRun) -> RunId {
        self.try_admit(new).await.expect("a run that is admitted").id
    }

    /// A run that a worker has dispatched and seen running as process [`PID`]; its poll is due.
    pub async fn running(&self, command: &str) -> RunId {
        self.running_as(self.new_run(command)).await
    }

    pub async fn running_as(&self, new: NewRun) -> RunId {
        let mut tx = self.pool.begin().await.expect("a transaction");
        let run = runs::start_run(&mut tx, new).await.expect("a run that is admitted").id;
        sqlx::query(
            "update boxrun.runs r set state = 'running', dispatch_attempted_at = t.at, dispatched_at = t.at,
                    started_at = t.at, pid = $2, updated_at = t.at
               from (select clock_timestamp() as at) t where r.id = $1",
        )
        .bind(run.0)
        .bind(PID)
        .execute(&mut *tx)
        .await
        .expect("a run that may run");
        sqlx::query("update boxrun.jobs set kind = 'poll' where run_id = $1")
            .bind(run.0)
            .execute(&mut *tx)
            .await
            .expect("a job");
        tx.commit().await.expect("a commit");
        run
    }

    pub async fn cancel(&self, run: RunId) -> Run {
        let mut conn = self.pool.acquire().await.expect("a connection");
        let cancelled = runs::cancel(&mut conn, self.conversation, run).await;
        cancelled.expect("a run of this conversation")
    }

    // Time, moved by hand

    pub async fn pass_deadline(&self, run: RunId) {
        self.execute(
            "update boxrun.runs set deadline_at = clock_timestamp() - interval '1 second' where id = $1",
            run,
        )
        .await;
    }

    /// This much time goes by after the run's end. The guard, which lets nobody change an ended run, looks away.
    pub async fn pass_time_after_end(&self, run: RunId, time: &str) {
        let mut tx = self.pool.begin().await.expect("a transaction");
        let unguarded = sqlx::query("set local session_replication_role = replica");
        unguarded.execute(&mut *tx).await.expect("a superuser");
        let earlier = "update boxrun.runs set finished_at = finished_at - $2::text::interval where id = $1";
        let moved = sqlx::query(earlier).bind(run.0).bind(time).execute(&mut *tx);
        assert_eq!(moved.await.expect("a run").rows_affected(), 1);
        tx.commit().await.expect("a commit");
    }

    /// Makes the run's job due now, and tells the workers.
    pub async fn hurry(&self, run: RunId) {
        self.execute(
            "with due as (update boxrun.jobs set due_at = clock_timestamp() where run_id = $1 returning kind)
             select pg_notify('boxrun_jobs', kind) from due",
            run,
        )
        .await;
    }

    /// As if the run's worker had not renewed its lease in time; tells the workers.
    pub async fn lapse_lease(&self, run: RunId) {
        self.execute(
            "with lapsed as (update boxrun.jobs set lease_until = clock_timestamp() where run_id = $1 returning kind)
             select pg_notify('boxrun_jobs', kind) from lapsed",
            run,
        )
        .await;
    }

    /// One statement about a run.
    pub async fn execute(&self, sql: &'static str, run: RunId) {
        self.try_execute(sql, run).await.expect("a statement that works");
    }

    pub async fn try_execute(&self, sql: &'static str, run: RunId) -> sqlx::Result<()> {
        sqlx::query(sql).bind(run.0).execute(&self.pool).await.map(drop)
    }

    // Looking

    pub async fn run(&self, run: RunId) -> Run {
        let mut conn = self.pool.acquire().await.expect("a connection");
        let found = runs::read::find(&mut conn, run).await.expect("a database");
        found.expect("a run")
    }

    pub async fn job(&self, run: RunId) -> Option<Job> {
        sqlx::query_as("select * from boxrun.jobs where run_id = $1")
            .bind(run.0)
            .fetch_optional(&self.pool)
            .await
            .expect("a database")
    }

    /// The names of the run's events, oldest first.
    pub async fn events(&self, run: RunId) -> Vec<String> {
        let mut conn = self.pool.acquire().await.expect("a connection");
        let timeline = runs::events::timeline(&mut conn, run).await.expect("a database");
        timeline.into_iter().map(|entry| entry.event).collect()
    }

    pub async fn output(&self, run: RunId, offset: i64) -> OutputRead {
        let mut conn = self.pool.acquire().await.expect("a connection");
        let read = runs::read_output(&mut conn, self.conversation, run, offset).await;
        read.expect("a run of this conversation")
    }

    pub async fn snapshot(&self, run: RunId) -> Snapshot {
        let mut conn = self.pool.acquire().await.expect("a connection");
        let timeline = runs::events::timeline(&mut conn, run).await.expect("a database");
        drop(conn);
        Snapshot {
            run: self.run(run).await,
            job: self.job(run).await,
            timeline: timeline
                .into_iter()
                .map(|entry| format!("{} {} {}", entry.at, entry.event, entry.detail))
                .collect(),
        }
    }

    /// What the box was asked, in the order of arrival.
    pub fn sent(&self) -> Vec<Sent> {
        self.server.requests().iter().map(Sent::of).collect()
    }

    pub fn count_sent(&self, what: Sent) -> usize {
        self.sent().iter().filter(|sent| **sent == what).count()
    }

    // Waiting

    /// Waits until the run is in `state`; fails at once when it ends otherwise.
    pub async fn wait_for(&self, run: RunId, state: RunState) -> Run {
        let seen = self
            .wait_until(run, &format!("the run is {state}"), |seen| {
                seen.run.state == state || seen.run.state.is_terminal()
            })
            .await;
        assert_eq!(seen.run.state, state, "{seen:#?}");
        seen.run
    }

    pub async fn wait_until(&self, run: RunId, expected: &str, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
        wait_until(expected, async || self.snapshot(run).await, wanted).await
    }

    /// Waits until the box was asked this at least `count` times.
    pub async fn wait_for_sent(&self, what: Sent, count: usize) {
        self.server
            .wait_until(&format!("{count} × {what:?}"), |requests| {
                requests.iter().filter(|request| Sent::of(request) == what).count() >= count
            })
            .await;
    }

    /// Fails unless the box is left alone from now on, until the run directory's retention has passed.
    pub async fn rests(&self, run: RunId) {
        let seen = self.snapshot(run).await;
        let rests = seen.job.as_ref().is_none_or(|job| {
            job.kind == JobKind::Cleanup && job.lease.is_none() && job.due_at > seen.run.read_at + TimeDelta::hours(23)
        });
        assert!(seen.run.state.is_terminal() && rests, "{seen:#?}");
    }
}

impl Drop for App {
    fn drop(&mut self) {
        // A test that fails anyway should fail with its own message.
        assert!(
            self.finished || std::thread::panicking(),
            "a test ends with `app.finish().await`, which stops its workers"
        );
    }
}
