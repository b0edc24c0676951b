//! The idempotency key of one outbound call, and how it is added to a request.
//!
//! The provider recognises repeats by the key; the provider's [`Dialect`] has the rules for its
//! text.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use http::request::Parts;
use semel_core::Context;
use semel_core::executor::NoDurableClaim;
use sha2::{Digest as _, Sha256};

use super::dialect::Dialect;
use super::invalid_key::InvalidCallKey;

/// The greatest length of a call's key, in characters.
pub const MAX_CALL_KEY: usize = 255;

/// The idempotency key of one logical call. The layer takes it from the request's extensions and
/// sends it in the provider's dialect with every try. Cheap to clone.
///
/// ```
/// use http::Request;
/// use semel_tower::client::CallKey;
///
/// let request = Request::post("http://payments.internal/charges")
///     .extension(CallKey::new("order-7/charge")?)
///     .body(r#"{"cents":1999}"#.to_owned())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct CallKey(Arc<str>);

impl CallKey {
    /// Creates a key with this text: 1 to 255 printable ASCII characters, no space at its ends. A
    /// dialect may allow less; [`CallKey::fitting`] makes a key that fits from any text.
    ///
    /// # Errors
    /// [`InvalidCallKey`] if the text is blank, too long, or has a character that is not allowed.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidCallKey> {
        let text = text.as_ref();
        Dialect::standard().check(text)?;
        Ok(Self(text.into()))
    }

    /// Returns the key for `step` of an execution: the same in every retry and takeover of the operation,
    /// so that a provider sees one call however often this process crashes and starts again.
    ///
    /// # Errors
    /// [`NoDurableClaim`] if no store remembers the operation; see [`Context::downstream_key`].
    pub fn of(claim: &Context, step: &str) -> Result<Self, NoDurableClaim> {
        claim.downstream_key(step).map(|key| Self(key.into()))
    }

    /// Creates a random key: 128 bits as 32 hex digits. It makes the retries inside one call safe;
    /// a caller that may call again after an error must supply a key that it can use again.
    pub fn fresh() -> Self {
        let mut bytes = [0; 16];
        // Providers return a stored response to any caller that has the key, so the key must not be
        // guessable.
        getrandom::fill(&mut bytes).expect("the operating system provides randomness");
        Self(hex(&bytes).into())
    }

    /// Returns `text` itself where the dialect accepts it, else 32 hex digits of its SHA-256: the
    /// same text gives the same key, and two texts do not become one key by being cut.
    ///
    /// ```
    /// use semel_tower::client::{CallKey, Dialect};
    ///
    /// let long = "tenant-4711/order-2024-000123/charge";
    /// assert_eq!(CallKey::fitting(long, &Dialect::stripe())?.as_str(), long);
    /// assert_eq!(CallKey::fitting(long, &Dialect::amazon_pay())?.as_str().len(), 32);
    /// # Ok::<(), semel_tower::client::InvalidCallKey>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidCallKey`] if the dialect does not take 32 hex digits either, or the text is blank.
    pub fn fitting(text: &str, dialect: &Dialect) -> Result<Self, InvalidCallKey> {
        match dialect.check(text) {
            Ok(()) => return Ok(Self(text.into())),
            Err(InvalidCallKey::Blank) => return Err(InvalidCallKey::Blank),
            Err(_) => {}
        }
        let mut hash = Sha256::new();
        hash.update(b"semel/call-key/1\0");
        hash.update(text.as_bytes());
        let digest = hex(&hash.finalize()[..16]);
        dialect.check(&digest)?;
        Ok(Self(digest.into()))
    }

    /// Returns the text of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Adds the key of the call to the request's header and returns it: the key that the header
    /// already has, else the one in the extensions, else a fresh one if `fresh` is set and the
    /// dialect covers the method.
    pub(super) fn attach(
        parts: &mut Parts,
        dialect: &Dialect,
        fresh: bool,
    ) -> Result<Option<Self>, InvalidCallKey> {
        let given = parts.extensions.get::<Self>().cloned();
        if let Some(present) = Self::present(parts, dialect)? {
            return match given {
                Some(given) if given != present => {
                    Err(InvalidCallKey::Ambiguous { dialect: dialect.name() })
                }
                _ => Ok(Some(present)),
            };
        }
        let fresh = || (fresh && dialect.covers(&parts.method)).then(Self::fresh);
        let Some(key) = given.or_else(fresh) else { return Ok(None) };
        dialect.check(key.as_str())?;
        parts.headers.insert(dialect.header().clone(), dialect.write(key.as_str()));
        Ok(Some(key))
    }

    /// Returns the key that the request's header already has. Does not change the header.
    fn present(parts: &Parts, dialect: &Dialect) -> Result<Option<Self>, InvalidCallKey> {
        let mut lines = parts.headers.get_all(dialect.header()).iter();
        let (value, None) = (lines.next(), lines.next()) else {
            return Err(InvalidCallKey::Repeated { dialect: dialect.name() });
        };
        let Some(value) = value else { return Ok(None) };
        dialect.read(value).and_then(Self::new).map(Some)
    }
}

/// Shows the length, never the text: any caller that knows a key can read the stored response.
impl fmt::Debug for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallKey({} characters)", self.0.len())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
