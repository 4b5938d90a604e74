//! Printing to stdout. A reader that has gone away ends the process quietly, as it does other programs in a pipe.

use std::io::{ErrorKind, Write};

/// The exit status of a process that SIGPIPE ended.
const EXIT_BROKEN_PIPE: i32 = 141;

/// Prints text as it is, at once.
pub(super) fn text(text: &str) {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(EXIT_BROKEN_PIPE),
        Err(error) => {
            eprintln!("boxrun: can't write to stdout: {error}");
            std::process::exit(i32::from(super::EXIT_FAILED));
        }
    }
}

/// As `println!`, without its panic.
macro_rules! say {
    ($($arguments:tt)*) => {
        $crate::cli::print::text(&format!("{}\n", format_args!($($arguments)*)))
    };
}

pub(super) use say;
