//! What is left of an ended run on its box, and when: a real worker, a real box (simulated), a database of one's own.
//!
//! Time passes by SQL: a run's end is moved into the past and its job is made due.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use boxrun::box_api::BoxClient;
use boxrun::ids::{BoxId, RunId};
use boxrun::jobs::JobSettings;
use boxrun::jobs::worker::{self, WorkerError, WorkerOptions};
use boxrun::runs::conversations::{attach_box, default_conversation};
use boxrun::runs::read::find;
use boxrun::runs::{NewRun, Principal, Run, RunState, cancel, start_run};
use boxrun::sim::{Fault, FaultRule, FaultTarget, SimBoxState, SimOptions, Simulator};
use boxrun::webhooks::WebhookOptions;
use chrono::TimeDelta;
use secrecy::SecretString;
use serde_json::Value;
use sqlx::PgPool;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::wait::wait_until;

const KEY: &str = "cleanup-test-key";
const DAY: &str = "1 day";
const CREDENTIALS: [&str; 2] = ["forge-credential", "gitconfig"];
/// In front of a command: the run directory, and a credential in it, as what starts a run with one would leave it.
const WITH_CREDENTIAL: &str = "d=$HOME/.openagents/box-runs/users/*/$BOXRUN_RUN_ID; d=$(echo $d)
    echo secret >$d/forge-credential; echo secret >$d/gitconfig; : >$HOME/planted\n";

/// A worker and its box; both end with [`Setting::end`].
struct Setting {
    pool: PgPool,
    simulator: Simulator,
    root: TempDir,
    stop: CancellationToken,
    working: JoinHandle<Result<(), WorkerError>>,
}

/// What of the job matters here.
#[derive(Debug, PartialEq, Eq)]
struct Job {
    kind: String,
    attempts: i32,
    last_error_code: Option<String>,
}

impl Setting {
    async fn new(pool: PgPool) -> Self {
        let root = tempfile::tempdir().unwrap();
        let options = SimOptions {
            listen: "127.0.0.1:0".parse().unwrap(),
            root: root.path().to_owned(),
            key: SecretString::from(KEY),
            boxes: Vec::new(),
            allow_remote: false,
        };
        let simulator = Simulator::start(options).await.unwrap();
        let client = BoxClient::new(simulator.url(), Some(SecretString::from(KEY))).unwrap();
        let options = WorkerOptions {
            database: pool.connect_options().as_ref().clone(),
            connections: 3,
            connection_lifetime: Duration::from_secs(60),
            lease: Duration::from_secs(15),
            concurrency: [4; 4],
            jobs: JobSettings {
                poll_interval: Duration::from_millis(50),
                output_max_bytes: 24 * 1024,
                retention: TimeDelta::days(1),
            },
            ops_listen: None,
            shutdown: Duration::from_secs(20),
            provider: "simulator".to_owned(),
            secrets: Vec::new(),

            secret_keys: None,
            webhooks: WebhookOptions {
                concurrency: 0,
                allow_private: false,
                attempt_timeout: Duration::from_secs(10),
            },
            max_duration: Duration::from_secs(1800),
        };
        let stop = CancellationToken::new();
        let working = tokio::spawn(worker::run(client, options, stop.clone()));
        Self {
            pool,
            simulator,
            root,
            stop,
            working,
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.working.await.unwrap().unwrap();
        self.simulator.stop().await;
    }

    async fn start(&self, box_id: &BoxId, command: &str) -> RunId {
        let principal = Principal::user("tester");
        let conversation = default_conversation(&principal);
        let mut tx = self.pool.begin().await.unwrap();
        attach_box(&mut tx, conversation, box_id, &principal).await.unwrap();
        let key = uuid::Uuid::now_v7().to_string();
        let run = start_run(
            &mut tx,
            NewRun::new(conversation, box_id.clone(), principal, command, key),
        )
        .await
        .unwrap();
        tx.commit().await.unwrap();
        run.id
    }

    async fn run(&self, id: RunId) -> Run {
        find(&mut self.pool.acquire().await.unwrap(), id)
            .await
            .unwrap()
            .expect("the run is there")
    }

    async fn until(&self, id: RunId, expected: &str, wanted: impl Fn(&Run) -> bool) -> Run {
        wait_until(expected, async || self.run(id).await, wanted).await
    }

    async fn until_state(&self, id: RunId, state: RunState) -> Run {
        self.until(id, &format!("the run is {state}"), |run| run.state == state)
            .await
    }

    async fn job(&self, id: RunId) -> Option<Job> {
        let row: Option<(String, i32, Option<String>)> =
            sqlx::query_as("select kind, attempts, last_error_code from boxrun.jobs where run_id = $1")
                .bind(id.0)
                .fetch_optional(&self.pool)
                .await
                .unwrap();
        row.map(|(kind, attempts, last_error_code)| Job {
            kind,
            attempts,
            last_error_code,
        })
    }

    async fn until_job(&self, id: RunId, expected: &str, wanted: impl Fn(&Option<Job>) -> bool) -> Option<Job> {
        wait_until(expected, async || self.job(id).await, wanted).await
    }

    async fn events(&self, id: RunId) -> Vec<String> {
        sqlx::query_scalar("select event from boxrun.run_events where run_id = $1 order by id")
            .bind(id.0)
            .fetch_all(&self.pool)
            .await
            .unwrap()
    }

    async fn until_removed(&self, id: RunId) -> Run {
        let look = async || self.events(id).await;
        wait_until("the directory is removed", look, |events| {
            events.last().is_some_and(|event| event == "directory_removed")
        })
        .await;
        self.run(id).await
    }

    /// The deadline is over.
    async fn pass_deadline(&self, id: RunId) {
        sqlx::query("update boxrun.runs set deadline_at = clock_timestamp() where id = $1")
            .bind(id.0)
            .execute(&self.pool)
            .await
            .unwrap();
    }

    /// This much time goes by after the run's end, and what its job waited for has come. The guard, which lets nobody change
    /// an ended run, looks away.
    async fn pass_time(&self, id: RunId, time: &str) {
        let mut tx = self.pool.begin().await.unwrap();
        sqlx::query("set local session_replication_role = replica")
            .execute(&mut *tx)
            .await
            .unwrap();
        sqlx::query("update boxrun.runs set finished_at = finished_at - $2::text::interval where id = $1")
            .bind(id.0)
            .bind(time)
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();
        // A job that is being done is not waiting yet: what it decides may be from before.
        let make_due = async || {
            let job = sqlx::query_scalar::<_, bool>(
                "with due as (
                     update boxrun.jobs set due_at = clock_timestamp()
                      where run_id = $1 and lease is null and due_at > clock_timestamp()
                     returning pg_notify('boxrun_jobs', 'cleanup'))
                 select exists (select from due) or not exists (select from boxrun.jobs where run_id = $1)",
            );
            job.bind(id.0).fetch_one(&self.pool).await.unwrap()
        };
        wait_until("the job is made due, or done", make_due, |done| *done).await;
    }

    fn home(&self, box_id: &BoxId) -> PathBuf {
        self.root.path().join(box_id.as_str()).join("home")
    }

    fn directory(&self, run: &Run) -> PathBuf {
        let below = run.run_directory.strip_prefix("$HOME/").unwrap();
        self.home(&run.box_id).join(below)
    }

    /// What the command wrote into this file of its home.
    async fn written(&self, box_id: &BoxId, file: &str) -> String {
        let path = self.home(box_id).join(file);
        let look = async || std::fs::read_to_string(&path).unwrap_or_default();
        let text = wait_until(&format!("{file} is written"), look, |text| text.ends_with('\n')).await;
        text.trim().to_owned()
    }

    async fn until_planted(&self, box_id: &BoxId) {
        let path = self.home(box_id).join("planted");
        wait_until("the credential is planted", async || path.exists(), |there| *there).await;
    }

    async fn credential_is_gone(&self, run: &Run) {
        let directory = self.directory(run);
        let left = async || CREDENTIALS.map(|name| directory.join(name).exists());
        wait_until(
            &format!("nothing of the credential of the run that is {} is left", run.state),
            left,
            |left| *left == [false; 2],
        )
        .await;
    }

    /// The record's events about a run: (what, kind of request).
    fn recorded(&self, id: RunId) -> Vec<(String, String)> {
        let record = self.simulator.record().unwrap();
        let lines = record.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines
            .filter(|line| line["run"] == id.to_string())
            .map(|line| {
                (
                    line["event"].as_str().unwrap().to_owned(),
                    line["kind"].as_str().unwrap().to_owned(),
                )
            })
            .collect()
    }

    fn count(&self, id: RunId, event: &str, kind: &str) -> usize {
        let events = self.recorded(id);
        events.iter().filter(|(e, k)| e == event && k == kind).count()
    }
}

fn box_id(text: &str) -> BoxId {
    text.parse().unwrap()
}

fn lives(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let (_, rest) = stat.rsplit_once(") ").unwrap();
        !rest.starts_with('Z')
    })
}

/// Stops of this box do not arrive, so often.
fn unanswered_stops(simulator: &Simulator, times: u32) {
    let rule = FaultRule {
        times: Some(times),
        ..FaultRule::once(FaultTarget::Stop, Fault::DroppedRequest)
    };
    simulator.inject(rule).unwrap();
}

/// Scenario 21.
#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_new_run_waits_until_the_one_before_is_verified_dead(pool: PgPool) {
    let setting = Setting::new(pool).await;
    let id = box_id("bx_8bhkse3n");
    let old = setting
        .start(&id, "trap '' TERM; echo $$ >$HOME/old; while :; do sleep 0.1; done")
        .await;
    setting.until_state(old, RunState::Running).await;
    let process = setting.written(&id, "old").await;
    unanswered_stops(&setting.simulator, 4);
    setting.pass_deadline(old).await;
    let ended = setting.until_state(old, RunState::TimedOut).await;
    assert_eq!(ended.failure_reason.as_deref(), Some("run_duration_exceeded"));
    assert!(ended.end_verified_at.is_none());
    let new = setting
        .start(&id, &format!("kill -0 {process} && exit 9; echo second"))
        .await;
    let asked = async || setting.count(old, "request", "stop");
    wait_until("the kill is tried again for the new run", asked, |count| *count >= 3).await;
    let waiting = setting.run(new).await;
    assert_eq!(
        (waiting.state, waiting.dispatch_attempted_at),
        (RunState::Admitted, None)
    );
    let new = setting.until_state(new, RunState::Completed).await;
    let old = setting.run(old).await;
    assert!(old.end_verified_at.is_some() && old.end_verified_at <= new.dispatch_attempted_at);
    assert!(!lives(&process));
    assert_eq!(setting.count(new.id, "started", "dispatch"), 1);
    assert_eq!(old.state, RunState::TimedOut, "its end is its end");
    setting.end().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn survivors_of_a_normal_end_live_until_the_retention_is_over(pool: PgPool) {
    let setting = Setting::new(pool).await;
    let id = box_id("bx_8bhkse3n");
    let run = setting.start(&id, "setsid sleep 1000 & echo $! >$HOME/survivor").await;
    let ended = setting.until_state(run, RunState::Completed).await;
    let survivor = setting.written(&id, "survivor").await;
    setting
        .until_job(run, "the cleanup waits", |job| {
            job.as_ref().is_some_and(|job| job.kind == "cleanup")
        })
        .await;
    setting.pass_time(run, "23 hours").await;
    assert!(lives(&survivor) && setting.directory(&ended).exists());
    assert!(setting.job(run).await.is_some());
    setting.pass_time(run, DAY).await;
    let cleaned = setting.until_removed(run).await;
    assert!(!lives(&survivor));
    assert!(!setting.directory(&cleaned).exists());
    setting.until_job(run, "nothing is left to do", Option::is_none).await;
    assert_eq!(setting.events(run).await.last().unwrap(), "directory_removed");
    setting.end().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_box_that_comes_back_after_days_is_cleaned_up(pool: PgPool) {
    let setting = Setting::new(pool).await;
    let (ended_box, stopped_box) = (box_id("bx_22222222"), box_id("bx_33333333"));
    let ended = setting.start(&ended_box, "true").await;
    setting.until_state(ended, RunState::Completed).await;
    let command = format!("{WITH_CREDENTIAL} while :; do sleep 0.1; done");
    let lost = setting.start(&stopped_box, &command).await;
    setting.until_state(lost, RunState::Running).await;
    setting.until_planted(&stopped_box).await;
    for id in [&ended_box, &stopped_box] {
        setting.simulator.stop_box(id).await.unwrap();
    }
    let seen = setting.until_state(lost, RunState::Lost).await;
    assert_eq!(seen.failure_reason.as_deref(), Some("box_stopped"));
    for run in [ended, lost] {
        setting.pass_time(run, "5 days").await;
        let before = setting
            .until_job(run, "the box was asked and is stopped", |job| {
                job.as_ref().is_some_and(|job| {
                    job.kind == "cleanup" && job.attempts > 0 && job.last_error_code.as_deref() == Some("box_stopped")
                })
            })
            .await
            .unwrap()
            .attempts;
        setting.pass_time(run, "0 days").await;
        setting
            .until_job(run, "it is asked again days later", |job| {
                job.as_ref().is_some_and(|job| job.attempts > before)
            })
            .await;
        assert!(!setting.events(run).await.contains(&"cleanup_given_up".to_owned()));
    }
    for (run, id) in [(ended, &ended_box), (lost, &stopped_box)] {
        setting.simulator.resume_box(id).await.unwrap();
        setting.pass_time(run, "0 days").await;
        let cleaned = setting.until_removed(run).await;
        assert!(cleaned.end_verified_at.is_some() && !setting.directory(&cleaned).exists());
    }
    setting.end().await;
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_box_that_is_gone_ends_the_cleanup(pool: PgPool) {
    let setting = Setting::new(pool).await;
    let (ended_box, timed_out_box) = (box_id("bx_22222222"), box_id("bx_33333333"));
    let ended = setting.start(&ended_box, "true").await;
    setting.until_state(ended, RunState::Completed).await;
    let timed_out = setting.start(&timed_out_box, "sleep 1000").await;
    setting.until_state(timed_out, RunState::Running).await;
    unanswered_stops(&setting.simulator, 1);
    let gone = setting.simulator.set_box_state(&ended_box, SimBoxState::Gone).await;
    gone.unwrap();
    setting.pass_deadline(timed_out).await;
    setting.until_state(timed_out, RunState::TimedOut).await;
    let gone = setting
        .simulator
        .set_box_state(&timed_out_box, SimBoxState::Missing)
        .await;
    gone.unwrap();
    for run in [ended, timed_out] {
        setting.pass_time(run, DAY).await;
        setting.until_job(run, "the cleanup is over", Option::is_none).await;
        let run = setting.run(run).await;
        assert!(run.end_verified_at.is_some());
        assert_eq!(setting.events(run.id).await.last().unwrap(), "cleanup_ended");
    }
    setting.end().await;
}

/// How a run with a credential comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    Completes,
    Fails,
    IsCancelled,
    TimesOut,
    TimesOutUnanswered,
    LosesItsWrapper,
}

#[sqlx::test(migrator = "boxrun::schema::MIGRATIONS")]
async fn a_credential_is_gone_after_every_ending(pool: PgPool) {
    let setting = Setting::new(pool).await;
    let wait = format!("{WITH_CREDENTIAL} while [ ! -e $HOME/go ]; do sleep 0.05; done; ");
    let endings = [
        (Ending::Completes, "exit 0", RunState::Completed),
        (Ending::Fails, "exit 3", RunState::Failed),
        (Ending::IsCancelled, "exit 0", RunState::Cancelled),
        (Ending::TimesOut, "exit 0", RunState::TimedOut),
        (Ending::LosesItsWrapper, "exit 0", RunState::Lost),
        // Last: it uses a fault that strikes the next stop of whatever run.
        (Ending::TimesOutUnanswered, "exit 0", RunState::TimedOut),
    ];
    let mut runs = BTreeMap::new();
    for (number, (ending, exit, _)) in endings.into_iter().enumerate() {
        let id = box_id(&format!("bx_2222222{}", number + 2));
        runs.insert(ending, setting.start(&id, &format!("{wait}{exit}")).await);
    }
    for (ending, _, state) in endings {
        let run = setting.until_state(runs[&ending], RunState::Running).await;
        setting.until_planted(&run.box_id).await;
        let go = setting.home(&run.box_id).join("go");
        match ending {
            Ending::Completes | Ending::Fails => std::fs::write(go, "").unwrap(),
            Ending::IsCancelled => {
                let mut conn = setting.pool.acquire().await.unwrap();
                cancel(&mut conn, run.conversation_id, run.id).await.unwrap();
            }
            Ending::TimesOut => setting.pass_deadline(run.id).await,
            Ending::TimesOutUnanswered => {
                unanswered_stops(&setting.simulator, 1);
                setting.pass_deadline(run.id).await;
            }
            Ending::LosesItsWrapper => {
                let pid = i32::try_from(run.pid.unwrap()).unwrap();
                let pid = rustix::process::Pid::from_raw(pid).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            }
        }
        let ended = setting.until_state(run.id, state).await;
        setting.credential_is_gone(&ended).await;
        setting
            .until(run.id, "nothing of it is alive", |run| run.end_verified_at.is_some())
            .await;
        // What comes after the end goes with the directory.
        std::fs::write(setting.directory(&ended).join("forge-credential"), "late").unwrap();
    }
    for run in runs.into_values() {
        setting.pass_time(run, DAY).await;
        let removed = setting.until_removed(run).await;
        assert!(!setting.directory(&removed).exists());
    }
    setting.end().await;
}
