//! The URL of a receiver. Its query may hold a secret of the receiver, so that it is shown to nobody.

use std::fmt;

use ::url::Url;

/// The longest, in bytes.
pub const URL_MAX_BYTES: usize = 2048;

/// An http or https URL with a host, without user, password and fragment.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookUrl {
    given: String,
    parsed: Url,
}

/// Why a text is no such URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUrl {
    #[error("it has at most {URL_MAX_BYTES} bytes")]
    TooLong,
    #[error(
        "it is an http or https URL with a host, in ASCII without blanks, for example https://app.example.com/hooks"
    )]
    NotHttp,
    #[error("it has no user, password or fragment")]
    HasMore,
}

impl WebhookUrl {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong, without the text.
    pub fn parse(text: &str) -> Result<Self, InvalidUrl> {
        if text.len() > URL_MAX_BYTES {
            return Err(InvalidUrl::TooLong);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidUrl::NotHttp);
        }
        let parsed = Url::parse(text).map_err(|_| InvalidUrl::NotHttp)?;
        // The parser forgives `http:host`, and nobody writes it on purpose.
        let has_authority = text.split_once(':').is_some_and(|(_, rest)| rest.starts_with("//"));
        if !matches!(parsed.scheme(), "http" | "https") || !has_authority {
            return Err(InvalidUrl::NotHttp);
        }
        if !parsed.username().is_empty() || parsed.password().is_some() || parsed.fragment().is_some() {
            return Err(InvalidUrl::HasMore);
        }
        Ok(Self {
            given: text.to_owned(),
            parsed,
        })
    }

    /// As it was given, with its query: for the request and the database alone.
    pub(super) fn expose(&self) -> &str {
        &self.given
    }

    pub(super) fn parsed(&self) -> &Url {
        &self.parsed
    }

    /// Without its query.
    #[must_use]
    pub fn shown(&self) -> String {
        match self.given.split_once('?') {
            Some((before, _)) => format!("{before}?[REDACTED]"),
            None => self.given.clone(),
        }
    }
}

impl fmt::Debug for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebhookUrl({})", self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_shown_to_nobody() {
        let url = WebhookUrl::parse("https://app.example.com/hooks?key=hunter2").unwrap();
        assert_eq!(url.shown(), "https://app.example.com/hooks?[REDACTED]");
        assert!(!format!("{url:?}").contains("hunter2"));
        let bare = WebhookUrl::parse("http://app.example.com:8080/hooks").unwrap();
        assert_eq!(bare.shown(), "http://app.example.com:8080/hooks");
    }

    #[test]
    fn what_is_no_plain_http_url_is_refused() {
        let of = |text: &str| WebhookUrl::parse(text).map(drop);
        let longest = format!("https://a/{}", "x".repeat(URL_MAX_BYTES - 10));
        assert_eq!(of(&longest), Ok(()));
        assert_eq!(of(&format!("{longest}x")), Err(InvalidUrl::TooLong));
        for wrong in [
            "",
            "app.example.com",
            "ftp://a/",
            "https://",
            "https:a",
            "https://a b/",
            " https://a/",
            "https://ä/",
            "https://a:70000/",
        ] {
            assert_eq!(of(wrong), Err(InvalidUrl::NotHttp), "{wrong}");
        }
        for wrong in ["https://bob@a/", "https://bob:pw@a/", "https://a/#part"] {
            assert_eq!(of(wrong), Err(InvalidUrl::HasMore), "{wrong}");
        }
    }
}
