//! Secrets of a run: what they are, and how they and other secrets are sealed at rest.
//!
//! Sealed with XChaCha20-Poly1305 under the first of the configured keys, a random nonce, and the run's id as associated
//! data, so that a sealed value can't be moved to another run. Any of the keys opens: a key is rotated by putting the new
//! one in front and removing the old one once the longest run is over.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use sqlx::PgConnection;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::ids::RunId;

/// A shorter secret can't be masked without blanking ordinary text.
pub const SECRET_MIN_BYTES: usize = 8;
/// All secrets of a run together.
pub const SECRETS_MAX_BYTES: usize = 32 * 1024;

/// What a run is given and nobody may see.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSecrets {
    /// Added to the command's environment.
    pub env: BTreeMap<String, Secret>,
    /// For git over HTTP.
    pub git_credential: Option<GitCredential>,
}

/// User and password for one git host.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCredential {
    /// A host name, with a port where it is not the usual one.
    pub host: String,
    pub username: String,
    pub password: Secret,
}

/// A secret text: wiped from memory when dropped, and never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for where it is really needed.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl fmt::Debug for GitCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GitCredential")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RunSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.env.keys().collect();
        f.debug_struct("RunSecrets")
            .field("env", &names)
            .field("git_credential", &self.git_credential)
            .finish()
    }
}

impl RunSecrets {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.env.is_empty() && self.git_credential.is_none()
    }

    /// Every text that must not appear in output: the values as they are, and the password as it stands in a URL and in an
    /// Authorization header.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let mut texts: Vec<String> = self.env.values().map(|secret| secret.0.clone()).collect();
        if let Some(git) = &self.git_credential {
            texts.push(git.password.0.clone());
            let encoded = percent_encoded(git.password.expose());
            if encoded != git.password.0 {
                texts.push(encoded);
            }
            texts.push(STANDARD.encode(format!("{}:{}", git.username, git.password.expose())));
        }
        texts
    }

    /// What is wrong with them, if anything.
    pub(super) fn problem(&self) -> Option<(&'static str, &'static str)> {
        let too_short = |secret: &Secret| secret.0.len() < SECRET_MIN_BYTES;
        if self.env.values().any(too_short) {
            return Some((
                "secret_env",
                "a secret has at least 8 bytes; a shorter one can't be kept out of the output",
            ));
        }
        if self.env.values().any(|secret| secret.0.contains('\0')) {
            return Some(("secret_env", "a value has no NUL"));
        }
        if let Some(git) = &self.git_credential {
            let is_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
            if git.host.is_empty() || git.host.len() > 255 || !git.host.chars().all(is_host) {
                return Some((
                    "git_credential",
                    "host is a host name, with a port where it is not the usual one",
                ));
            }
            if git.username.is_empty() || git.username.contains(['\0', '\n', '\r']) {
                return Some(("git_credential", "username is not empty, without NUL and newlines"));
            }
            if too_short(&git.password) || git.password.0.contains(['\0', '\n', '\r']) {
                return Some((
                    "git_credential",
                    "password has at least 8 bytes, without NUL and newlines",
                ));
            }
        }
        let size: usize = self.env.iter().map(|(name, secret)| name.len() + secret.0.len()).sum();
        (size > SECRETS_MAX_BYTES).then_some(("secret_env", "names and values have 32 KiB together at most"))
    }
}

/// As in the user part of a URL: everything but letters, digits and `-._~`.
#[must_use]
pub fn percent_encoded(text: &str) -> String {
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let letters = text.bytes().map(|byte| {
        if unreserved(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    letters.collect()
}

/// The keys that seal and open; clones share them.
#[derive(Clone)]
pub struct SecretKeys(Arc<Vec<SecretKey>>);

struct SecretKey {
    id: String,
    cipher: XChaCha20Poly1305,
}

/// The keys are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "each key is 32 bytes in base64, separated by commas; number {0} is not (make one with `openssl rand -base64 32`)"
)]
pub struct InvalidSecretKeys(usize);

/// Secrets can't be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("secret_unreadable: no configured key has the id {0}; put it back into BOXRUN_SECRET_KEYS")]
    UnknownKey(String),
    #[error("secret_unreadable: the sealed secret is damaged, or belongs to something else")]
    Damaged,
}

impl SecretKeys {
    /// Reads `BOXRUN_SECRET_KEYS`: the first seals, all open.
    ///
    /// # Errors
    /// Names the first key that is not 32 bytes in base64.
    pub fn parse(text: &str) -> Result<Self, InvalidSecretKeys> {
        let keys: Result<Vec<_>, _> = text
            .split(',')
            .enumerate()
            .map(|(index, key)| {
                let bytes = STANDARD
                    .decode(key.trim())
                    .map(Zeroizing::new)
                    .map_err(|_| InvalidSecretKeys(index + 1))?;
                let cipher = XChaCha20Poly1305::new_from_slice(&bytes).map_err(|_| InvalidSecretKeys(index + 1))?;
                let digest = Sha256::digest(bytes.as_slice());
                let id = digest
                    .iter()
                    .take(4)
                    .fold(String::new(), |id, byte| id + &format!("{byte:02x}"));
                Ok(SecretKey { id, cipher })
            })
            .collect();
        keys.map(|keys| Self(Arc::new(keys)))
    }

    /// Seals the secrets of one run.
    ///
    /// # Panics
    /// Never: maps of texts are JSON.
    #[must_use]
    pub fn seal(&self, run_id: RunId, secrets: &RunSecrets) -> Sealed {
        let plain = Zeroizing::new(serde_json::to_vec(secrets).expect("maps of texts are JSON"));
        self.seal_bytes(run_id.0.as_bytes(), &plain)
    }

    /// Opens the secrets of one run.
    ///
    /// # Errors
    /// When the key is not configured any more, or the bytes are not what was sealed for this run.
    pub fn open(&self, run_id: RunId, sealed: &Sealed) -> Result<RunSecrets, OpenError> {
        let plain = self.open_bytes(run_id.0.as_bytes(), sealed)?;
        serde_json::from_slice(&plain).map_err(|_| OpenError::Damaged)
    }

    /// Seals what belongs to `owner`, and opens for it alone.
    ///
    /// # Panics
    /// Never: a few KiB can always be sealed.
    pub(crate) fn seal_bytes(&self, owner: &[u8], plain: &[u8]) -> Sealed {
        let key = &self.0[0];
        let nonce = random_nonce();
        let payload = Payload { msg: plain, aad: owner };
        let sealed = key
            .cipher
            .encrypt(&XNonce::from(nonce), payload)
            .expect("a few KiB can be sealed");
        Sealed {
            key_id: key.id.clone(),
            nonce: nonce.to_vec(),
            sealed,
        }
    }

    /// Opens what was sealed for `owner`.
    pub(crate) fn open_bytes(&self, owner: &[u8], sealed: &Sealed) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let key = self.0.iter().find(|key| key.id == sealed.key_id);
        let key = key.ok_or_else(|| OpenError::UnknownKey(sealed.key_id.clone()))?;
        let nonce: [u8; 24] = sealed.nonce.as_slice().try_into().map_err(|_| OpenError::Damaged)?;
        let payload = Payload {
            msg: &sealed.sealed,
            aad: owner,
        };
        let plain = key.cipher.decrypt(&XNonce::from(nonce), payload);
        plain.map(Zeroizing::new).map_err(|_| OpenError::Damaged)
    }
}

impl fmt::Debug for SecretKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.0.iter().map(|key| &key.id).collect();
        write!(f, "SecretKeys({ids:?})")
    }
}

#[expect(clippy::disallowed_methods, reason = "a nonce must be random, in a test too")]
fn random_nonce() -> [u8; 24] {
    rand::random()
}

/// Secrets at rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    pub key_id: String,
    pub nonce: Vec<u8>,
    pub sealed: Vec<u8>,
}

/// Stores the sealed secrets of a run that is being admitted.
pub(super) async fn store(conn: &mut PgConnection, run_id: RunId, sealed: &Sealed) -> sqlx::Result<()> {
    sqlx::query!(
        "with marked as (update boxrun.runs set has_secrets = true where id = $1)
         insert into boxrun.run_secrets (run_id, key_id, nonce, sealed) values ($1, $2, $3, $4)",
        run_id.0,
        sealed.key_id,
        sealed.nonce,
        sealed.sealed,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Reads the sealed secrets of a run; none once it is terminal.
pub(crate) async fn load(conn: &mut PgConnection, run_id: RunId) -> sqlx::Result<Option<Sealed>> {
    sqlx::query_as!(
        Sealed,
        "select key_id, nonce, sealed from boxrun.run_secrets where run_id = $1",
        run_id.0
    )
    .fetch_optional(conn)
    .await
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn keys(seeds: &[u8]) -> SecretKeys {
        let text: Vec<_> = seeds.iter().map(|seed| STANDARD.encode([*seed; 32])).collect();
        SecretKeys::parse(&text.join(",")).unwrap()
    }

    fn secrets() -> RunSecrets {
        RunSecrets {
            env: BTreeMap::from([("TOKEN".to_owned(), Secret::new("hunter2-hunter2"))]),
            git_credential: Some(GitCredential {
                host: "git.example".to_owned(),
                username: "bob".to_owned(),
                password: Secret::new("p@ss/word"),
            }),
        }
    }

    const RUN: RunId = RunId(Uuid::from_u128(7));

    #[test]
    fn what_is_sealed_opens_for_its_own_run_alone() {
        let sealed = keys(&[1]).seal(RUN, &secrets());
        assert_eq!(keys(&[1]).open(RUN, &sealed), Ok(secrets()));
        assert_eq!(
            keys(&[1]).open(RunId(Uuid::from_u128(8)), &sealed),
            Err(OpenError::Damaged)
        );
        let mut damaged = sealed.clone();
        damaged.sealed[3] ^= 1;
        assert_eq!(keys(&[1]).open(RUN, &damaged), Err(OpenError::Damaged));
    }

    #[test]
    fn a_key_is_rotated_by_putting_the_new_one_in_front() {
        let old = keys(&[1]).seal(RUN, &secrets());
        assert_eq!(keys(&[2, 1]).open(RUN, &old), Ok(secrets()));
        let new = keys(&[2, 1]).seal(RUN, &secrets());
        assert_ne!(new.key_id, old.key_id);
        assert_eq!(
            keys(&[1]).open(RUN, &new),
            Err(OpenError::UnknownKey(new.key_id.clone()))
        );
    }

    #[test]
    fn a_key_that_is_no_key_is_named_by_its_place_and_never_shown() {
        let good = STANDARD.encode([1u8; 32]);
        for (text, place) in [("", 1), ("short", 1), (&*format!("{good},AAAA"), 2)] {
            let error = SecretKeys::parse(text).unwrap_err();
            assert_eq!(error, InvalidSecretKeys(place));
            assert!(!error.to_string().contains("short"));
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let text = format!("{:?} {:?}", secrets(), keys(&[1]));
        for secret in ["hunter2", "p@ss", "bob"] {
            assert!(!text.contains(secret), "{text}");
        }
    }

    #[test]
    fn a_password_is_masked_in_each_form_in_which_git_shows_it() {
        let texts = secrets().texts();
        for form in [
            "hunter2-hunter2",
            "p@ss/word",
            "p%40ss%2Fword",
            &STANDARD.encode("bob:p@ss/word"),
        ] {
            assert!(texts.iter().any(|text| text == form), "{form}");
        }
    }

    #[test]
    fn what_could_not_be_masked_or_written_is_refused() {
        let env = |value: &str| RunSecrets {
            env: BTreeMap::from([("T".to_owned(), Secret::new(value))]),
            ..RunSecrets::default()
        };
        let git = |host: &str, username: &str, password: &str| RunSecrets {
            git_credential: Some(GitCredential {
                host: host.to_owned(),
                username: username.to_owned(),
                password: Secret::new(password),
            }),
            ..RunSecrets::default()
        };
        assert!(env("12345678").problem().is_none() && git("h:3000", "u", "12345678").problem().is_none());
        for wrong in [
            env("1234567"),
            env("12345678\0"),
            env(&"x".repeat(SECRETS_MAX_BYTES)),
            git("", "u", "12345678"),
            git("h/p", "u", "12345678"),
            git("h", "", "12345678"),
            git("h", "u\n", "12345678"),
            git("h", "u", "1234567"),
        ] {
            assert!(wrong.problem().is_some(), "{wrong:?}");
        }
    }
}
