//! The program under test, as its users start it.

use std::path::{Path, PathBuf};

use sqlx::{ConnectOptions as _, PgPool};
use tokio::process::Command;

/// Puts a copy of the built `boxrun` into `folder`.
///
/// A process of its own copies it: had this one the file open for writing, a child that another test starts at that moment
/// would inherit it, and the copy could not be run ("text file busy").
pub fn copy_of_boxrun(folder: &Path) -> PathBuf {
    let copy = folder.join("boxrun");
    let copied = std::process::Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_boxrun"))
        .arg(&copy)
        .status();
    assert!(
        copied.expect("cp runs").success(),
        "no copy of boxrun in {}",
        folder.display()
    );
    copy
}

/// The address of a test's database, with the password.
pub fn url_of(pool: &PgPool) -> String {
    pool.connect_options().to_url_lossy().to_string()
}

/// `boxrun` with nothing in its environment but a database and the words given.
pub fn boxrun(database: Option<&str>, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_boxrun"));
    command.args(arguments).kill_on_drop(true);
    for name in [
        "BOXRUN_DATABASE_URL",
        "DATABASE_URL",
        "BOX_API_URL",
        "BOX_API_KEY",
        "BOXRUN_BOX",
        "BOXRUN_URL",
        "BOXRUN_TOKEN",
    ] {
        command.env_remove(name);
    }
    if let Some(database) = database {
        command.env("DATABASE_URL", database);
    }
    command
}
