//! Callers: each has a box of its own and admits a run, waits for its end, looks at what it printed, and admits the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use boxrun::ids::{BoxId, RunId};
use boxrun::runs::conversations::{attach_box, default_conversation};
use boxrun::runs::{self, NewRun, Principal, Run, RunState, StartRunError};
use sqlx::PgPool;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::Outcome;
use super::provider::whole_output;

/// Between two looks of a caller at its run; more of them would be the load that is measured.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Between two tries while the database is in trouble.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// A run that has not ended by then is lost.
const RUN_MAX: Duration = Duration::from_secs(60);

/// What became of all runs.
#[derive(Debug, Default)]
pub struct Ledger {
    pub completed: AtomicUsize,
    /// Said to be lost: dispatched to nobody, and never started.
    pub said_lost: AtomicUsize,
    pub wrong_output: AtomicUsize,
    pub never_ended: AtomicUsize,
    admitted: std::sync::Mutex<Vec<(Uuid, Instant)>>,
}

impl Ledger {
    fn note_admission(&self, run: RunId) {
        let mut admitted = self.admitted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        admitted.push((run.0, Instant::now()));
    }

    /// When each run's admission was committed.
    pub fn admitted(&self) -> Vec<(Uuid, Instant)> {
        self.admitted
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }
}

pub struct Load {
    pool: PgPool,
    pub ledger: Arc<Ledger>,
    callers: JoinSet<Outcome<()>>,
    boxes: usize,
    goes_on: Arc<AtomicBool>,
}

impl Load {
    pub fn new(pool: PgPool) -> Self {
        Self {
            pool,
            ledger: Arc::default(),
            callers: JoinSet::new(),
            boxes: 0,
            goes_on: Arc::new(AtomicBool::new(true)),
        }
    }

    /// More callers, that go on until the end.
    pub fn add(&mut self, callers: usize) {
        self.spawn(callers, &Arc::clone(&self.goes_on));
    }

    /// More callers, with one run each.
    pub fn burst(&mut self, callers: usize) {
        self.spawn(callers, &Arc::default());
    }

    /// More callers, until `goes_on` is false.
    pub fn spawn(&mut self, callers: usize, goes_on: &Arc<AtomicBool>) {
        for _ in 0..callers {
            let caller = Caller {
                pool: self.pool.clone(),
                ledger: Arc::clone(&self.ledger),
                box_id: box_id(self.boxes),
            };
            self.boxes += 1;
            let goes_on = Arc::clone(goes_on);
            self.callers.spawn(async move {
                persist(|| caller.attach()).await?;
                loop {
                    caller.one_run().await?;
                    if !goes_on.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                }
            });
        }
    }

    /// No run is admitted any more; returns when all have ended.
    pub async fn drain(&mut self) -> Outcome<()> {
        self.goes_on.store(false, Ordering::Relaxed);
        while let Some(ended) = self.callers.join_next().await {
            ended??;
        }
        Ok(())
    }
}

struct Caller {
    pool: PgPool,
    ledger: Arc<Ledger>,
    box_id: BoxId,
}

impl Caller {
    async fn attach(&self) -> Outcome<()> {
        let principal = Principal::user("bench");
        let mut tx = self.pool.begin().await?;
        attach_box(&mut tx, default_conversation(&principal), &self.box_id, &principal).await?;
        Ok(tx.commit().await?)
    }

    async fn one_run(&self) -> Outcome<()> {
        // The same key for each try: an admission whose commit was not heard of is found again.
        let key = Uuid::now_v7().to_string();
        let run = persist(|| self.admit(&key)).await?;
        self.ledger.note_admission(run);
        let give_up = Instant::now() + RUN_MAX;
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let (run, output) = persist(|| self.look(run)).await?;
            if run.state.is_terminal() {
                self.count(&run, &output);
                return Ok(());
            }
            if Instant::now() > give_up {
                self.ledger.never_ended.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    async fn admit(&self, key: &str) -> Outcome<RunId> {
        let principal = Principal::user("bench");
        let conversation = default_conversation(&principal);
        let mut new = NewRun::new(conversation, self.box_id.clone(), principal, "make", key);
        new.box_checked = true;
        let mut tx = self.pool.begin().await?;
        let run = runs::start_run(&mut tx, new)
            .await
            .map_err(|error: StartRunError| error.to_string())?;
        tx.commit().await?;
        Ok(run.id)
    }

    async fn look(&self, run: RunId) -> Outcome<(Run, String)> {
        let conversation = default_conversation(&Principal::user("bench"));
        let mut conn = self.pool.acquire().await?;
        let found = runs::get_run(&mut conn, conversation, run)
            .await
            .map_err(|error| error.to_string())?;
        let output = if found.state.is_terminal() {
            let read = runs::read_output(&mut conn, conversation, run, 0).await;
            read.map_err(|error| error.to_string())?.output
        } else {
            String::new()
        };
        Ok((found, output))
    }

    fn count(&self, run: &Run, output: &str) {
        let counted = match run.state {
            RunState::Completed if output == whole_output() => &self.ledger.completed,
            RunState::Lost if run.failure_reason.as_deref() == Some("dispatch_ambiguous") => &self.ledger.said_lost,
            _ => &self.ledger.wrong_output,
        };
        counted.fetch_add(1, Ordering::Relaxed);
    }
}

/// Tries again until the database takes it, as a web app would, but not for ever.
async fn persist<T, F: Future<Output = Outcome<T>>>(work: impl Fn() -> F) -> Outcome<T> {
    let give_up = Instant::now() + RUN_MAX;
    loop {
        match work().await {
            Ok(done) => return Ok(done),
            Err(error) if Instant::now() > give_up => return Err(error),
            Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    }
}

fn box_id(index: usize) -> BoxId {
    const ALPHABET: &[u8] = b"23456789abcdefghjkmnpqrstuvwxyz";
    let digit = |place: u32| char::from(ALPHABET[index / ALPHABET.len().pow(place) % ALPHABET.len()]);
    let digits: String = (0..4).map(digit).collect();
    format!("bx_2222{digits}").parse().expect("a box id")
}
