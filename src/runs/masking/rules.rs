//! What a secret looks like. Each rule looks at the text from where it starts and says match, no match, or pending.

use super::exact::PIECE_BYTES;
use super::scan::step;
use super::{HELD_MAX_BYTES, MARKER, URL_MARKER};

/// What is undecided for longer counts as a match. With the longest exact secret before it, it is what is held at most.
const PENDING_MAX_BYTES: usize = HELD_MAX_BYTES - PIECE_BYTES - 64;

/// Schemes of URLs that carry passwords; a word that begins one waits for its end.
pub(super) const SCHEMES: [&str; 34] = [
    "amqp",
    "amqps",
    "bolt",
    "clickhouse",
    "couchdb",
    "ftp",
    "ftps",
    "git",
    "git+http",
    "git+https",
    "git+ssh",
    "http",
    "https",
    "imap",
    "imaps",
    "kafka",
    "ldap",
    "ldaps",
    "mariadb",
    "mongodb",
    "mongodb+srv",
    "mqtt",
    "mqtts",
    "mysql",
    "nats",
    "neo4j",
    "postgres",
    "postgresql",
    "redis",
    "rediss",
    "sftp",
    "ssh",
    "ws",
    "wss",
];
const SCHEME_MAX_BYTES: usize = 16;

const PROVIDER_URLS: [&str; 2] = ["https://desktop.ascii.dev", "https://viewer.ascii.dev"];

const SECRET_NAMES: [&str; 7] = [
    "token",
    "access_token",
    "api_key",
    "auth_token",
    "authentication_token",
    "secret",
    "credential",
];

const HEADER: &str = "authorization";
const HEADER_BLANKS_MAX: usize = 16;

/// How a match goes on: up to the first character that can't belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Close {
    Url,
    Line,
    Token(Class),
}

/// Letters, digits, and these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Plain,
    Underscore,
    Dash,
    Both,
}

impl Class {
    pub fn has(self, byte: u8) -> bool {
        byte.is_ascii_alphanumeric()
            || (byte == b'_' && matches!(self, Self::Underscore | Self::Both))
            || (byte == b'-' && matches!(self, Self::Dash | Self::Both))
    }

    /// Whether this has all that `other` has.
    pub fn includes(self, other: Self) -> bool {
        self == other || self == Self::Both || other == Self::Plain
    }
}

impl Close {
    const WORDS: [(Self, &'static str); 6] = [
        (Self::Url, "drop_url"),
        (Self::Line, "drop_line"),
        (Self::Token(Class::Plain), "drop_token"),
        (Self::Token(Class::Underscore), "drop_token_underscore"),
        (Self::Token(Class::Dash), "drop_token_dash"),
        (Self::Token(Class::Both), "drop_token_both"),
    ];

    /// As it is stored.
    pub fn word(self) -> &'static str {
        Self::WORDS
            .iter()
            .find(|(close, _)| *close == self)
            .map_or("", |(_, word)| word)
    }

    pub fn of_word(word: &str) -> Option<Self> {
        Self::WORDS
            .iter()
            .find(|(_, known)| *known == word)
            .map(|(close, _)| *close)
    }

    /// Where the text ends that began before `from`.
    pub fn end(self, text: &str, from: usize) -> usize {
        let rest = &text[from..];
        let end = match self {
            Self::Url => rest.find(ends_url),
            Self::Line => rest.find(['\r', '\n']),
            Self::Token(class) => rest.bytes().position(|byte| !class.has(byte)),
        };
        let end = end.map_or(text.len(), |at| from + at);
        step(end - from);
        end
    }
}

/// No part of a URL.
pub(super) fn ends_url(character: char) -> bool {
    character.is_whitespace() || matches!(character, '"' | '\'' | '<' | '>')
}

/// What a rule found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    No,
    /// This URL stays, but for its query perhaps.
    PlainUrl,
    Match(Match),
    /// What follows decides.
    Pending,
    /// As pending, but by no more than a word that few would use as a scheme.
    Word,
}

/// What is to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// Where it was recognised; what stands between here and `start` stays.
    pub from: usize,
    pub start: usize,
    pub end: usize,
    pub marker: &'static str,
    /// How it goes on; `None`: its length is fixed.
    pub close: Option<Close>,
}

impl Match {
    fn until(close: Close, text: &str, from: usize, start: usize, marker: &'static str) -> Verdict {
        Verdict::Match(Self {
            from,
            start,
            end: close.end(text, start),
            marker,
            close: Some(close),
        })
    }
}

/// A URL that begins at `at`, which is at a word boundary, or after so many bytes of its scheme.
pub(super) fn url(text: &str, at: usize, scheme_bytes: usize) -> Verdict {
    let bytes = text.as_bytes();
    let rest = &bytes[at..];
    let is_scheme = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+.-".contains(byte);
    let scheme = rest.iter().take(SCHEME_MAX_BYTES + 1).take_while(is_scheme).count();
    step(scheme);
    if scheme_bytes + scheme > SCHEME_MAX_BYTES {
        return Verdict::No;
    }
    match begins(&rest[scheme..], "://") {
        Some(true) => {}
        Some(false) if scheme == rest.len() && (scheme_bytes > 0 || !begins_scheme(rest)) => return Verdict::Word,
        Some(false) => return Verdict::Pending,
        None => return Verdict::No,
    }
    for provider in PROVIDER_URLS.into_iter().filter(|_| scheme_bytes == 0) {
        match begins(rest, provider) {
            Some(true) => return Match::until(Close::Url, text, at, at, URL_MARKER),
            Some(false) => return Verdict::Pending,
            None => {}
        }
    }
    let authority = at + scheme + "://".len();
    let mut password = None;
    for (index, character) in text[authority..].char_indices() {
        step(1);
        let place = authority + index;
        if place - at > PENDING_MAX_BYTES {
            return Match::until(Close::Url, text, at, at, URL_MARKER);
        }
        match (character, password) {
            ('@', Some(from)) if place > from => return Match::until(Close::Url, text, at, at, URL_MARKER),
            ('/' | '@', _) => return Verdict::PlainUrl,
            (':', None) => password = Some(place + 1),
            (other, _) if ends_url(other) => return Verdict::PlainUrl,
            _ => {}
        }
    }
    Verdict::Pending
}

fn begins_scheme(word: &[u8]) -> bool {
    let base = word.split(|byte| *byte == b'+').next().unwrap_or_default();
    let is_whole = |scheme: &&str| base.eq_ignore_ascii_case(scheme.as_bytes());
    SCHEMES.iter().any(|scheme| begins(word, scheme) == Some(false))
        || SCHEMES
            .iter()
            .any(|scheme| word.eq_ignore_ascii_case(scheme.as_bytes()))
        || (base.len() < word.len() && SCHEMES.iter().any(is_whole))
}

/// The query of a URL, from its `?` at `at` on.
pub(super) fn query(text: &str, at: usize) -> Verdict {
    let start = at + 1;
    let rest = &text[start..];
    let mut name_from = Some(0);
    for (index, character) in rest.char_indices() {
        step(1);
        if index > PENDING_MAX_BYTES
            || (character == '=' && name_from.is_some_and(|from| is_secret(&rest[from..index])))
        {
            return Match::until(Close::Url, text, at, start, MARKER);
        }
        match character {
            '&' | ';' | '?' => name_from = Some(index + 1),
            '=' => name_from = None,
            other if ends_url(other) => return Verdict::No,
            _ => {}
        }
    }
    Verdict::Pending
}

fn is_secret(name: &str) -> bool {
    let same = |secret: &str| {
        secret.len() == name.len()
            && secret
                .bytes()
                .zip(name.bytes())
                .all(|(expected, byte)| byte.eq_ignore_ascii_case(&expected) || (expected == b'_' && byte == b'-'))
    };
    SECRET_NAMES.into_iter().any(same)
}

/// An `Authorization` header that begins at `at`, also in quotes: what follows the colon, up to the end of the line.
pub(super) fn authorization(text: &str, at: usize) -> Verdict {
    let bytes = text.as_bytes();
    match begins(&bytes[at..], HEADER) {
        Some(true) => {}
        Some(false) => return Verdict::Pending,
        None => return Verdict::No,
    }
    let mut place = at + HEADER.len();
    let blanks = |from: usize| {
        let blank = |byte: &&u8| matches!(byte, b' ' | b'\t');
        bytes[from..].iter().take(HEADER_BLANKS_MAX).take_while(blank).count()
    };
    if matches!(bytes.get(place), Some(b'"' | b'\'')) {
        place += 1;
    }
    place += blanks(place);
    match bytes.get(place) {
        Some(b':') => place += 1,
        Some(_) => return Verdict::No,
        None => return Verdict::Pending,
    }
    place += blanks(place);
    match bytes.get(place) {
        Some(b'\r' | b'\n') => Verdict::No,
        Some(_) => Match::until(Close::Line, text, at, place, MARKER),
        None => Verdict::Pending,
    }
}

/// The shape of a token: a literal prefix and at least so many characters of a class; only so many where it is fixed.
struct Shape {
    prefix: &'static str,
    class: Class,
    length: usize,
    fixed: bool,
}

const fn shape(prefix: &'static str, class: Class, length: usize) -> Shape {
    Shape {
        prefix,
        class,
        length,
        fixed: false,
    }
}

const fn fixed(prefix: &'static str, class: Class, length: usize) -> Shape {
    Shape {
        prefix,
        class,
        length,
        fixed: true,
    }
}

const SHAPES: [Shape; 20] = [
    shape("ghp_", Class::Plain, 36),
    shape("gho_", Class::Plain, 36),
    shape("ghu_", Class::Plain, 36),
    shape("ghs_", Class::Plain, 36),
    shape("ghr_", Class::Plain, 36),
    shape("github_pat_", Class::Underscore, 22),
    shape("glpat-", Class::Both, 20),
    shape("sk-", Class::Both, 20),
    shape("sk_live_", Class::Plain, 20),
    shape("rk_live_", Class::Plain, 20),
    shape("xoxa-", Class::Dash, 10),
    shape("xoxb-", Class::Dash, 10),
    shape("xoxp-", Class::Dash, 10),
    shape("xoxr-", Class::Dash, 10),
    shape("xoxs-", Class::Dash, 10),
    shape("hf_", Class::Plain, 30),
    fixed("AKIA", Class::Plain, 16),
    fixed("ASIA", Class::Plain, 16),
    fixed("AIza", Class::Both, 35),
    fixed("npm_", Class::Plain, 36),
];

/// A token that begins at `at`, which is not after a letter or digit.
pub(super) fn token(text: &str, at: usize, passed: Option<Class>) -> Verdict {
    let rest = &text.as_bytes()[at..];
    let mut pending = false;
    for shape in &SHAPES {
        if passed.is_some_and(|class| class.includes(shape.class)) || !starts(rest, shape.prefix) {
            continue;
        }
        let Some(after) = rest.get(shape.prefix.len()..) else {
            pending = true;
            continue;
        };
        let run = after
            .iter()
            .take(shape.length)
            .take_while(|byte| shape.class.has(**byte))
            .count();
        step(run);
        let start = at + shape.prefix.len();
        match (run == shape.length, shape.fixed) {
            (true, false) => {
                let close = Close::Token(shape.class);
                return Verdict::Match(Match {
                    from: at,
                    start: at,
                    end: close.end(text, start + run),
                    marker: MARKER,
                    close: Some(close),
                });
            }
            (true, true) => {
                return Verdict::Match(Match {
                    from: at,
                    start: at,
                    end: start + run,
                    marker: MARKER,
                    close: None,
                });
            }
            (false, _) => pending |= run == after.len(),
        }
    }
    if pending { Verdict::Pending } else { Verdict::No }
}

/// Whether one is the beginning of the other.
fn starts(text: &[u8], prefix: &str) -> bool {
    text.iter()
        .zip(prefix.as_bytes())
        .all(|(byte, expected)| byte == expected)
}

/// Whether `text` begins with `prefix`, in any case: `Some(false)`, as far as it goes.
fn begins(text: &[u8], prefix: &str) -> Option<bool> {
    let same = text
        .iter()
        .zip(prefix.as_bytes())
        .all(|(byte, expected)| byte.eq_ignore_ascii_case(expected));
    same.then_some(text.len() >= prefix.len())
}
