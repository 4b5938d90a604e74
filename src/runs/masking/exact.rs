//! Secrets that are known by their text.

use std::sync::Arc;

/// A longer secret is looked for in pieces of this size, so that less than [`super::HELD_MAX_BYTES`] is held for it.
pub(super) const PIECE_BYTES: usize = 1024;

/// One text to be found wherever it stands, also where it overlaps itself (Knuth, Morris, Pratt).
#[derive(Clone)]
pub(super) struct Exact {
    text: Arc<[u8]>,
    /// For each length of a prefix: the length of the longest shorter prefix that is its end as well.
    border: Arc<[usize]>,
}

impl Exact {
    pub fn pieces_of(secret: &str) -> Vec<Self> {
        let mut pieces = Vec::new();
        let mut rest = secret;
        while rest.len() > PIECE_BYTES {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            pieces.push(Self::new(piece.as_bytes()));
            rest = after;
        }
        // The last one overlaps the one before it, so that none is short.
        let last = secret.ceil_char_boundary(secret.len().saturating_sub(PIECE_BYTES));
        pieces.push(Self::new(&secret.as_bytes()[last..]));
        pieces
    }

    fn new(text: &[u8]) -> Self {
        let mut border = vec![0; text.len() + 1];
        let mut length = 0;
        for at in 1..text.len() {
            while length > 0 && text[at] != text[length] {
                length = border[length];
            }
            length += usize::from(text[at] == text[length]);
            border[at + 1] = length;
        }
        Self {
            text: text.into(),
            border: border.into(),
        }
    }

    /// Where the secret stands in `text`, from left to right, and where at the end it may have begun.
    pub fn matches(&self, text: &str) -> (Vec<(usize, usize)>, Option<usize>) {
        let mut matches = Vec::new();
        let mut length = 0;
        for (at, byte) in text.bytes().enumerate() {
            while length == self.text.len() || (length > 0 && byte != self.text[length]) {
                length = self.border[length];
            }
            length += usize::from(byte == self.text[length]);
            if length == self.text.len() {
                matches.push((at + 1 - length, at + 1));
            }
        }
        // What overlaps a match that is complete may be the next one.
        if length == self.text.len() {
            length = self.border[length];
        }
        (matches, (length > 0).then(|| text.len() - length))
    }
}
