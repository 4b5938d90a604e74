//! The program under test, where another user can run it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Puts a copy of the built `boxrun` into `folder`.
///
/// A process of its own copies it: had this one the file open for writing, a child that another test starts at that moment
/// would inherit it, and the copy could not be run ("text file busy").
pub fn copy_of_boxrun(folder: &Path) -> PathBuf {
    let copy = folder.join("boxrun");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_boxrun")).arg(&copy).status();
    assert!(
        copied.expect("cp runs").success(),
        "no copy of boxrun in {}",
        folder.display()
    );
    copy
}
