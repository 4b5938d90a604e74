//! The steps of a server's life: `initdb`, start, connection, stop.

use std::path::Path;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{Connection as _, PgConnection};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::Instant;

use super::account::Account;
use super::binaries::Binaries;
use super::folder::Folder;
use super::watchdog::Watched;
use super::{Durability, LocalPostgresError, LocalPostgresSettings};

pub(super) const USER: &str = "boxrun";
pub(super) const DATABASE: &str = "postgres";

/// A free port can be lost to another program between our look and the server's start.
const PORT_ATTEMPTS: usize = 3;
const LONGEST_START: Duration = Duration::from_secs(60);
const BETWEEN_CONNECTS: Duration = Duration::from_millis(20);
/// The watchdog cuts a hanging shutdown short after 30 s.
const LONGEST_STOP: Duration = Duration::from_secs(45);

/// Whether the folder goes with the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifetime {
    Temporary,
    Kept,
}

/// What both a first start and a restart need.
#[derive(Clone, Copy)]
pub(super) struct Cluster<'a> {
    pub(super) account: &'a Account,
    pub(super) binaries: &'a Binaries,
    pub(super) folder: &'a Folder,
    pub(super) settings: LocalPostgresSettings,
    pub(super) lifetime: Lifetime,
}

impl Cluster<'_> {
    /// Makes the data, for which `password` is in the folder.
    pub(super) async fn initialise(self) -> Result<(), LocalPostgresError> {
        let unfinished = self.folder.unfinished_data();
        if unfinished.exists() {
            std::fs::remove_dir_all(&unfinished).map_err(LocalPostgresError::file("remove", &unfinished))?;
        }
        let mut initdb = Command::new(self.binaries.program("initdb"));
        initdb.args([
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--username",
            USER,
        ]);
        initdb
            .arg("--pwfile")
            .arg(self.folder.password_file())
            .arg("--pgdata")
            .arg(&unfinished);
        if self.settings.durability == Durability::Forgotten {
            initdb.arg("--no-sync");
        }
        let mut running = self.spawn(&initdb)?;
        running.ended().await;
        running.keep_scrap().await;
        if !running.stop().await?.success() {
            let log = self.folder.log_tail();
            return Err(LocalPostgresError::Ended { program: "initdb", log });
        }
        let data = self.folder.data();
        std::fs::rename(&unfinished, &data).map_err(LocalPostgresError::file("rename", &unfinished))
    }

    /// Starts the server on `port`, or on free ones until it gets one.
    pub(super) async fn start(
        self,
        port: Option<u16>,
        password: &SecretString,
    ) -> Result<(Watched, u16), LocalPostgresError> {
        let mut attempts = match port {
            Some(_) => 1,
            None => PORT_ATTEMPTS,
        };
        loop {
            attempts -= 1;
            let chosen = match port {
                Some(port) => port,
                None => free_port().await?,
            };
            match self.start_on(chosen, password).await {
                Ok(server) => return Ok((server, chosen)),
                Err(LocalPostgresError::PortTaken { .. }) if attempts > 0 => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn start_on(self, port: u16, password: &SecretString) -> Result<Watched, LocalPostgresError> {
        let mut server = self.spawn(&self.server_command(port))?;
        let failure = tokio::select! {
            connected = connect(port, password) => match connected {
                Ok(()) => return Ok(server),
                Err(source) => {
                    LocalPostgresError::NotReady { seconds: LONGEST_START.as_secs(), log: self.folder.log_tail(), source }
                }
            },
            () = server.ended() => {
                let log = self.folder.log_tail();
                // initdb's settings make the server write its log untranslated.
                if log.contains("could not bind IPv4 address") {
                    LocalPostgresError::PortTaken { port }
                } else {
                    LocalPostgresError::Ended { program: "postgres", log }
                }
            }
        };
        server.keep_scrap().await;
        stop_within_limit(server, self.folder.path()).await?;
        Err(failure)
    }

    fn server_command(self, port: u16) -> Command {
        let mut postgres = Command::new(self.binaries.program("postgres"));
        postgres
            .arg("-D")
            .arg(self.folder.data())
            .arg("-p")
            .arg(port.to_string());
        let max_connections = format!("max_connections={}", self.settings.max_connections);
        let always = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "log_destination=stderr",
        ];
        let fast: &[&str] = match self.settings.durability {
            Durability::Kept => &[],
            Durability::Forgotten => &["fsync=off", "synchronous_commit=off", "full_page_writes=off"],
        };
        for setting in always
            .iter()
            .chain(fast)
            .copied()
            .chain([max_connections.as_str(), "logging_collector=off"])
        {
            postgres.args(["-c", setting]);
        }
        postgres
    }

    fn spawn(self, command_line: &Command) -> Result<Watched, LocalPostgresError> {
        let scrap = match self.lifetime {
            Lifetime::Temporary => Some(self.folder.path()),
            Lifetime::Kept => None,
        };
        let log = self.folder.new_log(self.account)?;
        Watched::spawn(self.account.command("sh"), scrap, command_line, log)
    }
}

/// Stops a server that is to be stopped, and says so when it doesn't.
pub(super) async fn stop_within_limit(server: Watched, folder: &Path) -> Result<(), LocalPostgresError> {
    let folder = folder.to_path_buf();
    match tokio::time::timeout(LONGEST_STOP, server.stop()).await {
        // The status says how the server ended, after a crash for instance; here it matters that it has.
        Ok(status) => status.map(|_| ()),
        Err(_) => Err(LocalPostgresError::NotStopped {
            folder,
            seconds: LONGEST_STOP.as_secs(),
        }),
    }
}

/// Returns when the server takes a connection with our password: whoever else listens on the port refuses it.
async fn connect(port: u16, password: &SecretString) -> Result<(), Option<sqlx::Error>> {
    let options = PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(port)
        .username(USER);
    let options = options
        .password(password.expose_secret())
        .database(DATABASE)
        .ssl_mode(PgSslMode::Disable);
    let give_up = Instant::now() + LONGEST_START;
    let mut last = None;
    while let Ok(attempt) = tokio::time::timeout_at(give_up, PgConnection::connect_with(&options)).await {
        match attempt {
            // Said goodbye to or not: the server is there.
            Ok(connection) => {
                let _ = connection.close().await;
                return Ok(());
            }
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(BETWEEN_CONNECTS).await;
    }
    Err(last)
}

async fn free_port() -> Result<u16, LocalPostgresError> {
    let failed = |source| LocalPostgresError::File {
        doing: "listen on",
        path: "127.0.0.1".into(),
        source,
    };
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(failed)?;
    Ok(listener.local_addr().map_err(failed)?.port())
}
