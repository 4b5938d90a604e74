//! Signing, by the Standard Webhooks specification: `v1,` and base64 of HMAC-SHA256 over `id.timestamp.body`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::runs::secrets::{OpenError, Sealed};
use crate::runs::{Secret, SecretKeys};

const PREFIX: &str = "whsec_";
/// The lengths that the specification allows, in bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;
/// The length of those made here.
const LENGTH: usize = 32;

/// What signs the deliveries of one webhook; wiped from memory when dropped, and never printed.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct SigningSecret(Vec<u8>);

/// A text that is no signing secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a signing secret is whsec_ and 24 to 64 random bytes in base64")]
pub struct InvalidSigningSecret;

impl std::fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningSecret(…)")
    }
}

impl SigningSecret {
    /// Reads one as [`SigningSecret::text`] writes it.
    ///
    /// # Errors
    /// When it is none; the text is not repeated.
    pub fn parse(text: &Secret) -> Result<Self, InvalidSigningSecret> {
        let encoded = text.expose().strip_prefix(PREFIX).ok_or(InvalidSigningSecret)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| InvalidSigningSecret)?;
        let secret = Self(bytes);
        if LENGTHS.contains(&secret.0.len()) {
            Ok(secret)
        } else {
            Err(InvalidSigningSecret)
        }
    }

    /// A fresh one.
    #[expect(
        clippy::disallowed_methods,
        reason = "a secret is nothing but randomness; no decision depends on it"
    )]
    #[must_use]
    pub fn generate() -> Self {
        let bytes: Zeroizing<[u8; LENGTH]> = Zeroizing::new(rand::random());
        Self(bytes.to_vec())
    }

    /// `whsec_` and base64: what its principal is shown once.
    #[must_use]
    pub fn text(&self) -> Secret {
        Secret::new(format!("{PREFIX}{}", STANDARD.encode(&self.0)))
    }

    /// The header `webhook-signature`; `timestamp` is in seconds of the Unix epoch.
    ///
    /// # Panics
    /// Never: HMAC takes a key of any length.
    #[must_use]
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }

    /// Seals it for one webhook.
    pub(super) fn seal(&self, keys: &SecretKeys, webhook_id: Uuid) -> Sealed {
        keys.seal_bytes(&owner(webhook_id), &self.0)
    }

    /// Opens that of one webhook.
    pub(super) fn open(keys: &SecretKeys, webhook_id: Uuid, sealed: &Sealed) -> Result<Self, OpenError> {
        let opened = keys.open_bytes(&owner(webhook_id), sealed)?;
        Ok(Self(opened.to_vec()))
    }
}

/// Different from any run, so that a sealed value can't be moved from one to the other.
fn owner(webhook_id: Uuid) -> Vec<u8> {
    [b"webhook:".as_slice(), webhook_id.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Result<SigningSecret, InvalidSigningSecret> {
        SigningSecret::parse(&Secret::new(text))
    }

    #[test]
    fn it_signs_as_the_libraries_of_the_specification_do() {
        // The example of the specification's own libraries.
        let secret = secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = secret.sign(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_fresh_secret_reads_back_and_differs_from_any_other() {
        let fresh = SigningSecret::generate();
        assert_eq!(SigningSecret::parse(&fresh.text()), Ok(fresh.clone()));
        assert_ne!(SigningSecret::generate(), fresh);
        assert_eq!(format!("{fresh:?} {:?}", fresh.text()), "SigningSecret(…) Secret(…)");
    }

    #[test]
    fn a_secret_has_24_to_64_bytes() {
        let of = |length: usize| secret(&format!("whsec_{}", STANDARD.encode(vec![7; length])));
        assert!(of(24).is_ok() && of(64).is_ok());
        for wrong in [
            of(23),
            of(65),
            of(0),
            secret("whsec_"),
            secret("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
            secret("whsec_%"),
        ] {
            assert_eq!(wrong, Err(InvalidSigningSecret));
        }
    }

    #[test]
    fn a_sealed_secret_opens_for_its_own_webhook_alone() {
        let keys = SecretKeys::parse(&STANDARD.encode([1; 32])).unwrap();
        let (own, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let secret = SigningSecret::generate();
        let sealed = secret.seal(&keys, own);
        assert_eq!(SigningSecret::open(&keys, own, &sealed), Ok(secret));
        assert_eq!(SigningSecret::open(&keys, other, &sealed), Err(OpenError::Damaged));
    }
}
