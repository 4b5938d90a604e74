//! The nine scenarios: what goes wrong between two phases in which nothing does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::{Instant, sleep, sleep_until};

use super::load::Load;
use super::stage::Stage;
use super::{CALLERS, Outcome};

const TERMINATE: &str = "select pg_terminate_backend(pid) from (select pid from pg_stat_activity
     where application_name <> 'bench' and backend_type = 'client backend' and pid <> pg_backend_pid()
     order by random() limit 1) one";
const ANALYTICS: &str = "select count(*), max(r.updated_at), sum(length(o.text)), count(distinct e.event)
     from boxrun.runs r left join boxrun.jobs j on j.run_id = r.id
     left join boxrun.run_output o on o.run_id = r.id left join boxrun.run_events e on e.run_id = r.id";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Trouble {
    /// The server is stopped in an orderly way and started again.
    PostgresRestart,
    /// One of the workers' connections is terminated five times a second.
    BackendKill,
    /// All connections that the server has are taken, and the workers lose theirs again and again.
    PoolExhaustion,
    /// A worker is killed with -9 and started again.
    CrashRecovery,
    /// A worker is killed with -9 and started again every two seconds.
    RepeatedKills,
    /// A transaction that has written stays open, so that no dead row can be removed.
    IdleInTransaction,
    /// Half as many callers again.
    SustainedLoad,
    /// Four readers go through all tables in snapshots of their own.
    ActiveReaders,
    /// As many runs as there are callers are admitted at once, ten times.
    Bursts,
}

impl Trouble {
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("none is hidden");
        value.get_name().to_owned()
    }

    pub fn about(self) -> String {
        let value = self.to_possible_value().expect("none is hidden");
        value.get_help().map(ToString::to_string).unwrap_or_default()
    }

    /// Whether something breaks that may have had a dispatch in hand.
    pub fn breaks_something(self) -> bool {
        match self {
            Self::PostgresRestart
            | Self::BackendKill
            | Self::PoolExhaustion
            | Self::CrashRecovery
            | Self::RepeatedKills => true,
            Self::IdleInTransaction | Self::SustainedLoad | Self::ActiveReaders | Self::Bursts => false,
        }
    }

    /// Goes on for `time`, and returns when it was over.
    pub async fn happen(self, stage: &mut Stage, load: &mut Load, time: Duration) -> Outcome<std::time::Instant> {
        let until = Instant::now() + time;
        match self {
            Self::PostgresRestart => stage.restart_postgres().await?,
            Self::CrashRecovery => stage.kill_worker(0).await?,
            Self::BackendKill => {
                let mut conn = stage.connect().await?;
                while Instant::now() < until {
                    conn.execute(TERMINATE).await?;
                    sleep(Duration::from_millis(200)).await;
                }
            }
            Self::PoolExhaustion => exhaust(stage, until).await?,
            Self::RepeatedKills => {
                let mut victim = 0;
                while Instant::now() < until {
                    stage.kill_worker(victim % 2).await?;
                    victim += 1;
                    sleep(Duration::from_secs(2)).await;
                }
            }
            Self::IdleInTransaction => {
                let mut conn = stage.connect().await?;
                let mut tx = conn.begin().await?;
                tx.execute("create temporary table holder (); select txid_current()")
                    .await?;
                sleep_until(until).await;
                tx.rollback().await?;
            }
            Self::SustainedLoad => {
                let goes_on = Arc::new(AtomicBool::new(true));
                load.spawn(CALLERS / 2, &goes_on);
                sleep_until(until).await;
                goes_on.store(false, Ordering::Relaxed);
            }
            Self::ActiveReaders => {
                let mut readers = tokio::task::JoinSet::new();
                for _ in 0..4 {
                    let conn = stage.connect().await?;
                    readers.spawn(async move { read(conn, until).await.map_err(|error| error.to_string()) });
                }
                while let Some(ended) = readers.join_next().await {
                    ended??;
                }
            }
            Self::Bursts => {
                for burst in 0..10 {
                    load.burst(CALLERS);
                    sleep_until(until - time + time / 10 * (burst + 1)).await;
                }
            }
        }
        Ok(std::time::Instant::now())
    }
}

/// Takes every connection there is, and the workers' as soon as they have new ones.
async fn exhaust(stage: &Stage, until: Instant) -> Outcome<()> {
    let mut taken: Vec<PgConnection> = Vec::new();
    let mut held = stage.connect().await?;
    while Instant::now() < until {
        while let Ok(conn) = stage.connect().await {
            taken.push(conn);
        }
        held.execute(TERMINATE).await?;
        sleep(Duration::from_millis(200)).await;
    }
    for conn in taken {
        conn.close().await?;
    }
    Ok(())
}

async fn read(mut conn: PgConnection, until: Instant) -> sqlx::Result<()> {
    while Instant::now() < until {
        conn.execute("begin isolation level repeatable read").await?;
        for _ in 0..3 {
            conn.execute(ANALYTICS).await?;
        }
        conn.execute("rollback").await?;
    }
    Ok(())
}
