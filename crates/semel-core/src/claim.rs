//! The ids of one granted claim, and the lease that every later write of its holder must match.
//!
//! These are plain values that stores persist. The handle that a caller gets is `executor::Claim`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use ulid::Ulid;

use crate::clock;
use crate::key::{Digest, hex};

/// Identifies an operation through all its attempts: a ULID that is generated with the first grant
/// of a key and kept across takeovers and retries.
///
/// Derive the ids of resources that the work creates from the operation id, so that a takeover does
/// not create a second resource.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId([u8; 16]);

impl OperationId {
    /// Generates a new operation id from the time and 80 random bits.
    pub fn generate() -> Self {
        let mut random = [0; 10];
        fill_random(&mut random);
        Self::with(&random)
    }

    fn with(random: &[u8; 10]) -> Self {
        let millis = clock::system_now().as_micros().unsigned_abs() / 1_000;
        let mut tail = [0; 16];
        tail[6..].copy_from_slice(random);
        Self(Ulid::from_parts(millis, u128::from_be_bytes(tail)).to_bytes())
    }

    /// Returns the 16 bytes, big endian.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Creates an id from its stored form; `None` if there are not 16 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }
}

/// Writes the id as 26 characters of upper-case Crockford base32.
impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ulid::from_bytes(self.0))
    }
}

/// Parses the form that [`Display`](fmt::Display) writes; every other spelling of an id is refused.
impl FromStr for OperationId {
    type Err = InvalidOperationId;

    fn from_str(text: &str) -> Result<Self, InvalidOperationId> {
        let id = Ulid::from_string(text).map(|ulid| Self(ulid.to_bytes()));
        id.ok().filter(|id| id.to_string() == text).ok_or(InvalidOperationId)
    }
}

/// The error of parsing text that is not an operation id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an operation id is 26 characters of upper-case Crockford base32")]
pub struct InvalidOperationId;

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationId({self})")
    }
}

impl Serialize for OperationId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for OperationId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Identifies one grant by 128 random bits. After a lost reply, an attempt recognises its own write
/// by them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptId([u8; 16]);

impl AttemptId {
    /// Generates a new attempt id.
    pub fn generate() -> Self {
        let mut bytes = [0; 16];
        fill_random(&mut bytes);
        Self(bytes)
    }

    /// Returns the 16 bytes.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Creates an id from its stored form; `None` if there are not 16 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttemptId({})", hex(&self.0[..4]))
    }
}

/// A number that grows with every grant of a key. Pass it to other systems that can refuse writes
/// with a smaller number.
///
/// A new fence is the larger of the previous fence + 1 and the store's clock in microseconds, so
/// fences keep growing even if the record was removed and the key is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fence(pub u64);

impl Fence {
    /// Returns the fence as it is stored in a database column.
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// Creates a fence from its stored form. Negative values do not occur, and become 0.
    pub fn from_i64(stored: i64) -> Self {
        Self(u64::try_from(stored).unwrap_or(0))
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The reason why a claim was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The key had no record, or its record had expired.
    Fresh,
    /// An earlier attempt failed, and its retry was due.
    AfterFailure,
    /// The lease of an earlier attempt lapsed: its process crashed, hung or lost the store.
    Takeover,
}

/// Identifies a granted claim. A store applies a later write of the holder only if key, fence and
/// attempt id match and the record is still Running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The digest of the key.
    pub digest: Digest,
    /// The fence of the grant.
    pub fence: Fence,
    /// The id of the grant.
    pub attempt_id: AttemptId,
}

/// Generates the ids of a new operation and its first attempt, with one call to the operating system.
pub(crate) fn generate_ids() -> (OperationId, AttemptId) {
    let mut random = [0; 26];
    fill_random(&mut random);
    let (mut operation, mut attempt) = ([0; 10], [0; 16]);
    operation.copy_from_slice(&random[..10]);
    attempt.copy_from_slice(&random[10..]);
    (OperationId::with(&operation), AttemptId(attempt))
}

fn fill_random(bytes: &mut [u8]) {
    // Without randomness two attempts could share an id, and each would mistake the other's write
    // for its own. There is no safe way to continue.
    getrandom::fill(bytes).expect("the operating system provides randomness");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_id_is_a_ulid_and_survives_json() {
        let id = OperationId::generate();
        let text = id.to_string();
        assert_eq!(text.len(), 26);
        let json = serde_json::to_string(&id).expect("json");
        assert_eq!(serde_json::from_str::<OperationId>(&json).expect("ulid"), id);
        assert_ne!(OperationId::generate(), id);
    }
}
