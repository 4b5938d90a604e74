//! A PgBouncer in transaction mode, as the web app's side may have one between itself and PostgreSQL.

use std::fs::Permissions;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::support::wait::wait_until;

/// PgBouncer refuses root; the numbers of a user without rights, on every system.
const NOBODY: u32 = 65534;
/// A free port can be lost to another program between our look and PgBouncer's start.
const ATTEMPTS: usize = 5;

/// Ends when dropped.
pub struct PgBouncer {
    pub port: u16,
    child: Child,
    folder: TempDir,
}

impl PgBouncer {
    /// One that logs in at `server` (a connection string of libpq), with a single connection for all its clients.
    pub async fn start(server: &str) -> Self {
        for _ in 0..ATTEMPTS {
            let mut bouncer = Self::spawn(server);
            let port = bouncer.port;
            let listening = wait_until(
                "PgBouncer listens or has ended",
                async || match bouncer.child.try_wait().unwrap() {
                    Some(_) => Some(false),
                    None => TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(true),
                },
                Option::is_some,
            )
            .await;
            if listening == Some(true) {
                return bouncer;
            }
            let log = std::fs::read_to_string(bouncer.folder.path().join("log")).unwrap_or_default();
            assert!(log.contains("in use"), "PgBouncer ended: {log}");
        }
        panic!("PgBouncer got no port in {ATTEMPTS} attempts");
    }

    fn spawn(server: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind(("127.0.0.1", 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let config = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n\
             * = {server}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {port}\n\
             unix_socket_dir =\n\
             auth_type = any\n\
             pool_mode = transaction\n\
             default_pool_size = 1\n\
             ignore_startup_parameters = extra_float_digits\n"
        );
        let mut file = std::fs::File::create(&config).unwrap();
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(program());
        command.arg("--quiet").arg(&config).current_dir("/");
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        if rustix::process::geteuid().is_root() {
            for path in [folder.path(), &config] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
            command.uid(NOBODY).gid(NOBODY);
        }
        let child = command.spawn().expect("PgBouncer starts");
        Self { port, child, folder }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Debian has it in a folder that is not on every user's PATH.
fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|folder: PathBuf| folder.join("pgbouncer"))
        .find(|program: &PathBuf| Path::is_file(program))
        .expect("pgbouncer is missing; `bin/_need clients` installs it")
}
