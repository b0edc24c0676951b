//! Encodes public ids as text, `{prefix}_{payload}[_{checksum}]`, with one spelling per id.
//!
//! A codec accepts only texts that it writes itself. Caches, unique keys and logs compare texts, so
//! a second spelling of an id would be a second identity.

mod base32;
mod base62;
mod crc8;
mod hidden;

use std::fmt;
use std::sync::Arc;

use ulid::Ulid;

use crate::prefix::Prefix;
pub use hidden::{HidingKey, InvalidHidingKey};

/// The length of the longest public id, in bytes: prefix, payload and checksum with their
/// separators.
pub const MAX_PUBLIC_ID: usize = 10 + 1 + base32::LEN + 1 + crc8::LEN;

/// Encodes ids as text and decodes them.
///
/// ```
/// use semel_ids::{Codec, Prefix};
/// use ulid::Ulid;
///
/// const ORDER: Prefix = match Prefix::new("ord") {
///     Ok(prefix) => prefix,
///     Err(_) => panic!("not a prefix"),
/// };
/// let id = Ulid::from_parts(1_469_922_850_259, 0xd676_4c61_efb9_9302_bd5b);
/// let codec = Codec::new().checksum();
/// let text = codec.encode(ORDER, id);
/// assert_eq!(text.as_str(), "ord_01arz3ndektsv4rrffq69g5fav_2X");
/// assert_eq!(codec.decode(text.as_str())?, (ORDER, id));
/// assert!(codec.decode("ord_01ARZ3NDEKTSV4RRFFQ69G5FAV_2X").is_err());
/// # Ok::<(), semel_ids::InvalidPublicId>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Codec {
    payload: Payload,
    checksum: bool,
}

#[derive(Clone, Debug)]
enum Payload {
    /// 26 characters, which sort by the time of the id and show that time.
    Base32,
    /// 22 characters.
    Base62,
    /// 22 characters of an encrypted id, which do not show its time.
    Hidden(Arc<[HidingKey]>),
}

impl Default for Codec {
    fn default() -> Self {
        Self::new()
    }
}

impl Codec {
    /// Creates a codec that writes lower-case Crockford base32, without a checksum.
    pub const fn new() -> Self {
        Self { payload: Payload::Base32, checksum: false }
    }

    /// Makes the codec use base62 (`0-9A-Za-z`), which is four characters shorter.
    pub fn base62(mut self) -> Self {
        self.payload = Payload::Base62;
        self
    }

    /// Hides the time of ids: each id is encrypted as one AES-128 block and written in base62. The
    /// first key encodes; all keys decode, so that keys can be rotated. An empty list is the same
    /// as [`base62`](Self::base62).
    ///
    /// With several keys, only the map records which key encoded a text, so resolve texts through
    /// the map. Parsing a text as a [`TypedId`](crate::TypedId) decodes it with the first key.
    /// Displaying an id encodes it with the first key, which for an old id is not the text that
    /// clients have.
    pub fn hiding_time(mut self, keys: impl IntoIterator<Item = HidingKey>) -> Self {
        let keys: Arc<[HidingKey]> = keys.into_iter().collect();
        self.payload = if keys.is_empty() { Payload::Base62 } else { Payload::Hidden(keys) };
        self
    }

    /// Makes the codec append a checksum of two characters, so that a mistyped id is refused
    /// without a lookup.
    pub fn checksum(mut self) -> Self {
        self.checksum = true;
        self
    }

    /// Returns the public id of `id`: its text with this prefix.
    pub fn encode(&self, prefix: Prefix, id: Ulid) -> PublicId {
        self.encode_with_key(prefix, id, 0)
    }

    /// Returns the public id of `id` under the hiding key with this index.
    fn encode_with_key(&self, prefix: Prefix, id: Ulid, key: usize) -> PublicId {
        let mut public = PublicId::empty();
        public.push(prefix.as_bytes());
        public.push(b"_");
        match &self.payload {
            Payload::Base32 => public.push(&base32::encode(id.0)),
            Payload::Base62 => public.push(&base62::encode(id.0)),
            Payload::Hidden(keys) => public.push(&base62::encode(keys[key].hide(id.0))),
        }
        if self.checksum {
            let sum = crc8::of(public.as_bytes());
            public.push(b"_");
            public.push(&sum);
        }
        public
    }

    /// Returns every public id that may have been written for `id`: one, or one for each hiding
    /// key.
    pub(crate) fn spellings(&self, prefix: Prefix, id: Ulid) -> impl Iterator<Item = PublicId> {
        let keys = match &self.payload {
            Payload::Base32 | Payload::Base62 => 1,
            Payload::Hidden(keys) => keys.len(),
        };
        (0..keys).map(move |key| self.encode_with_key(prefix, id, key))
    }

    /// Returns the prefix and the id in `text`, without allocating. With several hiding keys,
    /// `text` is decoded with the first key, which gives a wrong id if another key encoded it: see
    /// [`hiding_time`](Self::hiding_time).
    ///
    /// # Errors
    /// [`InvalidPublicId`] for every text that this codec does not write.
    pub fn decode(&self, text: &str) -> Result<(Prefix, Ulid), InvalidPublicId> {
        let (prefix, payload) = self.parts(text.as_bytes())?;
        let id = match &self.payload {
            Payload::Base32 => base32::decode(payload),
            Payload::Base62 => base62::decode(payload),
            Payload::Hidden(keys) => base62::decode(payload).map(|hidden| keys[0].show(hidden)),
        };
        let prefix = Prefix::from_bytes(prefix).map_err(|_| InvalidPublicId)?;
        Ok((prefix, Ulid(id.ok_or(InvalidPublicId)?)))
    }

    /// Returns every id that `text` may encode, if `text` begins with the prefix `wanted`.
    ///
    /// # Errors
    /// [`InvalidId`] for every text that this codec does not write, and for another prefix.
    pub fn read(&self, wanted: Prefix, text: &str) -> Result<Candidates, InvalidId> {
        Ok(self.candidates(self.validate(wanted, text)?))
    }

    /// Validates that `text` is a public id with the prefix `wanted`.
    ///
    /// # Errors
    /// The same errors as [`read`](Self::read).
    #[inline]
    pub(crate) fn validate<'t>(
        &self,
        wanted: Prefix,
        text: &'t str,
    ) -> Result<Validated<'t>, InvalidId> {
        let (prefix, payload) = self.parts(text.as_bytes())?;
        let validated = match &self.payload {
            Payload::Base32 => base32::validate(payload).map(Validated::Base32),
            Payload::Base62 | Payload::Hidden(_) => base62::decode(payload).map(Validated::Bits),
        };
        let validated = validated.ok_or(InvalidPublicId)?;
        expect(wanted, prefix)?;
        Ok(validated)
    }

    /// Returns every id that a validated text may encode.
    pub(crate) fn candidates(&self, validated: Validated<'_>) -> Candidates {
        let bits = match validated {
            Validated::Base32(digits) => base32::value(digits),
            Validated::Bits(bits) => bits,
        };
        let (first, others) = match &self.payload {
            Payload::Base32 | Payload::Base62 => (bits, Vec::new()),
            Payload::Hidden(keys) => {
                let others = keys[1..].iter().map(|key| Ulid(key.show(bits))).collect();
                (keys[0].show(bits), others)
            }
        };
        Candidates { first: Ulid(first), others }
    }

    const fn payload_len(&self) -> usize {
        match &self.payload {
            Payload::Base32 => base32::LEN,
            Payload::Base62 | Payload::Hidden(_) => base62::LEN,
        }
    }

    /// Parses `text` as a public id with the prefix `wanted`.
    ///
    /// # Errors
    /// The same errors as [`read`](Self::read).
    pub fn parse(&self, wanted: Prefix, text: &str) -> Result<PublicId, InvalidId> {
        self.validate(wanted, text)?;
        Ok(PublicId::checked(text))
    }

    /// Returns the prefix and the payload after verifying the checksum. The payload has a fixed length,
    /// so no separator is searched for.
    fn parts<'t>(&self, text: &'t [u8]) -> Result<(&'t [u8], &'t [u8]), InvalidPublicId> {
        if text.len() > MAX_PUBLIC_ID {
            return Err(InvalidPublicId);
        }
        let text = if self.checksum {
            let (text, sum) = split(text, crc8::LEN)?;
            if crc8::of(text)[..] != *sum {
                return Err(InvalidPublicId);
            }
            text
        } else {
            text
        };
        split(text, self.payload_len())
    }
}

fn expect(wanted: Prefix, prefix: &[u8]) -> Result<(), InvalidId> {
    if prefix == wanted.as_bytes() {
        return Ok(());
    }
    let found = Prefix::from_bytes(prefix).map_err(|_| InvalidPublicId)?;
    Err(InvalidId::Prefix { found, wanted })
}

/// Returns the bytes before the separator, and the `len` bytes after it.
fn split(text: &[u8], len: usize) -> Result<(&[u8], &[u8]), InvalidPublicId> {
    let at = text.len().checked_sub(len + 1).ok_or(InvalidPublicId)?;
    match text[at] {
        b'_' => Ok((&text[..at], &text[at + 1..])),
        _ => Err(InvalidPublicId),
    }
}

/// A payload that its codec has validated, decoded only as far as validation required. Base32
/// digits are not yet converted to bits, since a hit in L1 does not need the bits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Validated<'t> {
    /// The base32 digits of the payload.
    Base32(&'t [u8; base32::LEN]),
    /// The decoded bits of the payload.
    Bits(u128),
}

/// The ids that a text may encode: one, or one for each hiding key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    first: Ulid,
    others: Vec<Ulid>,
}

impl Candidates {
    /// Returns the id that the first key decodes, like [`Codec::decode`].
    pub fn first(&self) -> Ulid {
        self.first
    }

    /// Returns whether `id` is one of the candidates.
    pub fn contains(&self, id: Ulid) -> bool {
        self.first == id || self.others.contains(&id)
    }
}

/// The text of a public id. It is stored inline, without an allocation, and compared byte for byte.
///
/// ```
/// use semel_ids::resource::{Order, Resource};
/// use semel_ids::PublicId;
///
/// let text = "ord_01arz3ndektsv4rrffq69g5fav";
/// let public: PublicId = Order::codec().parse(Order::TYPE.prefix(), text)?;
/// assert_eq!(public.as_str(), text);
/// assert!(Order::codec().parse(Order::TYPE.prefix(), &text.to_uppercase()).is_err());
/// # Ok::<(), semel_ids::InvalidId>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicId {
    text: [u8; MAX_PUBLIC_ID],
    len: u8,
}

impl PublicId {
    const fn empty() -> Self {
        Self { text: [0; MAX_PUBLIC_ID], len: 0 }
    }

    /// Converts a text from a cache or a map to a public id; `None` if no codec can have written
    /// the text.
    pub(crate) fn stored(text: &str) -> Option<Self> {
        let fits = text.len() <= MAX_PUBLIC_ID && text.bytes().all(|byte| byte.is_ascii_graphic());
        let mut public = Self::empty();
        fits.then(|| {
            public.push(text.as_bytes());
            public
        })
    }

    /// Creates a public id from a text that a codec has validated.
    pub(crate) fn checked(text: &str) -> Self {
        let mut public = Self::empty();
        public.push(text.as_bytes());
        public
    }

    fn push(&mut self, part: &[u8]) {
        let at = self.len as usize;
        self.text[at..at + part.len()].copy_from_slice(part);
        self.len += u8::try_from(part.len()).expect("parts of a public id are short");
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text[..self.len as usize]
    }

    /// Returns the text of the public id.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("a public id is ASCII")
    }
}

impl AsRef<str> for PublicId {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl std::ops::Deref for PublicId {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for PublicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for PublicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicId({self})")
    }
}

impl serde::Serialize for PublicId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

/// The error of a text that is not a public id of the codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a public id; copy it again as it was given, with nothing added or changed")]
pub struct InvalidPublicId;

/// The reason why a text is not a public id of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// The text is not a public id.
    #[error(transparent)]
    Format(#[from] InvalidPublicId),
    /// The text is a public id of another type.
    #[error("this is the id of another kind of thing: it begins with `{found}_`, not `{wanted}_`")]
    Prefix {
        /// The prefix of the text.
        found: Prefix,
        /// The expected prefix.
        wanted: Prefix,
    },
}
