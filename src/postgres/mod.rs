//! A PostgreSQL server of our own, for `boxrun up`, for tests and for demos, from the server programs that are installed.
//!
//! What it guarantees:
//! - It listens on 127.0.0.1 alone, on a port of its own, with a random password, and on no socket in the file system.
//! - It ends with the process that started it, whichever way that one ends (`nothing_is_left_after_kill_9`), and a
//!   temporary one takes its folder with it. Only a `kill -9` of its watchdog as well leaves a server behind.
//! - A kept folder keeps its data, its password and the version of PostgreSQL that wrote it; one process holds it at a time.
//! - As root the server runs as the user `postgres`, or `nobody`: PostgreSQL refuses root.
//!
//! `postgresql_embedded` was looked at: it can't run as root, and its download can't be reached from everywhere.

use std::path::Path;

use account::Account;
use binaries::Binaries;
use cluster::{Cluster, DATABASE, Lifetime, USER, stop_within_limit};
use folder::{Folder, Unfinished};
use secrecy::{ExposeSecret as _, SecretString};
use watchdog::Watched;

mod account;
mod binaries;
mod cluster;
mod error;
mod folder;
mod leftover;
mod watchdog;

pub use error::LocalPostgresError;

/// Whether a commit is on the disk when it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// As in production.
    Kept,
    /// Faster; a crash of the machine loses the database. For tests.
    Forgotten,
}

/// What may be chosen about a local server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalPostgresSettings {
    /// The port on 127.0.0.1; `None`: a free one.
    pub port: Option<u16>,
    /// Connections at a time, at least 1.
    pub max_connections: u16,
    /// What a commit means.
    pub durability: Durability,
}

impl Default for LocalPostgresSettings {
    /// A free port, 300 connections (a test run holds many), durable commits.
    fn default() -> Self {
        Self {
            port: None,
            max_connections: 300,
            durability: Durability::Kept,
        }
    }
}

/// A running server. Dropping it stops the server without waiting; [`LocalPostgres::stop`] waits.
#[derive(Debug)]
pub struct LocalPostgres {
    account: Account,
    binaries: Binaries,
    folder: Folder,
    settings: LocalPostgresSettings,
    password: SecretString,
    port: u16,
    lifetime: Lifetime,
    server: Watched,
}

impl LocalPostgres {
    /// A server whose data go with it, not durable: for tests.
    ///
    /// # Errors
    /// No usable server programs, no user to run them as, or a server that does not start.
    pub async fn temporary() -> Result<Self, LocalPostgresError> {
        let settings = LocalPostgresSettings {
            durability: Durability::Forgotten,
            ..Default::default()
        };
        Self::temporary_with(settings).await
    }

    /// [`LocalPostgres::temporary`] with other settings.
    ///
    /// # Errors
    /// As [`LocalPostgres::temporary`].
    pub async fn temporary_with(settings: LocalPostgresSettings) -> Result<Self, LocalPostgresError> {
        let account = Account::choose().await?;
        // Before the folder is made: a kill that comes before the first watchdog would leave it behind.
        let installed = Binaries::installed(&account).await;
        let folder = Folder::temporary(&account)?;
        Self::open(account, installed, folder, settings, Lifetime::Temporary).await
    }

    /// A server whose data stay in `path` for the next start. When we are root and the server's user can't reach `path`, the
    /// data are below `/var/lib/boxrun`, and `path` is a link to them.
    ///
    /// # Errors
    /// As [`LocalPostgres::temporary`]; a folder in use, of another program, or of a version that is not installed.
    pub async fn in_folder(path: impl AsRef<Path>) -> Result<Self, LocalPostgresError> {
        Self::in_folder_with(path, LocalPostgresSettings::default()).await
    }

    /// [`LocalPostgres::in_folder`] with other settings.
    ///
    /// # Errors
    /// As [`LocalPostgres::in_folder`].
    pub async fn in_folder_with(
        path: impl AsRef<Path>,
        settings: LocalPostgresSettings,
    ) -> Result<Self, LocalPostgresError> {
        let account = Account::choose().await?;
        let installed = Binaries::installed(&account).await;
        let folder = Folder::kept(&account, path.as_ref())?;
        Self::open(account, installed, folder, settings, Lifetime::Kept).await
    }

    async fn open(
        account: Account,
        installed: Vec<Binaries>,
        folder: Folder,
        settings: LocalPostgresSettings,
        lifetime: Lifetime,
    ) -> Result<Self, LocalPostgresError> {
        let unfinished = Unfinished::new(&folder, lifetime);
        let written_by = folder.written_by();
        let binaries = Binaries::choose(installed, folder.path(), written_by)?;
        leftover::wait_until_gone(&folder.data()).await?;
        let password = folder.password(&account, random_password)?;
        let cluster = Cluster {
            account: &account,
            binaries: &binaries,
            folder: &folder,
            settings,
            lifetime,
        };
        if written_by.is_none() {
            cluster.initialise().await?;
        }
        let (server, port) = cluster.start(settings.port, &password).await?;
        unfinished.finished();
        Ok(Self {
            account,
            binaries,
            folder,
            settings,
            password,
            port,
            lifetime,
            server,
        })
    }

    /// The address, with the password: `postgres://boxrun:…@127.0.0.1:PORT/postgres`. It stays the same over
    /// [`LocalPostgres::restart`]. The user is a superuser.
    #[must_use]
    pub fn url(&self) -> String {
        let (password, port) = (self.password.expose_secret(), self.port);
        format!("postgres://{USER}:{password}@127.0.0.1:{port}/{DATABASE}")
    }

    /// Where the server's files are: `data/`, `password`, `postgres.log`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where the programs of the server's version are (`psql`, `pg_dump`); most systems keep them off `PATH`.
    #[must_use]
    pub fn programs(&self) -> &Path {
        &self.binaries.folder
    }

    /// Returns when the server has ended without being asked to.
    pub async fn ended(&mut self) {
        self.server.ended().await;
    }

    /// Stops the server (a fast shutdown: sessions are ended, commits are kept) and waits for it; a temporary one's folder is
    /// removed.
    ///
    /// # Errors
    /// The server did not stop within 45 s.
    pub async fn stop(self) -> Result<(), LocalPostgresError> {
        stop_within_limit(self.server, self.folder.path()).await
    }

    /// Stops the server as [`LocalPostgres::stop`] does and starts it again on the same port with the same data; also after
    /// [`LocalPostgres::kill9`] or a crash.
    ///
    /// # Errors
    /// As [`LocalPostgres::stop`] and [`LocalPostgres::temporary`].
    pub async fn restart(self) -> Result<Self, LocalPostgresError> {
        let Self {
            account,
            binaries,
            folder,
            settings,
            password,
            port,
            lifetime,
            mut server,
        } = self;
        let unfinished = Unfinished::new(&folder, lifetime);
        server.keep_scrap().await;
        stop_within_limit(server, folder.path()).await?;
        let cluster = Cluster {
            account: &account,
            binaries: &binaries,
            folder: &folder,
            settings,
            lifetime,
        };
        let (server, port) = cluster.start(Some(port), &password).await?;
        unfinished.finished();
        Ok(Self {
            account,
            binaries,
            folder,
            settings,
            password,
            port,
            lifetime,
            server,
        })
    }

    /// Kills the server as a crash would and waits until its processes are gone. For tests; go on with
    /// [`LocalPostgres::restart`].
    pub async fn kill9(&mut self) {
        self.server.kill().await;
        self.server.ended().await;
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the edge: a secret that no test needs to know in advance"
)]
fn random_password() -> SecretString {
    format!("{:032x}", rand::random::<u128>()).into()
}
