//! What one release leaves for the next besides the offset: never a piece of text.

use super::rules::Close;

/// What came before the text that is released next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carried {
    pub(super) after: After,
    /// So many bytes of what may be a URL's scheme were released already.
    pub(super) scheme_bytes: u8,
    /// Inside a URL that was released so far; a query may follow.
    pub(super) in_url: bool,
    /// A match reaches here whose marker was released: how it ends.
    pub(super) dropping: Option<Dropping>,
    /// A part of the log was skipped, and the text goes on with the next line.
    pub(super) skipped: bool,
}

/// The character before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum After {
    /// None, or one that is in no word.
    #[default]
    Other,
    /// In a word, but no letter or digit.
    Word,
    Alphanumeric,
}

impl After {
    pub fn of(character: char) -> Self {
        if character.is_alphanumeric() {
            Self::Alphanumeric
        } else if character == '_' {
            Self::Word
        } else {
            Self::Other
        }
    }
}

/// How the match ends that is being dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropping {
    /// Where this kind of text does.
    Until(Close),
    /// With the matches that begin here.
    Matches,
}

const WORDS: [(&str, Carried); 5] = [
    (
        "word",
        Carried {
            after: After::Word,
            ..NONE
        },
    ),
    (
        "alphanumeric",
        Carried {
            after: After::Alphanumeric,
            ..NONE
        },
    ),
    ("url", Carried { in_url: true, ..NONE }),
    ("skipped", Carried { skipped: true, ..NONE }),
    (
        "drop_matches",
        Carried {
            dropping: Some(Dropping::Matches),
            ..NONE
        },
    ),
];

const SCHEME: &str = "scheme_";

const NONE: Carried = Carried {
    after: After::Other,
    scheme_bytes: 0,
    in_url: false,
    dropping: None,
    skipped: false,
};

impl Carried {
    /// A part of the log was skipped.
    #[must_use]
    pub fn after_skip() -> Self {
        Self { skipped: true, ..NONE }
    }

    pub(super) fn is_dropping(self) -> bool {
        self.dropping.is_some()
    }

    /// As it is stored: a few words, empty at the start of a text.
    #[must_use]
    pub fn to_words(self) -> String {
        let mut words: Vec<String> = Vec::new();
        for (word, sets) in WORDS {
            if (sets.after != After::Other && sets.after == self.after)
                || (sets.in_url && self.in_url)
                || (sets.skipped && self.skipped)
                || (sets.dropping.is_some() && sets.dropping == self.dropping)
            {
                words.push(word.to_owned());
            }
        }
        if let Some(Dropping::Until(close)) = self.dropping {
            words.push(close.word().to_owned());
        }
        if self.scheme_bytes > 0 {
            words.push(format!("{SCHEME}{}", self.scheme_bytes));
        }
        words.join(" ")
    }

    /// Reads what [`Self::to_words`] wrote; a word that is not known, as from a later release, counts for nothing.
    #[must_use]
    pub fn from_words(words: &str) -> Self {
        let mut carried = NONE;
        for word in words.split(' ') {
            for (known, sets) in WORDS {
                if known == word {
                    carried.after = if sets.after == After::Other {
                        carried.after
                    } else {
                        sets.after
                    };
                    carried.in_url |= sets.in_url;
                    carried.skipped |= sets.skipped;
                    carried.dropping = carried.dropping.or(sets.dropping);
                }
            }
            if let Some(bytes) = word.strip_prefix(SCHEME) {
                carried.scheme_bytes = bytes.parse().unwrap_or(0);
            }
            if let Some(close) = Close::of_word(word) {
                carried.dropping = Some(Dropping::Until(close));
            }
        }
        carried
    }
}
