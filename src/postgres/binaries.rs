//! Where the server's programs are: every system's packages put them elsewhere, and most keep them off `PATH`.

use std::path::{Path, PathBuf};

use super::LocalPostgresError;
use super::account::Account;

/// The oldest version that boxrun works with.
const OLDEST: u32 = 14;

/// One installed server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binaries {
    pub(super) folder: PathBuf,
    pub(super) major: u32,
}

/// A folder whose children are named by version, as (parent, start of the child's name, rest of the path).
const INSTALLED: [(&str, &str, &str); 8] = [
    ("/usr/lib/postgresql", "", "bin"),                          // Debian, Ubuntu
    ("/usr", "pgsql-", "bin"),                                   // Fedora and RHEL, from the PostgreSQL project
    ("/usr/lib", "postgresql", "bin"),                           // openSUSE
    ("/usr/libexec", "postgresql", ""),                          // Alpine
    ("/opt/homebrew/opt", "postgresql@", "bin"),                 // Homebrew on Apple silicon
    ("/usr/local/opt", "postgresql@", "bin"),                    // Homebrew on Intel
    ("/home/linuxbrew/.linuxbrew/opt", "postgresql@", "bin"),    // Homebrew on Linux
    ("/Applications/Postgres.app/Contents/Versions", "", "bin"), // Postgres.app
];

impl Binaries {
    /// All servers on this machine in the order of preference: the one on `PATH`, then `pg_config`'s, then the newest.
    pub(super) async fn installed(account: &Account) -> Vec<Self> {
        let mut preferred = Vec::new();
        for folder in on_path().into_iter().chain(from_pg_config(account).await) {
            preferred.extend(Self::inspect(account, &folder).await);
        }
        let mut others = Vec::new();
        for folder in versioned_folders() {
            others.extend(Self::inspect(account, &folder).await);
        }
        others.sort_by_key(|binaries| std::cmp::Reverse(binaries.major));
        preferred.extend(others);
        preferred
    }

    /// The first of `installed` for new data; for data in `folder` that were `written_by` a version, the first of that version.
    pub(super) fn choose(
        installed: Vec<Self>,
        folder: &Path,
        written_by: Option<u32>,
    ) -> Result<Self, LocalPostgresError> {
        let mut installed = installed.into_iter();
        match written_by {
            None => installed.next().ok_or(LocalPostgresError::NoServer { oldest: OLDEST }),
            Some(version) => {
                let fitting = installed.find(|binaries| binaries.major == version);
                fitting.ok_or_else(|| LocalPostgresError::VersionMissing {
                    folder: folder.to_path_buf(),
                    version,
                })
            }
        }
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// What is in a folder: asked as the user who will run it, so that a server which that user can't reach does not count.
    async fn inspect(account: &Account, folder: &Path) -> Option<Self> {
        // What is on PATH is often a link; the other programs of the same version are where it points to.
        let postgres = folder.join("postgres").canonicalize().ok()?;
        let folder = postgres.parent()?;
        if !folder.join("initdb").is_file() {
            return None;
        }
        let output = account.command(&postgres).arg("--version").output().await.ok()?;
        let major = major_version(&String::from_utf8_lossy(&output.stdout))?;
        (major >= OLDEST).then(|| Self {
            folder: folder.to_path_buf(),
            major,
        })
    }
}

/// The major version in `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn major_version(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("(PostgreSQL) ")?;
    version
        .split(|character: char| !character.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[expect(
    clippy::disallowed_methods,
    reason = "PATH is where programs are looked up, not a setting"
)]
fn on_path() -> Vec<PathBuf> {
    std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default()
}

async fn from_pg_config(account: &Account) -> Option<PathBuf> {
    let output = account.command("pg_config").arg("--bindir").output().await.ok()?;
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!folder.is_empty()).then(|| folder.into())
}

fn versioned_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for (parent, start, rest) in INSTALLED {
        let children = std::fs::read_dir(parent).into_iter().flatten().flatten();
        let named = children.filter(|child| child.file_name().as_encoded_bytes().starts_with(start.as_bytes()));
        folders.extend(named.map(|child| child.path().join(rest)));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(folder: &str, major: u32) -> Binaries {
        Binaries {
            folder: folder.into(),
            major,
        }
    }

    #[test]
    fn versions_are_read_as_packagers_write_them() {
        let cases = [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", Some(15)),
            ("postgres (PostgreSQL) 18beta1\n", Some(18)),
            ("postgres (PostgreSQL) 14.0", Some(14)),
            ("postgres (PostgreSQL) ", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(major_version(text), expected, "{text:?}");
        }
    }

    #[test]
    fn new_data_takes_the_preferred_server_and_kept_data_the_version_that_wrote_it() {
        let choose = |written_by| {
            let installed = vec![
                server("/path", 15),
                server("/b", 17),
                server("/c", 17),
                server("/a", 14),
            ];
            Binaries::choose(installed, Path::new("/data"), written_by)
        };
        assert_eq!(choose(None).unwrap(), server("/path", 15));
        assert_eq!(choose(Some(17)).unwrap(), server("/b", 17));
        assert_eq!(choose(Some(14)).unwrap(), server("/a", 14));
        assert!(matches!(
            choose(Some(16)),
            Err(LocalPostgresError::VersionMissing { version: 16, .. })
        ));
    }

    #[test]
    fn no_server_at_all_is_said() {
        let none = Binaries::choose(Vec::new(), Path::new("/data"), None);
        assert!(matches!(none, Err(LocalPostgresError::NoServer { .. })));
    }
}
