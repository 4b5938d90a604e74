//! PostgreSQL with a standby that has every commit before its caller does, so that a failover forgets nothing.

use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use boxrun::postgres::{LocalPostgres, LocalPostgresSettings};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::process::Command;
use tokio::time::Instant;

/// On a loaded machine; a copy of the database takes a second otherwise.
const STANDBY_MAX: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

pub struct Database {
    primary: Option<LocalPostgres>,
    standby: Option<LocalPostgres>,
    folder: PathBuf,
    copies: usize,
}

impl Database {
    /// Both servers, in `folder`, which the server's user can enter.
    pub async fn start(folder: &Path) -> anyhow::Result<Self> {
        // The server may run as another user than ours.
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711))?;
        let primary = LocalPostgres::in_folder_with(folder.join("0"), LocalPostgresSettings::default()).await?;
        let mut database = Self {
            primary: Some(primary),
            standby: None,
            folder: folder.to_owned(),
            copies: 0,
        };
        // After a restart the standby shall be back before anybody has waited long for its commit.
        database.alter("wal_retrieve_retry_interval", "'100ms'").await?;
        database.alter("wal_keep_size", "'256MB'").await?;
        database.add_standby().await?;
        Ok(database)
    }

    fn primary(&self) -> &LocalPostgres {
        self.primary.as_ref().expect("a server unless its start failed")
    }

    /// Where the primary listens now.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        let url: url::Url = self.primary().url().parse()?;
        Ok(SocketAddr::from(([127, 0, 0, 1], url.port().context("a port")?)))
    }

    /// The primary's address with another one in place of its own.
    pub fn url_by_way_of(&self, proxy: SocketAddr) -> anyhow::Result<String> {
        let mut url: url::Url = self.primary().url().parse()?;
        url.set_port(Some(proxy.port()))
            .map_err(|()| anyhow::anyhow!("a port"))?;
        Ok(url.into())
    }

    /// A connection to the primary itself that may write also while others may not.
    pub async fn connect(&self) -> anyhow::Result<PgConnection> {
        connect(&self.primary().url()).await
    }

    pub async fn restart(&mut self) -> anyhow::Result<()> {
        let primary = self.primary.take().context("a server")?;
        self.primary = Some(primary.restart().await?);
        Ok(())
    }

    pub async fn kill9(&mut self) -> anyhow::Result<()> {
        self.primary.as_mut().context("a server")?.kill9().await;
        self.restart().await
    }

    /// Sets a setting of the primary, at once.
    pub async fn alter(&self, name: &str, value: &str) -> anyhow::Result<()> {
        let mut conn = self.connect().await?;
        for statement in [
            format!("alter system set {name} = {value}"),
            "select pg_reload_conf()".to_owned(),
        ] {
            sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut conn).await?;
        }
        Ok(conn.close().await?)
    }

    /// Ends up to `count` sessions that go by this name, wherever they are.
    pub async fn terminate(&self, application: &str, count: i64) -> anyhow::Result<usize> {
        let mut conn = self.connect().await?;
        let ended = sqlx::query(
            "select pg_terminate_backend(pid) from (select pid from pg_stat_activity
              where application_name = $1 order by md5(pid::text || clock_timestamp()::text) limit $2) chosen",
        )
        .bind(application)
        .bind(count)
        .fetch_all(&mut conn)
        .await?;
        conn.close().await?;
        Ok(ended.len())
    }

    /// Kills the primary and makes the standby the primary. False: the standby has not caught up, nothing was done.
    pub async fn fail_over(&mut self) -> anyhow::Result<bool> {
        if self.standby.is_none() || !self.standby_is_ready().await? {
            return Ok(false);
        }
        let mut old = self.primary.take().context("a server")?;
        self.primary = self.standby.take();
        old.kill9().await;
        let mut conn = self.connect().await?;
        sqlx::query("select pg_promote()").execute(&mut conn).await?;
        conn.close().await?;
        let folder = old.folder().to_owned();
        old.stop().await?;
        std::fs::remove_dir_all(folder)?;
        Ok(true)
    }

    async fn standby_is_ready(&self) -> anyhow::Result<bool> {
        let mut conn = self.connect().await?;
        let row = sqlx::query(
            "select exists (select 1 from pg_stat_replication
              where state = 'streaming' and sync_state = 'sync' and flush_lsn >= pg_current_wal_flush_lsn()) as ready",
        )
        .fetch_one(&mut conn)
        .await?;
        Ok(row.try_get("ready")?)
    }

    /// Copies the primary, starts the copy and has commits wait for it from then on.
    pub async fn add_standby(&mut self) -> anyhow::Result<()> {
        self.copies += 1;
        let folder = self.folder.join(self.copies.to_string());
        std::fs::create_dir(&folder)?;
        let primary = self.primary();
        std::fs::write(folder.join("lock"), "")?;
        std::fs::copy(primary.folder().join("password"), folder.join("password"))?;
        let copy = Command::new(primary.programs().join("pg_basebackup"))
            .args([
                "--write-recovery-conf",
                "--checkpoint=fast",
                "--no-sync",
                "--dbname",
                &primary.url(),
            ])
            .arg("--pgdata")
            .arg(folder.join("data"))
            .kill_on_drop(true)
            .output();
        let copy = tokio::time::timeout(STANDBY_MAX, copy)
            .await
            .context("pg_basebackup lasts")??;
        ensure!(
            copy.status.success(),
            "pg_basebackup: {}",
            String::from_utf8_lossy(&copy.stderr)
        );
        hand_over(&folder, primary.folder()).await?;
        let standby = LocalPostgres::in_folder_with(&folder, LocalPostgresSettings::default()).await?;
        self.standby = Some(standby);
        self.alter("synchronous_standby_names", "'*'").await?;
        let give_up = Instant::now() + STANDBY_MAX;
        while !self.standby_is_ready().await? {
            ensure!(Instant::now() < give_up, "the standby does not catch up");
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Ok(())
    }

    pub async fn stop(self) -> anyhow::Result<()> {
        for server in [self.primary, self.standby].into_iter().flatten() {
            server.stop().await?;
        }
        Ok(())
    }
}

async fn connect(url: &str) -> anyhow::Result<PgConnection> {
    let options: PgConnectOptions = url.parse()?;
    let options = options
        .application_name("chaos")
        .options([("default_transaction_read_only", "off")]);
    Ok(PgConnection::connect_with(&options).await?)
}

/// Gives `folder` to the owner of `other`.
async fn hand_over(folder: &Path, other: &Path) -> anyhow::Result<()> {
    let owner = std::fs::metadata(other)?;
    let to = format!("{}:{}", owner.uid(), owner.gid());
    let status = Command::new("chown").arg("-R").arg(to).arg(folder).status().await?;
    ensure!(status.success(), "chown failed");
    Ok(())
}
