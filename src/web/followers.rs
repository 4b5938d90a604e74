//! Who follows a run here, and what is new of it: one look for all of them, however many there are.
//!
//! One task of the process looks a few times a second at all runs that somebody follows, in one statement, and at once when
//! a change of state is announced. A follower gets the newest of what was seen, never a queue of it, so a slow reader holds
//! nobody up and costs no memory; what it missed it reads from the database itself. LISTEN is a speed-up, the look the
//! guarantee.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::problem::Problem;
use crate::ids::RunId;
use crate::queue::{LivePool, Outage, answered};
use crate::runs::output::{self, OutputPart};
use crate::runs::{Run, RunState};

/// Between two looks, while anybody follows. Output is announced by nobody.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// The most that a process serves at a time.
const FOLLOWERS_MAX: usize = 20_000;
/// New output up to this size is read once for all followers of a run; of more, each reads its part.
const SHARED_MAX_BYTES: i64 = 64 * 1024;
/// A LISTEN connection is made anew this often: one that went silent hears nothing, and nobody would notice.
const LISTEN_LIFETIME: Duration = Duration::from_secs(60);

/// All followers of one process.
pub(super) struct Followers {
    pool: LivePool,
    watched: Mutex<HashMap<RunId, watch::Sender<Seen>>>,
    wake: Notify,
}

/// A run as it was seen last.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub stage: Stage,
    /// Bytes of output released by then.
    pub output_offset: i64,
    /// What was released between the look before and this one, where it is not much.
    pub news: Option<Arc<OutputPart>>,
    /// The run was erased.
    pub gone: bool,
}

/// What of a run its followers are told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stage {
    pub state: RunState,
    pub cancel_asked: bool,
}

impl Stage {
    pub fn of(run: &Run) -> Self {
        Self {
            state: run.state,
            cancel_asked: run.cancellation_requested_at.is_some(),
        }
    }
}

/// One follower of one run.
pub(super) struct Follower<'a> {
    all: &'a Followers,
    run_id: RunId,
    seen: watch::Receiver<Seen>,
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        let mut watched = self.all.lock();
        // This one is still counted.
        if watched.get(&self.run_id).is_some_and(|seen| seen.receiver_count() <= 1) {
            watched.remove(&self.run_id);
        }
    }
}

impl Follower<'_> {
    /// What was seen last.
    pub fn latest(&mut self) -> Seen {
        self.seen.borrow_and_update().clone()
    }

    /// Resolves once something newer than [`Follower::latest`] was seen.
    pub async fn changed(&mut self) {
        if self.seen.changed().await.is_err() {
            // The sender lives as long as there is a follower.
            std::future::pending::<()>().await;
        }
    }

    /// Resolves once the run is at another stage than in `run`, or gone.
    pub async fn changed_since(&mut self, run: &Run) {
        let before = Stage::of(run);
        let _ = self.seen.wait_for(|seen| seen.gone || seen.stage != before).await;
    }
}

/// As `boxrun_runs` announces it.
#[derive(Deserialize)]
struct News {
    run_id: RunId,
}

impl Followers {
    pub fn new(pool: LivePool) -> Self {
        Self {
            pool,
            watched: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Follows a run from what is known of it.
    ///
    /// # Errors
    /// `busy` where there are too many already.
    pub fn follow(&self, run: &Run) -> Result<Follower<'_>, Problem> {
        let mut watched = self.lock();
        if watched.values().map(watch::Sender::receiver_count).sum::<usize>() >= FOLLOWERS_MAX {
            return Err(Problem::busy("this process has as many followers as it can serve"));
        }
        let seen = watched.entry(run.id).or_insert_with(|| {
            watch::Sender::new(Seen {
                stage: Stage::of(run),
                output_offset: run.last_output_offset,
                news: None,
                gone: false,
            })
        });
        let seen = seen.subscribe();
        drop(watched);
        // What changed between the reading of the run and this is found at once.
        self.wake.notify_one();
        Ok(Follower {
            all: self,
            run_id: run.id,
            seen,
        })
    }

    /// Looks until `stop`.
    pub async fn look_around(&self, stop: CancellationToken) {
        let mut outage = Outage::of("looking at followed runs");
        while !stop.is_cancelled() {
            let looked = answered(self.look()).await;
            let pause = match self.pool.noting(looked) {
                Ok(()) => {
                    outage.ended();
                    LOOK_INTERVAL
                }
                Err(error) => outage.failed(&error),
            };
            let nobody = self.lock().is_empty();
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.wake.notified() => {}
                () = tokio::time::sleep(pause), if !nobody => {}
            }
        }
    }

    /// Hears of changes of state until `stop`.
    pub async fn listen(&self, database: PgConnectOptions, stop: CancellationToken) {
        let mut outage = Outage::of("listening for runs");
        while !stop.is_cancelled() {
            let heard = tokio::select! {
                () = stop.cancelled() => return,
                heard = tokio::time::timeout(LISTEN_LIFETIME, self.hear(&database, &mut outage)) => heard,
            };
            if let Ok(Err(error)) = heard {
                let delay = outage.failed(&error);
                tokio::time::sleep(delay).await;
            }
        }
    }

    async fn hear(&self, database: &PgConnectOptions, outage: &mut Outage) -> sqlx::Result<()> {
        // A pool for each connection: one that went silent does not come back to its pool.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(database.clone());
        let mut listener = answered(PgListener::connect_with(&pool)).await?;
        answered(listener.listen("boxrun_runs")).await?;
        outage.ended();
        self.wake.notify_one();
        loop {
            let followed = match listener.try_recv().await? {
                Some(news) => serde_json::from_str::<News>(news.payload())
                    .is_ok_and(|news| self.lock().contains_key(&news.run_id)),
                // The connection was lost, and is new again.
                None => true,
            };
            if followed {
                self.wake.notify_one();
            }
        }
    }

    async fn look(&self) -> sqlx::Result<()> {
        let known: HashMap<RunId, Seen> = {
            let watched = self.lock();
            watched.iter().map(|(id, seen)| (*id, seen.borrow().clone())).collect()
        };
        if known.is_empty() {
            return Ok(());
        }
        let ids: Vec<Uuid> = known.keys().map(|id| id.0).collect();
        let mut conn = self.pool.get().acquire().await?;
        let rows = sqlx::query!(
            r#"select id as "id: RunId", state as "state: RunState", last_output_offset,
                      cancellation_requested_at is not null as "cancel_asked!"
                 from boxrun.runs where id = any ($1)"#,
            &ids
        )
        .fetch_all(&mut *conn)
        .await?;
        let mut found: HashMap<RunId, Seen> = rows
            .into_iter()
            .map(|row| {
                let seen = Seen {
                    stage: Stage {
                        state: row.state,
                        cancel_asked: row.cancel_asked,
                    },
                    output_offset: row.last_output_offset,
                    news: None,
                    gone: false,
                };
                (row.id, seen)
            })
            .collect();
        let grown: Vec<(RunId, i64)> = known
            .iter()
            .filter(|(id, before)| {
                found
                    .get(*id)
                    .is_some_and(|now| (1..=SHARED_MAX_BYTES).contains(&(now.output_offset - before.output_offset)))
            })
            .map(|(id, before)| (*id, before.output_offset))
            .collect();
        for (id, piece) in output::read_news(&mut conn, &grown, SHARED_MAX_BYTES).await? {
            if let Some(now) = found.get_mut(&id) {
                now.news = Some(Arc::new(piece));
            }
        }
        drop(conn);
        let watched = self.lock();
        for (id, before) in &known {
            let Some(sender) = watched.get(id) else { continue };
            match found.remove(id) {
                Some(now) if now.stage != before.stage || now.output_offset != before.output_offset => {
                    sender.send_replace(now);
                }
                Some(_) => {}
                None => sender.send_modify(|seen| seen.gone = true),
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, watch::Sender<Seen>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
