//! Identifiers as types of their own, so that a run id is never handed over where a conversation id is meant.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The id of a run: a UUID that boxrun chooses at admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, sqlx::Type)]
#[serde(transparent)]
#[sqlx(transparent)]
pub struct RunId(pub Uuid);

/// The id of a conversation: a UUID that the web app chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, sqlx::Type)]
#[serde(transparent)]
#[sqlx(transparent)]
pub struct ConversationId(pub Uuid);

/// The provider's id of a box: `bx_` and eight characters of `[23456789abcdefghjkmnpqrstuvwxyz]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, sqlx::Type)]
#[serde(try_from = "String", into = "String")]
#[sqlx(transparent)]
pub struct BoxId(String);

/// A text that is no box id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a box id is `bx_` and eight characters of 23456789abcdefghjkmnpqrstuvwxyz, for example bx_8bhkse3n")]
pub struct InvalidBoxId;

impl BoxId {
    const PREFIX: &'static str = "bx_";
    const LENGTH: usize = 11;
    const ALPHABET: &'static [u8] = b"23456789abcdefghjkmnpqrstuvwxyz";

    /// The id as the provider writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BoxId {
    type Err = InvalidBoxId;

    fn from_str(text: &str) -> Result<Self, InvalidBoxId> {
        let code = text.strip_prefix(Self::PREFIX).ok_or(InvalidBoxId)?;
        if text.len() != Self::LENGTH || !code.bytes().all(|byte| Self::ALPHABET.contains(&byte)) {
            return Err(InvalidBoxId);
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for BoxId {
    type Error = InvalidBoxId;

    fn try_from(text: String) -> Result<Self, InvalidBoxId> {
        text.parse()
    }
}

impl From<BoxId> for String {
    fn from(id: BoxId) -> Self {
        id.0
    }
}

impl fmt::Display for BoxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! uuid_id {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, uuid::Error> {
                text.parse().map(Self)
            }
        }
    };
}

uuid_id!(RunId);
uuid_id!(ConversationId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_id_is_checked_at_the_edge() {
        assert_eq!("bx_8bhkse3n".parse::<BoxId>().unwrap().as_str(), "bx_8bhkse3n");
        for wrong in [
            "",
            "bx_",
            "bx_8bhkse3",
            "bx_8bhkse3nn",
            "bx_8bhkse3l",
            "bx_8BHKSE3N",
            "by_8bhkse3n",
            "bx_8bhk/e3n",
            "bx_8bhkse3n\n",
        ] {
            assert_eq!(wrong.parse::<BoxId>(), Err(InvalidBoxId), "{wrong:?}");
        }
    }
}
