//! The scan: once over the text, from left to right. What overlaps is merged; the marker is that of the leftmost.

use super::carried::{After, Carried, Dropping};
use super::exact::Exact;
use super::rules::{self, Class, Close, Match, Verdict, ends_url};
use super::{HELD_MAX_BYTES, MARKER};

/// What the end of the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// Nothing follows.
    End,
    /// More may follow; a word that is hardly a scheme is let go.
    Word,
    /// More may follow, and whatever may become part of a match is held.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests compare every split of every text"))]
    Anything,
}

/// A match, and what came before where it was recognised.
#[derive(Debug, Clone, Copy)]
struct Seen {
    found: Match,
    grows: bool,
    before: Carried,
}

/// What may be the beginning of a URL's scheme.
#[derive(Debug, Clone, Copy)]
struct Word {
    from: usize,
    /// Bytes of it that were released before.
    before: u8,
}

/// What a scan found.
pub(super) struct Found {
    matches: Vec<Seen>,
    /// Up to here nothing is pending, and what came before it.
    stop: usize,
    at_stop: Carried,
    /// Where the last word began that was let go and reaches the end.
    word: Option<Word>,
    /// The marker of what stands at the very beginning is released already.
    marked: bool,
    length: usize,
    carried: Carried,
}

pub(super) fn scan(text: &str, exact: &[Exact], carried: Carried, until: Until) -> Found {
    Scan::new(text, exact, carried, until).run()
}

struct Scan<'a> {
    text: &'a str,
    until: Until,
    /// The exact matches, by their start.
    exact: Vec<(usize, usize)>,
    /// Where exact ones may have begun that the end of the text cuts.
    exact_pending: Option<usize>,
    /// What is before the character that is looked at.
    now: Carried,
    carried: Carried,
    matches: Vec<Seen>,
    word: Option<Word>,
    marked: bool,
    // Up to here nothing of this kind need be looked for: a match reaches as far as any that begins inside it would.
    url_until: usize,
    line_until: usize,
    token_until: (usize, Option<Class>),
    /// The query up to here names no secret.
    query_until: usize,
}

impl<'a> Scan<'a> {
    fn new(text: &'a str, secrets: &[Exact], carried: Carried, until: Until) -> Self {
        let mut exact = Vec::new();
        let mut exact_pending: Option<usize> = None;
        for secret in secrets {
            let (matches, pending) = secret.matches(text);
            exact.extend(matches);
            exact_pending = [exact_pending, pending].into_iter().flatten().min();
        }
        // At one start the longest first.
        exact.sort_unstable_by_key(|(start, end)| (*start, std::cmp::Reverse(*end)));
        Self {
            text,
            until,
            exact,
            exact_pending: exact_pending.filter(|_| until != Until::End),
            now: Carried {
                dropping: None,
                ..carried
            },
            carried,
            matches: Vec::new(),
            word: None,
            marked: carried.dropping == Some(Dropping::Matches),
            url_until: 0,
            line_until: 0,
            token_until: (0, None),
            query_until: 0,
        }
        .dropping(carried.dropping)
    }

    /// The match that reaches here goes on.
    fn dropping(mut self, dropping: Option<Dropping>) -> Self {
        if let Some(Dropping::Until(close)) = dropping {
            let end = close.end(self.text, 0);
            if end > 0 {
                self.marked = true;
                self.matched(Match {
                    from: 0,
                    start: 0,
                    end,
                    marker: MARKER,
                    close: Some(close),
                });
            }
        }
        self
    }

    fn run(mut self) -> Found {
        let mut exact = std::mem::take(&mut self.exact).into_iter().peekable();
        let mut stop = self.text.len();
        for (at, character) in self.text.char_indices() {
            step(1);
            while let Some((start, end)) = exact.next_if(|(start, _)| *start <= at) {
                self.matched(Match {
                    from: start,
                    start,
                    end,
                    marker: MARKER,
                    close: None,
                });
            }
            if self.exact_pending.is_some_and(|pending| pending <= at) || !self.rules(at, character) {
                stop = at;
                break;
            }
            self.now = Carried {
                after: After::of(character),
                in_url: self.now.in_url && !ends_url(character),
                scheme_bytes: 0,
                ..self.now
            };
        }
        Found {
            matches: self.matches,
            stop,
            at_stop: self.now,
            word: self.word,
            marked: self.marked,
            length: self.text.len(),
            carried: self.carried,
        }
    }

    /// Applies the rules that may start at `at`; false where one is pending.
    fn rules(&mut self, at: usize, character: char) -> bool {
        if at < self.line_until {
            return true;
        }
        let boundary = self.now.after == After::Other;
        if at >= self.url_until {
            let scheme_bytes = usize::from(self.now.scheme_bytes);
            if scheme_bytes > 0 && !self.took(at, rules::url(self.text, at, scheme_bytes)) {
                return false;
            }
            if boundary && character.is_ascii_alphabetic() && !self.took(at, rules::url(self.text, at, 0)) {
                return false;
            }
            if character == '?' && self.now.in_url && at >= self.query_until {
                let verdict = rules::query(self.text, at);
                if verdict != Verdict::Pending || self.until == Until::End {
                    self.query_until = Close::Url.end(self.text, at);
                }
                if !self.took(at, verdict) {
                    return false;
                }
            }
            if self.now.after != After::Alphanumeric && character.is_ascii_alphabetic() {
                let passed = self.token_until.1.filter(|_| at < self.token_until.0);
                if !self.took(at, rules::token(self.text, at, passed)) {
                    return false;
                }
            }
        }
        !boundary || !matches!(character, 'a' | 'A') || self.took(at, rules::authorization(self.text, at))
    }

    fn took(&mut self, at: usize, verdict: Verdict) -> bool {
        match verdict {
            Verdict::No => true,
            Verdict::PlainUrl => {
                self.now.in_url = true;
                true
            }
            Verdict::Match(found) => {
                self.matched(found);
                true
            }
            Verdict::Pending | Verdict::Word if self.until == Until::End => {
                // Without a password this is a URL all the same.
                self.now.in_url |= self.text[at..].contains("://");
                true
            }
            Verdict::Word if self.until == Until::Word => {
                let before = if at == 0 { self.now.scheme_bytes } else { 0 };
                self.word = Some(Word { from: at, before });
                true
            }
            Verdict::Pending | Verdict::Word => false,
        }
    }

    fn matched(&mut self, found: Match) {
        match found.close {
            Some(Close::Url) => self.url_until = found.end,
            Some(Close::Line) => self.line_until = found.end,
            // A narrower one inside ends no later.
            Some(Close::Token(class)) if found.end > self.token_until.0 => self.token_until = (found.end, Some(class)),
            Some(Close::Token(_)) | None => {}
        }
        self.matches.push(Seen {
            found,
            grows: self.until != Until::End && found.close.is_some() && found.end == self.text.len(),
            before: self.now,
        });
    }
}

impl Found {
    pub fn is_clean(&self) -> bool {
        self.matches.is_empty()
    }

    /// The text that is released, up to where it stands for the scanned one, and what is carried on.
    pub fn released(mut self, text: &str) -> (String, usize, Carried) {
        self.matches.sort_by_key(|seen| seen.found.from);
        let (mut place, mut carried) = self.settled();
        let held_long = self.length - place > HELD_MAX_BYTES || (self.marked && place == 0 && self.length > 0);
        if held_long && let Some(drop) = self.drop() {
            (place, carried) = drop;
        }
        if place == 0 {
            return (String::new(), 0, self.carried);
        }
        let word = self.word.filter(|word| word.from < place && !carried.is_dropping());
        carried.scheme_bytes = word.map_or(0, |word| {
            u8::try_from(place - word.from + usize::from(word.before)).unwrap_or(u8::MAX)
        });
        (self.text_to(text, place, carried.is_dropping()), place, carried)
    }

    /// Up to where everything is decided: no match reaches across it, and none that ends there grows.
    fn settled(&self) -> (usize, Carried) {
        let mut settled = (self.stop, self.at_stop);
        for seen in self.matches.iter().rev() {
            if seen.found.from < settled.0 && (seen.grows || seen.found.end > settled.0) {
                settled = (seen.found.from, seen.before);
            }
        }
        settled
    }

    /// A later place inside a match from which on the same is found again, given how the match goes on.
    fn drop(&self) -> Option<(usize, Carried)> {
        let (mut stop, mut before) = (self.stop, self.at_stop);
        // What stands before a replaced part decides about it, so it is read again.
        for seen in self.matches.iter().rev() {
            if seen.found.from < stop && stop <= seen.found.start {
                (stop, before) = (seen.found.from, seen.before);
            }
        }
        let reach = |seen: &&Seen| {
            let order = match (seen.grows, seen.found.close) {
                (true, Some(Close::Line)) => 4,
                (true, Some(Close::Url)) => 3,
                (true, Some(Close::Token(Class::Both))) => 2,
                (true, Some(Close::Token(Class::Underscore | Class::Dash))) => 1,
                (true, Some(Close::Token(Class::Plain)) | None) | (false, _) => 0,
            };
            (seen.found.end, seen.grows, order)
        };
        let crossing = |seen: &&Seen| seen.found.start < stop && (seen.grows || seen.found.end > stop);
        let furthest = self.matches.iter().filter(crossing).max_by_key(reach)?;
        let (place, before, dropping) = match furthest.found.close {
            Some(close) => (stop, before, Dropping::Until(close)),
            None => (furthest.found.start, furthest.before, Dropping::Matches),
        };
        Some((
            place,
            Carried {
                dropping: Some(dropping),
                ..before
            },
        ))
    }

    /// The text before `place`, with markers; `inside`: a match reaches across `place`, and its marker is due.
    fn text_to(&self, text: &str, place: usize, inside: bool) -> String {
        let mut out = String::new();
        let mut at = 0;
        for (start, end, marker) in self.merged() {
            if start > place || (start == place && !inside) {
                break;
            }
            out.push_str(&text[at..start]);
            if !(start == 0 && self.marked) {
                out.push_str(marker);
            }
            at = end;
        }
        if at < place {
            out.push_str(&text[at..place]);
        }
        out
    }

    fn merged(&self) -> Vec<(usize, usize, &'static str)> {
        let mut parts: Vec<_> = self.matches.iter().map(|seen| seen.found).collect();
        // At one start the URL's marker goes first.
        parts.sort_by_key(|found| (found.start, found.marker == MARKER));
        let mut merged: Vec<(usize, usize, &'static str)> = Vec::new();
        for found in parts {
            match merged.last_mut() {
                Some(last) if found.start < last.1 => last.1 = last.1.max(found.end),
                Some(_) | None => merged.push((found.start, found.end, found.marker)),
            }
        }
        merged
    }
}

#[cfg(test)]
thread_local! {
    pub(super) static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts the work, for the test that it is linear.
pub(super) fn step(count: usize) {
    #[cfg(test)]
    STEPS.set(STEPS.get() + count);
    #[cfg(not(test))]
    let _ = count;
}
