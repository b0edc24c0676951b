//! The ids of events.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::claim::{InvalidOperationId, OperationId};

/// The id of an event: a ULID. For an event of another system it is computed from the event's
/// source and id.
///
/// ```
/// use semel_core::{EventId, OperationId};
///
/// // The same however often the operation runs.
/// let operation = OperationId::generate();
/// let placed = EventId::derived(operation, "order.placed");
/// assert_eq!(placed, EventId::derived(operation, "order.placed"));
/// assert_ne!(placed, EventId::derived(operation, "order.paid"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(OperationId);

impl EventId {
    /// Generates a new event id from the time and 80 random bits.
    pub fn generate() -> Self {
        Self(OperationId::generate())
    }

    /// Returns the id of the event `name` of an operation. It is the same in every attempt of the
    /// operation, so that consumers recognise a repeat.
    pub fn derived(operation: OperationId, name: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"semel/event/1\0");
        hash.update(operation.to_bytes());
        hash.update(name.as_bytes());
        let mut bytes = operation.to_bytes();
        bytes[6..].copy_from_slice(&hash.finalize()[..10]);
        Self::from_array(bytes)
    }

    /// Returns the id of an event of another system. A ULID is used unchanged, since it is unique;
    /// any other `id` is hashed together with its `source`, since it is unique only there.
    pub fn foreign(source: &str, id: &str) -> Self {
        if let Ok(ulid) = id.parse() {
            return ulid;
        }
        let mut hash = Sha256::new();
        hash.update(b"semel/foreign-event/1\0");
        hash.update(source.len().to_be_bytes());
        hash.update(source.as_bytes());
        hash.update(id.as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Self::from_array(bytes)
    }

    /// Parses an id that another program wrote: a ULID, or the 32 digits of a UUID with hyphens, each all
    /// in upper or all in lower case. Both name the same 128 bits; `None` for anything else.
    ///
    /// ```
    /// use semel_core::EventId;
    ///
    /// let id = EventId::from_ulid_or_uuid("018f3c2e-7c1a-7d4b-9a5e-3f2b1c0d9e8f").expect("a UUID");
    /// assert_eq!(id.to_string(), "01HWY2WZ0TFN5SMQHZ5CE0V7MF");
    /// assert_eq!(EventId::from_ulid_or_uuid("01HWY2WZ0TFN5SMQHZ5CE0V7MF"), Some(id));
    /// assert_eq!(EventId::from_ulid_or_uuid("order-17"), None);
    /// ```
    pub fn from_ulid_or_uuid(text: &str) -> Option<Self> {
        let mixed = text.bytes().any(|byte| byte.is_ascii_lowercase())
            && text.bytes().any(|byte| byte.is_ascii_uppercase());
        if mixed {
            return None;
        }
        if text.len() != 36 {
            return text.to_ascii_uppercase().parse().ok();
        }
        let hyphens = [8, 13, 18, 23];
        let sound = text.bytes().enumerate().all(|(at, byte)| match hyphens.contains(&at) {
            true => byte == b'-',
            false => byte.is_ascii_hexdigit(),
        });
        let number = u128::from_str_radix(&text.replace('-', ""), 16).ok().filter(|_| sound)?;
        Some(Self::from_array(number.to_be_bytes()))
    }

    /// Returns the id as a UUID with hyphens, in lower case.
    pub fn to_uuid(self) -> String {
        let digits = format!("{:032x}", u128::from_be_bytes(self.to_bytes()));
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        parts.join("-")
    }

    fn from_array(bytes: [u8; 16]) -> Self {
        Self(OperationId::from_bytes(&bytes).expect("16 bytes"))
    }

    /// Returns the 16 bytes, big endian.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_bytes()
    }

    /// Creates an id from its stored form; `None` if there are not 16 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        OperationId::from_bytes(bytes).map(Self)
    }
}

/// Writes the id as 26 characters of upper-case Crockford base32.
impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventId({self})")
    }
}

/// Parses the form that [`Display`](fmt::Display) writes; every other spelling is refused.
impl FromStr for EventId {
    type Err = InvalidOperationId;

    fn from_str(text: &str) -> Result<Self, InvalidOperationId> {
        text.parse().map(Self)
    }
}
