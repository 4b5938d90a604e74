//! The folder of one database: `data/` (PostgreSQL's own), `password`, `postgres.log` and a `lock`.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret as _, SecretString};
use uuid::Uuid;

use super::LocalPostgresError;
use super::account::Account;
use super::cluster::Lifetime;

/// How much of the log an error quotes.
const LOG_TAIL_LINES: usize = 15;

/// Where kept databases go whose own folder the server's user can't reach.
const SUBSTITUTES: &str = "/var/lib/boxrun";

/// A folder that exists, belongs to the server's user, and is held by this process alone.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// A new folder for a database that is thrown away: in the system's temporary folder, or in `/var/tmp` when the server's
    /// user can't enter that one (root may have its own).
    pub(super) fn temporary(account: &Account) -> Result<Self, LocalPostgresError> {
        let parents = [std::env::temp_dir(), PathBuf::from("/var/tmp")];
        let parent = parents
            .iter()
            .find(|parent| account.obstacle(parent).is_none())
            .unwrap_or(&parents[1]);
        account.reaches(parent)?;
        let path = parent.join(format!("boxrun-postgres-{}", Uuid::new_v4().simple()));
        Self::take(account, &path)
    }

    /// The folder at `path`, made if need be. When we are root and the server's user can't enter a parent of it (`/root`, most
    /// often), the database is kept below `/var/lib/boxrun` and `path` is a link to it.
    pub(super) fn kept(account: &Account, path: &Path) -> Result<Self, LocalPostgresError> {
        let path = std::path::absolute(path).map_err(LocalPostgresError::file("resolve", path))?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        if let Ok(target) = std::fs::read_link(&path) {
            return Self::take(account, &parent.join(target));
        }
        std::fs::create_dir_all(parent).map_err(LocalPostgresError::file("create", parent))?;
        let parent = parent
            .canonicalize()
            .map_err(LocalPostgresError::file("resolve", parent))?;
        if path.exists() {
            account.reaches(&parent)?;
        } else if account.obstacle(&parent).is_some() {
            let target = Path::new(SUBSTITUTES).join(Uuid::new_v4().simple().to_string());
            let folder = Self::take(account, &target)?;
            symlink(&folder.path, &path).map_err(LocalPostgresError::file("link", &path))?;
            return Ok(folder);
        }
        Self::take(account, &path)
    }

    fn take(account: &Account, path: &Path) -> Result<Self, LocalPostgresError> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(LocalPostgresError::file("create", parent))?;
        }
        if !path.exists() {
            DirBuilder::new()
                .mode(0o700)
                .create(path)
                .map_err(LocalPostgresError::file("create", path))?;
        }
        let path = path.canonicalize().map_err(LocalPostgresError::file("resolve", path))?;
        let mut entries = std::fs::read_dir(&path).map_err(LocalPostgresError::file("read", &path))?;
        // The lock is the first file we write, so a folder with other things and without it is somebody else's.
        if entries.next().is_some() && !path.join("lock").exists() {
            return Err(LocalPostgresError::NotOurs { folder: path });
        }
        let lock = lock(&path)?;
        let opened = File::open(&path).map_err(LocalPostgresError::file("open", &path))?;
        account.own(&opened, &path)?;
        account.reaches(&path)?;
        Ok(Self { path, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// Where `initdb` works: only a finished cluster is renamed to [`Folder::data`], so one that was cut off leaves no half.
    pub(super) fn unfinished_data(&self) -> PathBuf {
        self.path.join("data.new")
    }

    pub(super) fn password_file(&self) -> PathBuf {
        self.path.join("password")
    }

    /// The major version of PostgreSQL that wrote the data, when there is any.
    pub(super) fn written_by(&self) -> Option<u32> {
        std::fs::read_to_string(self.data().join("PG_VERSION"))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// The kept password, or the one that `make` gives, written so that only the server's user can read it.
    pub(super) fn password(
        &self,
        account: &Account,
        make: fn() -> SecretString,
    ) -> Result<SecretString, LocalPostgresError> {
        let file = self.password_file();
        if self.written_by().is_some() {
            let kept = std::fs::read_to_string(&file).map_err(LocalPostgresError::file("read", &file))?;
            return Ok(kept.trim().into());
        }
        let password = make();
        if file.exists() {
            // Of an `initdb` that was cut off.
            std::fs::remove_file(&file).map_err(LocalPostgresError::file("remove", &file))?;
        }
        let mut opened = create(account, &file)?;
        writeln!(opened, "{}", password.expose_secret()).map_err(LocalPostgresError::file("write", &file))?;
        Ok(password)
    }

    fn log(&self) -> PathBuf {
        self.path.join("postgres.log")
    }

    /// A new log for one start; the one before it is kept as `postgres.log.1`, older ones are dropped.
    pub(super) fn new_log(&self, account: &Account) -> Result<File, LocalPostgresError> {
        let log = self.log();
        if log.exists() {
            std::fs::rename(&log, self.path.join("postgres.log.1"))
                .map_err(LocalPostgresError::file("rename", &log))?;
        }
        create(account, &log)
    }

    /// The end of the log, for an error.
    pub(super) fn log_tail(&self) -> String {
        let bytes = std::fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }
}

/// A new file for the server's user alone. The folder is that user's, so as root we follow no link in it and change the
/// owner of nothing but what we have just made.
fn create(account: &Account, file: &Path) -> Result<File, LocalPostgresError> {
    let created = OpenOptions::new().append(true).create_new(true).mode(0o600).open(file);
    let created = created.map_err(LocalPostgresError::file("create", file))?;
    account.own(&created, file)?;
    Ok(created)
}

/// Removes a temporary folder when a start fails or is given up half-way. Once the server runs, its watchdog does that.
pub(super) struct Unfinished(Option<PathBuf>);

impl Unfinished {
    pub(super) fn new(folder: &Folder, lifetime: Lifetime) -> Self {
        match lifetime {
            Lifetime::Temporary => Self(Some(folder.path.clone())),
            Lifetime::Kept => Self(None),
        }
    }

    pub(super) fn finished(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // What made the start fail is reported already.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// The lock ends with this process, however that ends, so it says whether another *living* boxrun holds the folder.
fn lock(folder: &Path) -> Result<File, LocalPostgresError> {
    let path = folder.join("lock");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let file = file.map_err(LocalPostgresError::file("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LocalPostgresError::InUse {
            folder: folder.to_path_buf(),
        }),
        Err(TryLockError::Error(source)) => Err(LocalPostgresError::file("lock", &path)(source)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_is_held_by_one_process_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("database");
        let held = Folder::kept(&Account::Ourselves, &path).unwrap();
        assert!(matches!(
            Folder::kept(&Account::Ourselves, &path),
            Err(LocalPostgresError::InUse { .. })
        ));
        drop(held);
        Folder::kept(&Account::Ourselves, &path).unwrap();
    }

    #[test]
    fn a_folder_with_other_things_in_it_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("letter.txt"), "dear").unwrap();
        let refused = Folder::kept(&Account::Ourselves, folder.path());
        assert!(
            matches!(refused, Err(LocalPostgresError::NotOurs { .. })),
            "{refused:?}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_password_is_the_owners_alone() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::kept(&Account::Ourselves, &parent.path().join("database")).unwrap();
        assert_eq!(
            folder
                .password(&Account::Ourselves, || "geheim".into())
                .unwrap()
                .expose_secret(),
            "geheim"
        );
        let mode = std::fs::metadata(folder.password_file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
