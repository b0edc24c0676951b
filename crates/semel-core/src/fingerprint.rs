//! Fingerprints: a versioned SHA-256 of the content by which two requests count as the same.
//!
//! JSON is canonicalised (RFC 8785) first, so that member order and white space do not matter. JSON
//! that canonicalisation would change (duplicate members, integers beyond 2^53, numbers that do not
//! round-trip, lone surrogates) is hashed from its raw bytes instead: two different amounts must
//! never share a fingerprint because a parser rounded them.

mod compact;
mod document;
mod ijson;
mod pointer;

use std::fmt;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

pub use pointer::{InvalidPointer, Pointer};

use crate::key::hex;

/// The way in which a fingerprint was computed. Its code is stored before the hash, so that
/// fingerprints of two schemes never compare equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
enum Scheme {
    Json = 1,
    Raw = 2,
    Opaque = 3,
    Given = 4,
    Parts = 5,
}

/// The content by which two requests under one key count as the same request.
///
/// ```
/// use semel_core::Fingerprint;
///
/// let one = Fingerprint::of_body(br#"{"sku":"A-1","amount":100}"#);
/// let two = Fingerprint::of_body(br#"{ "amount": 100.0, "sku": "A-1" }"#);
/// assert_eq!(one, two);
/// assert!(!one.accepts(&Fingerprint::of_body(br#"{"sku":"A-1","amount":101}"#)));
/// assert!(one.accepts(&Fingerprint::none()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(Option<[u8; 33]>);

impl Fingerprint {
    /// Returns a fingerprint that matches every other: only the key is compared.
    pub const fn none() -> Self {
        Self(None)
    }

    /// Returns the fingerprint of `fields`, encoded as JSON. Pass the fields that influence the
    /// result.
    ///
    /// ```
    /// use semel_core::{Fingerprint, Pointer};
    ///
    /// #[derive(serde::Serialize)]
    /// struct Fields<'a> { sku: &'a str, pieces: u32 }
    ///
    /// let fields = Fingerprint::of(&Fields { sku: "A-1", pieces: 2 })?;
    /// // The same members of a body, whatever else the body has.
    /// let body = br#"{ "pieces": 2, "sku": "A-1", "sent_at": "12:00" }"#;
    /// let exclude = [Pointer::new("/sent_at")?];
    /// assert_eq!(Fingerprint::of_selected(body, &[], &exclude), fields);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidFingerprint::Unserializable`] if `fields` cannot be encoded as JSON.
    pub fn of<T: Serialize + ?Sized>(fields: &T) -> Result<Self, InvalidFingerprint> {
        let json = serde_json::to_vec(fields).map_err(InvalidFingerprint::Unserializable)?;
        Ok(Self::of_body(&json))
    }

    /// Returns the fingerprint of a whole body: of its canonical form if the body is I-JSON, else
    /// of its raw bytes.
    pub fn of_body(body: &[u8]) -> Self {
        match ijson::canonical(body) {
            Some(canonical) => Self::hash(Scheme::Json, &canonical),
            None => Self::hash(Scheme::Raw, body),
        }
    }

    /// Returns the fingerprint of a part of a JSON body: the values that `include` selects (the
    /// whole body, if empty), without the values that `exclude` selects. A body that is not I-JSON
    /// is hashed whole, from its raw bytes.
    pub fn of_selected(body: &[u8], include: &[Pointer], exclude: &[Pointer]) -> Self {
        if include.is_empty() && exclude.is_empty() {
            return Self::of_body(body);
        }
        match ijson::canonical_part(body, |whole| pointer::select(whole, include, exclude)) {
            Some(canonical) => Self::hash(Scheme::Json, &canonical),
            None => Self::hash(Scheme::Raw, body),
        }
    }

    /// Returns the fingerprint of several parts. The length of each part is hashed too, so that the
    /// same bytes split differently have another fingerprint.
    pub fn of_parts(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut stored = [Scheme::Parts as u8; 33];
        stored[1..].copy_from_slice(&hash.finalize());
        Self(Some(stored))
    }

    /// Returns the fingerprint of raw bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self::hash(Scheme::Raw, bytes)
    }

    /// Returns the fingerprint of a short text that stands for the request, such as an event's type
    /// or a version.
    pub fn opaque(text: &str) -> Self {
        Self::hash(Scheme::Opaque, text.as_bytes())
    }

    /// Creates a fingerprint from a SHA-256 that the caller computed: 64 hex digits of either case.
    ///
    /// # Errors
    /// [`InvalidFingerprint::NotHex`] if `text` is not 64 hex digits.
    pub fn from_hex(text: &str) -> Result<Self, InvalidFingerprint> {
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(InvalidFingerprint::NotHex { len: text.len() });
        }
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => digit - b'0',
            _ => (digit | 0x20) - b'a' + 10,
        };
        let mut stored = [Scheme::Given as u8; 33];
        for (byte, pair) in stored[1..].iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0]) << 4 | nibble(pair[1]);
        }
        Ok(Self(Some(stored)))
    }

    fn hash(scheme: Scheme, bytes: &[u8]) -> Self {
        let mut stored = [scheme as u8; 33];
        stored[1..].copy_from_slice(&Sha256::digest(bytes));
        Self(Some(stored))
    }

    /// Returns whether a request with fingerprint `other` counts as the same request.
    pub fn accepts(&self, other: &Fingerprint) -> bool {
        match (&self.0, &other.0) {
            (Some(mine), Some(theirs)) => mine == theirs,
            (None, _) | (_, None) => true,
        }
    }

    /// Returns the stored form: empty for [`Fingerprint::none`], else the scheme and 32 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |stored| stored)
    }

    /// Creates a fingerprint from its stored form; `None` if there are neither 0 nor 33 bytes. A
    /// scheme that this version does not know is accepted, and matches only the same bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes.len() {
            0 => Some(Self(None)),
            _ => Some(Self(Some(bytes.try_into().ok()?))),
        }
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("Fingerprint(none)"),
            Some(stored) => write!(f, "Fingerprint({}:{}…)", stored[0], hex(&stored[1..5])),
        }
    }
}

/// The reason why a fingerprint could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum InvalidFingerprint {
    /// The text is not 64 hex digits.
    #[error("a request hash must be 64 hex digits (SHA-256), got {len} bytes that are not")]
    NotHex {
        /// The length of the given text, in bytes.
        len: usize,
    },
    /// The fields cannot be encoded as JSON.
    #[error("the fields of a fingerprint cannot be written as JSON")]
    Unserializable(#[source] serde_json::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_of_either_case_is_one_fingerprint_and_bad_hex_is_refused() {
        let lower = "ab".repeat(32);
        let parsed = Fingerprint::from_hex(&lower).expect("hex");
        assert_eq!(parsed, Fingerprint::from_hex(&lower.to_uppercase()).expect("hex"));
        for bad in ["", "ab", &"zz".repeat(32), &"a".repeat(63), &"é".repeat(32)] {
            assert!(matches!(Fingerprint::from_hex(bad), Err(InvalidFingerprint::NotHex { .. })));
        }
    }

    #[test]
    fn fingerprints_of_different_schemes_are_not_equal() {
        let text = "1";
        assert_ne!(Fingerprint::opaque(text), Fingerprint::of_bytes(text.as_bytes()));
        assert_ne!(Fingerprint::of_body(text.as_bytes()), Fingerprint::of_bytes(text.as_bytes()));
    }

    #[test]
    fn the_stored_form_reads_back() {
        for fp in [Fingerprint::none(), Fingerprint::opaque("x"), Fingerprint::of_body(b"{}")] {
            assert_eq!(Fingerprint::from_bytes(fp.as_bytes()), Some(fp));
        }
        assert_eq!(Fingerprint::from_bytes(&[1, 2]), None);
    }

    #[test]
    fn the_order_of_fields_does_not_matter() {
        #[derive(Serialize)]
        struct One<'a> {
            sku: &'a str,
            amount: u64,
        }
        let by_struct = Fingerprint::of(&One { sku: "A", amount: 5 }).expect("json");
        assert_eq!(by_struct, Fingerprint::of_body(br#"{"amount":5,"sku":"A"}"#));
    }
}
