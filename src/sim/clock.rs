//! The time of the simulator's own machine, as it stands in answers and in the record.

use chrono::{SecondsFormat, Utc};

/// RFC 3339 in UTC, to the microsecond.
#[expect(
    clippy::disallowed_methods,
    reason = "a provider says when, by the clock of its own machine"
)]
pub(super) fn now() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Micros, true)
}
