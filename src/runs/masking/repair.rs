//! Raw bytes as text, and where in the raw bytes a place in the text is.

use super::LogEnd;

const REPLACEMENT: &str = "\u{FFFD}";

/// The text of raw bytes, as `from_utf8_lossy` sees them, without NUL.
pub(super) struct Repaired<'a> {
    raw: &'a [u8],
    pub text: String,
    /// After each replacement: the place in the text, and in the raw bytes. In between both advance alike.
    replaced: Vec<(usize, usize)>,
}

impl<'a> Repaired<'a> {
    /// Of a log that goes on, bytes that begin a character and do not complete it are left out.
    pub fn of(raw: &'a [u8], end: LogEnd) -> Self {
        let whole = match end {
            LogEnd::Reached | LogEnd::Lost => raw,
            LogEnd::Open => &raw[..raw.len() - incomplete_tail(raw)],
        };
        let mut repaired = Self {
            raw,
            text: String::with_capacity(whole.len()),
            replaced: Vec::new(),
        };
        let mut at = 0;
        for chunk in whole.utf8_chunks() {
            for (index, part) in chunk.valid().split('\0').enumerate() {
                if index > 0 {
                    at += 1;
                    repaired.replace(at);
                }
                repaired.text.push_str(part);
                at += part.len();
            }
            if !chunk.invalid().is_empty() {
                at += chunk.invalid().len();
                repaired.replace(at);
            }
        }
        repaired
    }

    fn replace(&mut self, raw_end: usize) {
        self.text.push_str(REPLACEMENT);
        self.replaced.push((self.text.len(), raw_end));
    }

    /// Bytes of the log that the text before `place` stands for.
    pub fn raw_offset(&self, place: usize) -> usize {
        let before = self.replaced.partition_point(|(text, _)| *text <= place);
        let (text, raw) = before.checked_sub(1).map_or((0, 0), |last| self.replaced[last]);
        raw + (place - text)
    }

    pub fn raw_from(&self, offset: usize) -> &'a [u8] {
        &self.raw[offset..]
    }
}

/// Bytes at the end of `raw` that begin a character but do not complete it.
fn incomplete_tail(raw: &[u8]) -> usize {
    let start = raw.len().saturating_sub(3);
    (start..raw.len())
        .find(|at| {
            std::str::from_utf8(&raw[*at..]).is_err_and(|err| err.valid_up_to() == 0 && err.error_len().is_none())
        })
        .map_or(0, |at| raw.len() - at)
}
