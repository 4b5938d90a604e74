//! The user that the server runs as: PostgreSQL refuses root.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::LocalPostgresError;

/// Ourselves; or, when we are root, a user without rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Account {
    Ourselves,
    Other { name: &'static str, uid: u32, gid: u32 },
}

impl Account {
    /// As root the user `postgres` when there is one, else `nobody`; otherwise ourselves.
    pub(super) async fn choose() -> Result<Self, LocalPostgresError> {
        if id(&["-u"]).await? != Some(0) {
            return Ok(Self::Ourselves);
        }
        for name in ["postgres", "nobody"] {
            if let (Some(uid), Some(gid)) = (id(&["-u", name]).await?, id(&["-g", name]).await?) {
                return Ok(Self::Other { name, uid, gid });
            }
        }
        Err(LocalPostgresError::NoAccount)
    }

    /// A command that runs as this user, outside our process group (Ctrl-C on the terminal is ours to handle) and without the
    /// environment's `PG…` and locale settings, which would change what the server does or says.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir("/").process_group(0).env("LC_ALL", "C");
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
        if let Self::Other { uid, gid, .. } = *self {
            // The standard library also drops root's supplementary groups here.
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Hands an open file or folder, whose name is `path`, to this user.
    pub(super) fn own(&self, opened: &File, path: &Path) -> Result<(), LocalPostgresError> {
        match *self {
            Self::Ourselves => Ok(()),
            Self::Other { uid, gid, .. } => {
                fchown(opened, Some(uid), Some(gid)).map_err(LocalPostgresError::file("change the owner of", path))
            }
        }
    }

    /// The first part of a path that this user may not enter. For ourselves the system says so by itself.
    pub(super) fn obstacle(&self, path: &Path) -> Option<PathBuf> {
        let Self::Other { uid, gid, .. } = *self else {
            return None;
        };
        let mut parts: Vec<&Path> = path.ancestors().collect();
        parts.reverse();
        parts
            .into_iter()
            .find(|part| !may_enter(part, uid, gid))
            .map(Path::to_path_buf)
    }

    /// [`Account::obstacle`] as an error.
    pub(super) fn reaches(&self, path: &Path) -> Result<(), LocalPostgresError> {
        match (self, self.obstacle(path)) {
            (Self::Other { name, .. }, Some(obstacle)) => Err(LocalPostgresError::Unreachable {
                user: (*name).to_owned(),
                obstacle,
            }),
            (Self::Other { .. }, None) | (Self::Ourselves, _) => Ok(()),
        }
    }
}

fn may_enter(folder: &Path, uid: u32, gid: u32) -> bool {
    std::fs::metadata(folder).is_ok_and(|found| {
        let bit = match (found.uid() == uid, found.gid() == gid) {
            (true, _) => 0o100,
            (false, true) => 0o010,
            (false, false) => 0o001,
        };
        found.mode() & bit != 0
    })
}

/// What `id` prints, as a number; `None` when it knows no such user.
async fn id(arguments: &[&str]) -> Result<Option<u32>, LocalPostgresError> {
    let output = Command::new("id").args(arguments).output().await;
    let output = output.map_err(|source| LocalPostgresError::Program {
        program: "id".to_owned(),
        source,
    })?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_that_another_user_may_not_enter_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let stranger = Account::Other {
            name: "nobody",
            uid: 65_534,
            gid: 65_534,
        };

        assert_eq!(stranger.obstacle(&inner), Some(folder.path().to_path_buf()));
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).unwrap();
        std::fs::set_permissions(&inner, PermissionsExt::from_mode(0o711)).unwrap();
        assert_eq!(stranger.obstacle(&inner), None);
        assert_eq!(Account::Ourselves.obstacle(&inner), None);
    }
}
