//! A database that has gone silent: a connection that nobody closed and over which nothing comes any more.
//!
//! The server's own limits (`statement_timeout` and the like) end what it knows of; what never reached it, or whose answer
//! is lost on the way, would be waited for until TCP gives up, and behind a proxy that is for ever. So each piece of work has a limit of
//! ours, and a connection that was left in the middle of it has to answer before it goes back to its pool, or loses its place there.
//!
//! sqlx asks such a connection once more, after our hook and with no limit of its own. One that goes silent between the two
//! keeps its place until TCP gives it up; a pool that has none left to give is replaced as a whole ([`LivePool`]).

use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::time::Instant;

/// A few statements take milliseconds, or wait for a lock for less than a second.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// A connection that is given back has nothing left to do but to answer.
const GOODBYE_MAX: Duration = Duration::from_secs(5);
/// A connection that rested for so long is asked before it is used; in full swing none is.
const REST: Duration = Duration::from_secs(1);
/// Several may have to be asked within the time that a pool gives to find a connection.
const PING_MAX: Duration = Duration::from_secs(2);

/// Does a piece of work on the database, and gives it up as failed when no answer comes.
///
/// # Errors
/// The work's own; `sqlx::Error::Io` of kind `TimedOut` when it was given up. As with any broken connection, what it
/// was about to commit may be committed.
pub async fn answered<T, E: From<sqlx::Error>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    match tokio::time::timeout(ANSWER_MAX, work).await {
        Ok(done) => done,
        Err(_) => Err(silent().into()),
    }
}

/// With this, a connection that does not answer leaves the pool, and another one can take its place: when it is given back,
/// and when it is taken after a rest, so that several that went silent together don't cost a wait each.
#[must_use]
pub fn without_silent_connections(options: PgPoolOptions) -> PgPoolOptions {
    let options = options.after_release(|connection, _| Box::pin(answers(connection, GOODBYE_MAX)));
    options.before_acquire(|connection, meta| {
        Box::pin(async move {
            if meta.idle_for < REST {
                return Ok(true);
            }
            answers(connection, PING_MAX).await
        })
    })
}

/// A pool that another one of the same kind replaces once it has none to give.
///
/// Clones are handles on the same one. Somebody has to use it regularly and say how that went ([`LivePool::noting`]).
#[derive(Debug, Clone)]
pub struct LivePool(Arc<RwLock<Made>>);

#[derive(Debug)]
struct Made {
    pool: PgPool,
    at: Instant,
}

impl LivePool {
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        let at = Instant::now();
        Self(Arc::new(RwLock::new(Made { pool, at })))
    }

    /// The pool of now; not to be kept for longer than a piece of work.
    #[must_use]
    pub fn get(&self) -> PgPool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).pool.clone()
    }

    /// Passes a result on. One that says that no connection came free for as long as the pool waits for one has the pool
    /// replaced. Where it was only busy, the connections of the old one close as they come back.
    ///
    /// # Errors
    /// The work's own.
    pub fn noting<T>(&self, result: sqlx::Result<T>) -> sqlx::Result<T> {
        if matches!(result, Err(sqlx::Error::PoolTimedOut)) {
            self.replace();
        }
        result
    }

    fn replace(&self) {
        let mut made = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Others may have waited for the same pool, and say so after it has been replaced.
        if made.at.elapsed() < made.pool.options().get_acquire_timeout() {
            return;
        }
        tracing::warn!("no connection to the database came free; making new ones");
        let options = made.pool.options().clone();
        let database = (*made.pool.connect_options()).clone();
        *made = Made {
            pool: options.connect_lazy_with(database),
            at: Instant::now(),
        };
    }
}

async fn answers(connection: &mut PgConnection, within: Duration) -> sqlx::Result<bool> {
    match tokio::time::timeout(within, connection.ping()).await {
        Ok(answer) => answer.map(|()| true),
        Err(_) => Err(silent()),
    }
}

fn silent() -> sqlx::Error {
    let error = io::Error::new(io::ErrorKind::TimedOut, "the database does not answer");
    sqlx::Error::Io(error)
}
