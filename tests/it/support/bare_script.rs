//! A script that is none of ours, for tests of what carries it.

use std::time::Duration;

use boxrun::box_api::{Operation, Script};

pub fn bare(text: &str, timeout: Duration, call_timeout: Duration) -> Script {
    Script {
        operation: Operation::Poll,
        text: text.to_owned(),
        timeout,
        call_timeout,
    }
}
