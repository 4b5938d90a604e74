//! What keeps a local PostgreSQL from running, each with what to do about it.

use std::io;
use std::path::PathBuf;

/// A local PostgreSQL that could not be started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum LocalPostgresError {
    /// No server binaries on this machine.
    #[error(
        "no PostgreSQL server of version {oldest} or later was found: install one with the system's package manager \
         (bin/up does), or put its bin directory on PATH"
    )]
    NoServer { oldest: u32 },
    /// A kept folder needs the version that wrote it.
    #[error(
        "{} was written by PostgreSQL {version}, which is not installed: install that version, or name another folder",
        folder.display()
    )]
    VersionMissing { folder: PathBuf, version: u32 },
    /// Another living process holds the folder.
    #[error("{} is in use by another boxrun: stop that one, or name another folder", folder.display())]
    InUse { folder: PathBuf },
    /// A server that an earlier process left does not end.
    #[error(
        "an earlier PostgreSQL (process {pid}) still works in {}: wait for it or stop it with `kill -INT {pid}`, \
         then start again",
        folder.display()
    )]
    StillRunning { folder: PathBuf, pid: u32 },
    /// The folder holds something else.
    #[error("{} is neither empty nor a database folder of boxrun: name another folder", folder.display())]
    NotOurs { folder: PathBuf },
    /// The user that the server runs as may not enter a parent of the folder.
    #[error(
        "PostgreSQL refuses to run as root and runs as the user {user}, who may not enter {}: \
         allow it (chmod o+x), or name a folder elsewhere, for example under /var/lib",
        obstacle.display()
    )]
    Unreachable { user: String, obstacle: PathBuf },
    /// Root, and nobody to run the server as.
    #[error(
        "PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as: \
         create one (useradd --system postgres), or start boxrun as an ordinary user"
    )]
    NoAccount,
    /// The port that was asked for is taken, or a free one was lost to another program several times.
    #[error("port {port} of 127.0.0.1 is taken by another program: stop that one, or choose another port")]
    PortTaken { port: u16 },
    /// The file system refused.
    #[error("could not {doing} {}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A program could not be run at all.
    #[error("could not run {program}")]
    Program {
        program: String,
        #[source]
        source: io::Error,
    },
    /// `initdb` or `postgres` ended instead of doing its work.
    #[error("{program} ended at once; the last lines of its log:\n{log}")]
    Ended { program: &'static str, log: String },
    /// The server runs but answers no connection.
    #[error("PostgreSQL took no connection within {seconds} s; the last lines of its log:\n{log}")]
    NotReady {
        seconds: u64,
        log: String,
        #[source]
        source: Option<sqlx::Error>,
    },
    /// The server did not end.
    #[error("PostgreSQL did not stop within {seconds} s: see the processes that work in {}", folder.display())]
    NotStopped { folder: PathBuf, seconds: u64 },
}

impl LocalPostgresError {
    /// For `map_err` on the file system's calls: what was being done, to what.
    pub(super) fn file(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { doing, path, source }
    }
}
