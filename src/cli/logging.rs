//! Logs, to stderr: text on a terminal, else JSON; `RUST_LOG` and `BOXRUN_LOG_FORMAT` say otherwise.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::process_environment;

/// Starts logging for the whole process, at `level` unless `RUST_LOG` says otherwise.
pub(super) fn start(level: &str) {
    let filter = process_environment("RUST_LOG").filter(|filter| !filter.trim().is_empty());
    let filter = EnvFilter::builder().parse_lossy(filter.as_deref().unwrap_or(level));
    let json = match process_environment("BOXRUN_LOG_FORMAT").as_deref() {
        Some("json") => true,
        Some("text") => false,
        _ => !std::io::stderr().is_terminal(),
    };
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if json {
        logs.json().flatten_event(true).with_span_list(false).init();
    } else {
        logs.compact()
            .with_target(false)
            .with_ansi(std::io::stderr().is_terminal())
            .init();
    }
}
