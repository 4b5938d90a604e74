//! One life of a run, in which one step of the first worker meets one fault; a second worker takes over.

use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::Arc;

use boxrun::ids::{BoxId, ConversationId, RunId};
use boxrun::runs::conversations::attach_box;
use boxrun::runs::{self, NewRun, Principal, Run, RunState};
use boxrun::sim::{Fault as BoxFault, FaultTarget};
use rustix::process::Signal;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::life::Life;
use super::tap::{Fault, Step, Tap};
use super::{requests, statements};
use crate::crash::setting::Setting;
use crate::crash::worker::{Place, Worker};
use crate::support::wait::wait_until;

/// The one whose step meets the fault, and the one that takes over.
const WORKERS: [&str; 2] = ["first", "second"];
const LEASE_SECONDS: &str = "1";
/// So that removal follows at once.
const RETENTION_SECONDS: &str = "0";

pub struct Cell<'a> {
    setting: &'a Setting,
    life: Life,
    name: String,
    database: PgConnectOptions,
    database_url: String,
    box_id: BoxId,
    run: RunId,
    tap: Arc<Tap>,
    statements: statements::Proxy,
    requests: requests::Proxy,
}

/// What a life came to.
#[derive(Debug)]
pub struct Ended {
    pub run: Run,
    pub output: String,
    /// How often its command really started, and how many dispatches the workers sent.
    pub starts: usize,
    pub dispatches: usize,
    pub terminal_events: i64,
    pub directory_is_removed: bool,
    pub a_worker_panicked: bool,
}

impl<'a> Cell<'a> {
    /// With a database of its own, a copy of `template`.
    pub async fn new(setting: &'a Setting, number: usize, life: Life, target: Option<(Step, Fault)>) -> Self {
        let name = format!("cell_{number}");
        let create = format!("create database {name} template matrix");
        sqlx::raw_sql(sqlx::AssertSqlSafe(create))
            .execute(&setting.pool)
            .await
            .expect("a database");
        let url = setting.database_url();
        let database_url = format!("{}/{name}", url.rsplit_once('/').expect("a database in the address").0);
        let database = PgConnectOptions::from_str(&database_url).expect("an address");
        let tap = Arc::new(Tap::new(target));
        let statements = statements::Proxy::to(&database, Arc::clone(&tap))
            .await
            .expect("a proxy");
        let requests = requests::Proxy::to(setting.sim.url(), Arc::clone(&tap))
            .await
            .expect("a proxy");
        let box_id = setting.box_id(number);
        let mut cell = Self {
            setting,
            life,
            name,
            database,
            database_url,
            box_id,
            run: RunId(Uuid::nil()),
            tap,
            statements,
            requests,
        };
        if life == Life::DispatchUnanswered {
            setting.inject(&cell.box_id, FaultTarget::Dispatch, BoxFault::LostAnswer);
        }
        cell.run = cell.admit().await;
        cell
    }

    async fn admit(&self) -> RunId {
        let mut conn = self.connection().await;
        let (conversation, principal) = (ConversationId(Uuid::from_u128(1)), Principal::user("matrix"));
        attach_box(&mut conn, conversation, &self.box_id, &principal)
            .await
            .expect("the box is free");
        let command = self.life.command().command();
        let new = NewRun::new(conversation, self.box_id.clone(), principal, command, "key");
        runs::start_run(&mut conn, new).await.expect("a run").id
    }

    /// Without a fault: what the steps are.
    pub async fn record(self) -> (Vec<Step>, Ended) {
        let _worker = self.worker(WORKERS[0], true);
        let ended = self.over().await;
        (self.tap.steps(), ended)
    }

    pub async fn strike(self, fault: Fault) -> Ended {
        let mut first = self.worker(WORKERS[0], true);
        tokio::select! {
            () = self.tap.struck() => {}
            ended = self.over() => panic!("{}: the step did not come: {ended:?}", self.name),
        }
        match fault {
            Fault::CrashBefore | Fault::CrashAfter => first.kill9().await,
            Fault::RequestLost | Fault::AnswerLost | Fault::Twice => {}
            Fault::LeaseLost => first.signal(Signal::STOP),
        }
        let held = self.lease().await;
        let _second = self.worker(WORKERS[1], false);
        if fault == Fault::LeaseLost {
            let look = async || self.lease().await;
            let has_other =
                |now: &Option<Option<Uuid>>| now.is_none() || now.is_some_and(|now| now.is_some()) && *now != held;
            wait_until("another worker has the job", look, has_other).await;
            first.signal(Signal::CONT);
            self.tap.release();
        }
        self.over().await
    }

    /// The first worker goes through the proxies; the second reaches the database itself, and the same box API.
    fn worker(&self, name: &str, through_proxy: bool) -> Worker {
        let database_url = if through_proxy {
            let port = self.database.get_port();
            let proxied = format!("127.0.0.1:{}", self.statements.port);
            self.database_url.replace(&format!("127.0.0.1:{port}"), &proxied)
        } else {
            self.database_url.clone()
        };
        let place = Place {
            log: self.log_file(name),
            database_url,
            box_url: self.requests.url.to_string(),
            more: vec![
                ("BOXRUN_LEASE_SECONDS", LEASE_SECONDS),
                ("BOXRUN_RUN_DIRECTORY_RETENTION_SECONDS", RETENTION_SECONDS),
            ],
        };
        Worker::spawn_at(&place, name)
    }

    /// Waits until the run has ended and nothing is left to do; does meanwhile what the life is about.
    async fn over(&self) -> Ended {
        let look = async || {
            let mut conn = self.connection().await;
            let run = runs::read::find(&mut conn, self.run).await.expect("an answer");
            let run = run.expect("the run is there");
            let prints = run.last_output_offset > 0 && !run.state.is_terminal();
            if prints && self.life == Life::Cancelled && run.cancellation_requested_at.is_none() {
                runs::cancel(&mut conn, run.conversation_id, run.id)
                    .await
                    .expect("the run is there");
            }
            if prints && self.life == Life::PastDeadline && run.deadline_at > run.read_at {
                bring_deadline_on(&mut conn).await;
            }
            let jobs: i64 = sqlx::query_scalar("select count(*) from boxrun.jobs")
                .fetch_one(&mut conn)
                .await
                .expect("an answer");
            (run, jobs)
        };
        let what = format!("{}: the run has ended and its job is gone", self.name);
        let (run, _) = wait_until(&what, look, |(run, jobs)| run.state.is_terminal() && *jobs == 0).await;
        self.ended(run).await
    }

    async fn ended(&self, run: Run) -> Ended {
        let mut conn = self.connection().await;
        let read = runs::read_output(&mut conn, run.conversation_id, run.id, 0)
            .await
            .expect("the run is there");
        let terminal: Vec<&str> = RunState::ALL
            .iter()
            .filter(|state| state.is_terminal())
            .map(|state| state.as_str())
            .collect();
        let counted = sqlx::query_as::<_, (i64, bool)>(
            "select (select count(*) from boxrun.run_events where run_id = $1 and event = any ($2)),
                    (select directory_removed_at is not null from boxrun.runs where id = $1)",
        );
        let (terminal_events, directory_is_removed) = counted
            .bind(run.id.0)
            .bind(terminal)
            .fetch_one(&mut conn)
            .await
            .expect("an answer");
        Ended {
            output: read.output,
            starts: self.setting.starts(&self.box_id, run.id),
            dispatches: self.setting.recorded(run.id, "request", "dispatch").len(),
            terminal_events,
            directory_is_removed,
            a_worker_panicked: WORKERS.iter().any(|name| self.log(name).contains("panicked")),
            run,
        }
    }

    fn log(&self, worker: &str) -> String {
        std::fs::read_to_string(self.log_file(worker)).unwrap_or_default()
    }

    fn log_file(&self, worker: &str) -> PathBuf {
        self.setting.log(&format!("{}-{worker}", self.name))
    }

    /// Of the run's job; `None`: it has none.
    async fn lease(&self) -> Option<Option<Uuid>> {
        let mut conn = self.connection().await;
        let lease = sqlx::query_scalar("select lease from boxrun.jobs where run_id = $1").bind(self.run.0);
        lease.fetch_optional(&mut conn).await.expect("an answer")
    }

    async fn connection(&self) -> PgConnection {
        PgConnection::connect_with(&self.database).await.expect("a connection")
    }
}

/// As if the time until then had passed, however long the machine takes to get a run going.
async fn bring_deadline_on(conn: &mut PgConnection) {
    // A deadline never moves: the rules that see to it are off in this session.
    let past = "set session_replication_role = replica;
                update boxrun.runs set deadline_at = clock_timestamp();
                update boxrun.jobs set due_at = least(due_at, clock_timestamp());";
    sqlx::raw_sql(past).execute(conn).await.expect("a superuser's session");
}
