//! What the metrics say of the database: read at a scrape, in one statement, however many scrape.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::queue::overview::WORKER_SILENCE_SECONDS;
use crate::queue::{JobKind, LivePool};

/// A scrape waits no longer for the database.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Scrapes that come closer together get the same numbers.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Rows of a kind that are counted at most.
const COUNTED_MAX: i64 = 10_000;

/// The jobs of one kind, along with what is the same for all of them.
#[derive(Debug)]
pub(super) struct KindBacklog {
    pub kind: JobKind,
    pub due: i64,
    pub oldest_due_seconds: f64,
    pub leased: i64,
    pub scheduled: i64,
    pub paused: bool,
    pub runs_past_deadline: i64,
    pub oldest_due_delivery_seconds: f64,
    pub workers_live: i64,
}

/// What was read last, shared by all scrapes.
pub(super) struct Backlog {
    pool: LivePool,
    last: Mutex<Option<Read>>,
}

struct Read {
    at: Instant,
    /// `None`: the database did not answer.
    kinds: Option<Arc<Vec<KindBacklog>>>,
}

impl Backlog {
    pub fn new(pool: LivePool) -> Self {
        Self {
            pool,
            last: Mutex::new(None),
        }
    }

    /// One entry a kind, at most [`AGE_MAX`] old; `None`: the database does not answer in time. One scrape asks, others that come
    /// meanwhile wait for its answer.
    pub async fn read(&self) -> Option<Arc<Vec<KindBacklog>>> {
        let mut last = self.last.lock().await;
        if let Some(read) = last.as_ref().filter(|read| read.at.elapsed() < AGE_MAX) {
            return read.kinds.clone();
        }
        let kinds = match tokio::time::timeout(ANSWER_MAX, self.ask()).await {
            Ok(Ok(kinds)) => Some(Arc::new(kinds)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a scrape found the database out of reach");
                None
            }
            Err(_) => None,
        };
        *last = Some(Read {
            at: Instant::now(),
            kinds: kinds.clone(),
        });
        kinds
    }

    async fn ask(&self) -> sqlx::Result<Vec<KindBacklog>> {
        sqlx::query_file_as!(
            KindBacklog,
            "src/ops/sql/backlog.sql",
            COUNTED_MAX,
            WORKER_SILENCE_SECONDS
        )
        .fetch_all(&self.pool.get())
        .await
    }
}
