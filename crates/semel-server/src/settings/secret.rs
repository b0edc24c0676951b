//! Secrets that sign requests, as Standard Webhooks writes them.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac::{self, HMAC_SHA256};

/// What a secret begins with.
const PREFIX: &str = "whsec_";
/// The shortest and the longest key, in bytes.
const SIZE: std::ops::RangeInclusive<usize> = 24..=64;
/// A secret that signs requests. It is never displayed.
#[derive(Clone)]
pub struct SigningSecret(hmac::Key);

impl FromStr for SigningSecret {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "is not a secret; write whsec_ and 24 to 64 bytes in Base64, as in \
                     `echo whsec_$(openssl rand -base64 32)`";
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(wrong)?;
        let key = STANDARD.decode(encoded).map_err(|_| wrong)?;
        if !SIZE.contains(&key.len()) {
            return Err(wrong);
        }
        Ok(Self(hmac::Key::new(HMAC_SHA256, &key)))
    }
}

impl SigningSecret {
    /// Returns the key, for signing.
    pub(crate) fn key(&self) -> &hmac::Key {
        &self.0
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret(***)")
    }
}
