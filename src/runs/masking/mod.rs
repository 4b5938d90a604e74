//! From raw bytes of a log to text that may be stored: UTF-8 repaired, NUL replaced, secrets masked.
//!
//! Pure, and the same text for any split of a log. [`scan`] goes once from left to right and finds what is replaced: each
//! rule looks at the text from where it starts, at the character before it, and at nothing else. It says *match*, *no
//! match*, or *pending*: what follows decides. Text is released up to the first place where something is pending, or a
//! match still grows, and the next release begins there with the same [`Carried`] knowledge, so it finds the same. What is
//! held back is at most [`HELD_MAX_BYTES`]: no rule is pending for longer, and of a match that grows beyond that the marker
//! is released and the rest dropped; that it is being dropped, and how it ends, is all that is kept of it.
//!
//! One exception, for the sake of text that appears at once: any word can turn out to be the scheme of a URL with a
//! password. A word at the end of what there is waits only if it begins one of the schemes that are [used
//! so](rules::SCHEMES); another is released, and if `://user:password@` follows in a later poll, that is what the marker
//! replaces, and the scheme stays.

mod carried;
mod exact;
mod repair;
mod rules;
mod scan;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub use carried::Carried;
use exact::Exact;
use repair::Repaired;
use scan::{Found, Until};

use super::output::Released;

pub(super) const URL_MARKER: &str = "[REDACTED_URL]";
pub(super) const MARKER: &str = "[REDACTED]";

/// Bytes of text, and so of the log, that are held back at most.
pub const HELD_MAX_BYTES: usize = 8 * 1024;

/// A shorter secret would blank ordinary text.
const EXACT_MIN_BYTES: usize = 8;

/// After a skip this much is read before the line with which the text goes on, so that a secret that reaches into it is
/// seen whole: no run has longer ones.
const LEAD_BYTES: usize = super::secrets::SECRETS_MAX_BYTES;

/// What follows the bytes that are released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogEnd {
    /// Nothing: they reach the end of a log that nobody writes any more.
    Reached,
    /// More, or so it may be: what is held back is read again.
    Open,
    /// What can't be read any more: what would be held back is masked.
    Lost,
}

/// Masks secrets: the exact ones it was given, and what has the shape of one.
#[derive(Clone, Default)]
pub struct Masker {
    exact: Vec<Exact>,
}

impl Masker {
    /// A masker that knows these secrets exactly; those under 8 bytes are left out, as they would blank ordinary text.
    #[must_use]
    pub fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        Self::default().with(secrets)
    }

    /// A masker that knows these secrets as well.
    #[must_use]
    pub fn with(&self, more: impl IntoIterator<Item = String>) -> Self {
        let more = more.into_iter().filter(|secret| secret.len() >= EXACT_MIN_BYTES);
        // In the form in which they stand in repaired text.
        let more = more.map(|secret| secret.replace('\0', "\u{FFFD}"));
        let more = more.flat_map(|secret| Exact::pieces_of(&secret));
        Self {
            exact: self.exact.iter().cloned().chain(more).collect(),
        }
    }

    /// Releases what can be of `raw`, the bytes of the log from where the last release ended, which left `carried`.
    #[must_use]
    pub fn release(&self, raw: &[u8], end: LogEnd, carried: Carried) -> Released {
        self.release_until(raw, end, carried, Until::Word)
    }

    fn release_until(&self, raw: &[u8], end: LogEnd, carried: Carried, until: Until) -> Released {
        let repaired = Repaired::of(raw, end);
        if carried.skipped {
            return self.after_skip(&repaired, end, until);
        }
        let until = if end == LogEnd::Reached { Until::End } else { until };
        if raw.is_empty() {
            return Released::nothing();
        }
        let (text, decided, carried) = self.scan(&repaired.text, carried, until).released(&repaired.text);
        let mut released = Released {
            log_bytes: length(repaired.raw_offset(decided)),
            skipped: 0,
            text,
            carried: Some(carried),
        };
        if end == LogEnd::Lost {
            if decided < repaired.text.len() && !carried.is_dropping() {
                released.text += MARKER;
            }
            released.log_bytes = length(raw.len());
        }
        if released.log_bytes == 0 {
            return Released::nothing();
        }
        released
    }

    /// The first text after a skip: it begins with a line, and no secret that began earlier reaches into it.
    fn after_skip(&self, repaired: &Repaired, end: LogEnd, until: Until) -> Released {
        let text = &repaired.text;
        let secrets: Vec<_> = self.exact.iter().flat_map(|exact| exact.matches(text).0).collect();
        let mut from = LEAD_BYTES.min(text.len() / 2);
        let line = loop {
            match text.as_bytes()[from..].iter().position(|byte| *byte == b'\n') {
                None => break text.len(),
                Some(at) => from += at + 1,
            }
            match secrets.iter().find(|(start, end)| *start < from && from < *end) {
                Some((_, end)) => from = *end,
                None => break from,
            }
        };
        let skipped = repaired.raw_offset(line);
        if line == text.len() {
            return Released {
                log_bytes: length(skipped),
                skipped: length(skipped),
                text: String::new(),
                carried: Some(Carried::after_skip()),
            };
        }
        let rest = repaired.raw_from(skipped);
        let released = self.release_until(rest, end, Carried::default(), until);
        Released {
            log_bytes: length(skipped) + released.log_bytes,
            skipped: length(skipped),
            ..released
        }
    }

    /// Masks every secret in `text`.
    #[must_use]
    pub fn mask<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let found = self.scan(text, Carried::default(), Until::End);
        if found.is_clean() {
            Cow::Borrowed(text)
        } else {
            Cow::Owned(found.released(text).0)
        }
    }

    fn scan(&self, text: &str, carried: Carried, until: Until) -> Found {
        scan::scan(text, &self.exact, carried, until)
    }
}

impl std::fmt::Debug for Masker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Masker({} secrets)", self.exact.len())
    }
}

fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
