//! Ids whose Rust type contains the resource type.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Serialize, Serializer};
use ulid::Ulid;

use crate::codec::{InvalidId, PublicId};
use crate::resource::Resource;

/// The id of an `R`, which is displayed, parsed and serialised as its public id, and stored as 16
/// bytes.
///
/// ```
/// use semel_ids::{TypedId, resource};
///
/// type OrderId = TypedId<resource::Order>;
/// let id: OrderId = "ord_01arz3ndektsv4rrffq69g5fav".parse()?;
/// assert_eq!(id.to_string(), "ord_01arz3ndektsv4rrffq69g5fav");
/// assert!("usr_01arz3ndektsv4rrffq69g5fav".parse::<OrderId>().is_err());
/// # Ok::<(), semel_ids::InvalidId>(())
/// ```
pub struct TypedId<R> {
    id: Ulid,
    of: PhantomData<fn() -> R>,
}

impl<R: Resource> TypedId<R> {
    /// Creates the id of the `R` with this internal id.
    pub const fn new(id: Ulid) -> Self {
        Self { id, of: PhantomData }
    }

    /// Returns the internal id.
    pub const fn ulid(self) -> Ulid {
        self.id
    }

    /// Returns the internal id in its stored form: 16 bytes, big endian.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.id.to_bytes()
    }

    /// Returns the public id.
    pub fn public(self) -> PublicId {
        R::codec().encode(R::TYPE.prefix(), self.id)
    }
}

/// Decodes a public id. With several hiding keys the first key is used, although another key may
/// have encoded the text: resolve such texts instead. See
/// [`Codec::hiding_time`](crate::Codec::hiding_time).
impl<R: Resource> FromStr for TypedId<R> {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        R::codec().read(R::TYPE.prefix(), text).map(|ids| Self::new(ids.first()))
    }
}

impl<R: Resource> fmt::Display for TypedId<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.public(), f)
    }
}

impl<R: Resource> fmt::Debug for TypedId<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<R: Resource> Serialize for TypedId<R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.public().serialize(serializer)
    }
}

impl<'de, R: Resource> Deserialize<'de> for TypedId<R> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl<R> Clone for TypedId<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for TypedId<R> {}

impl<R> PartialEq for TypedId<R> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl<R> Eq for TypedId<R> {}

impl<R> PartialOrd for TypedId<R> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<R> Ord for TypedId<R> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.id.cmp(&other.id)
    }
}

impl<R> Hash for TypedId<R> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}
