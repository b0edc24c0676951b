//! Keys, which identify an operation that runs once.
//!
//! Every constructor validates its arguments, so a `Key` is always valid. All five parts belong to
//! the identity. Stores index only the [`Digest`], so that no collation can make two keys equal.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The hasher of maps whose keys are digests. Every map has its own seed, so that keys that were
/// chosen to collide in one map do not collide in another.
pub(crate) use foldhash::fast::RandomState as Mixing;

/// The longest tenant, in bytes.
pub const MAX_TENANT: usize = 64;
/// The longest scope, in bytes.
pub const MAX_SCOPE: usize = 128;
/// The longest id, in bytes. Other implementations accept header values of this length too.
pub const MAX_ID: usize = 255;

/// The entry point by which a request came in. The same id under two kinds makes two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The key of a function call.
    Command,
    /// The key of an HTTP request.
    Http,
    /// The key of a gRPC call.
    Grpc,
    /// The key of a message that is deduplicated without keeping a result.
    Message,
    /// The key of an event that a consumer group handles.
    Event,
}

impl Kind {
    /// Returns the code that stores persist for this kind.
    pub const fn code(self) -> u8 {
        match self {
            Kind::Command => 1,
            Kind::Http => 2,
            Kind::Grpc => 3,
            Kind::Message => 4,
            Kind::Event => 5,
        }
    }

    /// Returns the kind with this stored code; `None` if there is none.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Kind::Command,
            2 => Kind::Http,
            3 => Kind::Grpc,
            4 => Kind::Message,
            5 => Kind::Event,
            _ => return None,
        })
    }

    /// Returns the name used in logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Command => "command",
            Kind::Http => "http",
            Kind::Grpc => "grpc",
            Kind::Message => "message",
            Kind::Event => "event",
        }
    }
}

/// The caller that sends a request, as a digest. Two callers that send the same id have two
/// records.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Principal(Option<[u8; 32]>);

impl Principal {
    /// Returns the principal of keys that all callers of a tenant share.
    pub const fn global() -> Self {
        Self(None)
    }

    /// Returns the principal of a caller with this identity: a user id, a client id or a token
    /// subject.
    pub fn of(identity: impl AsRef<[u8]>) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"semel/principal/1\0");
        hash.update(identity.as_ref());
        Self(Some(hash.finalize().into()))
    }

    /// Returns the stored form: empty for [`Principal::global`], 32 bytes otherwise.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |digest| digest)
    }

    /// Creates a principal from its stored form; `None` if there are neither 0 nor 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes.len() {
            0 => Some(Self(None)),
            _ => Some(Self(Some(bytes.try_into().ok()?))),
        }
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("Principal(global)"),
            Some(digest) => write!(f, "Principal({})", hex(&digest[..4])),
        }
    }
}

/// The identity of a [`Key`] as 32 bytes. Stores index it, and logs show only a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Creates a digest from its stored form; `None` if there are not 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }

    /// Returns the first eight bytes, by which waiters are woken. A waiter that is woken for
    /// another key with the same hint reads the store once.
    pub fn hint(&self) -> Hint {
        let mut hint = [0; 8];
        hint.copy_from_slice(&self.0[..8]);
        Hint(hint)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Writes eight hex digits: enough to follow a key through logs, too few to guess the key.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0[..4]))
    }
}

/// The first bytes of a key's digest, sent between processes to wake waiters. Two keys may have the
/// same hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hint(pub [u8; 8]);

#[derive(PartialEq, Eq)]
struct Parts {
    kind: Kind,
    principal: Principal,
    /// Tenant, scope and id, concatenated.
    text: Box<str>,
    /// The byte offsets of the scope and the id in `text`.
    starts: (u16, u16),
    digest: Digest,
}

/// The identity of an operation: kind, tenant, scope, principal and id. Cheap to clone.
///
/// ```
/// use semel_core::{Key, Principal};
///
/// let key = Key::command("acme", "ORDER_CREATE", "7f9c…client-key")?;
/// let hers = key.clone().with_principal(Principal::of("user-1"));
/// let his = key.clone().with_principal(Principal::of("user-2"));
/// assert_ne!(hers.digest(), his.digest());
/// assert!(Key::command("acme", "ORDER_CREATE", " ").is_err());
/// # Ok::<(), semel_core::InvalidKey>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Arc<Parts>);

impl Key {
    /// Creates a key from its parts.
    ///
    /// # Errors
    /// [`InvalidKey`] if a part is blank, too long or contains a control character.
    pub fn new(
        kind: Kind,
        tenant: &str,
        scope: &str,
        principal: Principal,
        id: &str,
    ) -> Result<Self, InvalidKey> {
        check(Part::Tenant, tenant, MAX_TENANT)?;
        check(Part::Scope, scope, MAX_SCOPE)?;
        check(Part::Id, id, MAX_ID)?;
        Ok(Self::assemble(kind, tenant, scope, principal, id))
    }

    /// Creates the key of a function call: `scope` is the operation, `id` the caller's idempotency
    /// key. The principal is [global](Principal::global).
    ///
    /// # Errors
    /// The same errors as [`Key::new`].
    pub fn command(tenant: &str, scope: &str, id: &str) -> Result<Self, InvalidKey> {
        Self::new(Kind::Command, tenant, scope, Principal::global(), id)
    }

    /// Creates the key of a message that is to be deduplicated: `scope` is the consumer, `id` the
    /// message's id.
    ///
    /// ```
    /// use semel_core::{Key, Kind};
    ///
    /// let key = Key::message("acme", "MAILER", "msg-1")?;
    /// assert_eq!((key.kind(), key.scope(), key.id()), (Kind::Message, "MAILER", "msg-1"));
    /// # Ok::<(), semel_core::InvalidKey>(())
    /// ```
    ///
    /// # Errors
    /// The same errors as [`Key::new`].
    pub fn message(tenant: &str, scope: &str, id: &str) -> Result<Self, InvalidKey> {
        Self::new(Kind::Message, tenant, scope, Principal::global(), id)
    }

    /// Replaces the principal of the key.
    #[must_use]
    pub fn with_principal(self, principal: Principal) -> Self {
        Self::assemble(self.kind(), self.tenant(), self.scope(), principal, self.id())
    }

    fn assemble(kind: Kind, tenant: &str, scope: &str, principal: Principal, id: &str) -> Self {
        // Every part is preceded by its length, so that different parts never give the same bytes.
        let mut hash = Sha256::new();
        hash.update(b"semel/key/1\0");
        hash.update([kind.code()]);
        for part in [tenant.as_bytes(), scope.as_bytes(), principal.as_bytes(), id.as_bytes()] {
            hash.update(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            hash.update(part);
        }
        let digest = Digest(hash.finalize().into());
        let text = [tenant, scope, id].concat().into_boxed_str();
        let end = |len: usize| u16::try_from(len).expect("the parts of a key have limits");
        let starts = (end(tenant.len()), end(tenant.len() + scope.len()));
        Self(Arc::new(Parts { kind, principal, text, starts, digest }))
    }

    /// Returns the kind of the key.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Returns the tenant of the key.
    pub fn tenant(&self) -> &str {
        &self.0.text[..usize::from(self.0.starts.0)]
    }

    /// Returns the scope: the operation or the consumer group.
    pub fn scope(&self) -> &str {
        &self.0.text[usize::from(self.0.starts.0)..usize::from(self.0.starts.1)]
    }

    /// Returns the principal, which [`Key::with_principal`] sets.
    pub fn principal(&self) -> &Principal {
        &self.0.principal
    }

    /// Returns the caller's idempotency key, or the id of the message or event.
    pub fn id(&self) -> &str {
        &self.0.text[usize::from(self.0.starts.1)..]
    }

    /// Returns the digest of all parts, which stores index.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }
}

/// Writes kind, scope and digest, but neither the tenant nor the id.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} {} {})", self.kind().name(), self.scope(), self.digest())
    }
}

/// The part of a key that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The tenant part.
    Tenant,
    /// The scope part.
    Scope,
    /// The id part.
    Id,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Tenant => "tenant",
            Part::Scope => "scope",
            Part::Id => "id",
        })
    }
}

/// The reason why a key could not be created. No request was sent to a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The part is empty or consists of white space.
    #[error("the {0} of a key is blank; give it a value that is unique to the request")]
    Blank(Part),
    /// The part is longer than its limit.
    #[error("the {part} of a key has {len} bytes, at most {max} are allowed; send a digest of it")]
    TooLong {
        /// The part that is too long.
        part: Part,
        /// The length of the part, in bytes.
        len: usize,
        /// The longest length that is allowed, in bytes.
        max: usize,
    },
    /// The part contains a control character.
    #[error("the {part} of a key has a control character at byte {at}; remove or encode it")]
    Control {
        /// The part that contains the control character.
        part: Part,
        /// The byte offset of the control character in the part.
        at: usize,
    },
}

/// Validates a tenant: not blank, at most [`MAX_TENANT`] bytes, no control characters.
///
/// # Errors
/// [`InvalidKey`] if the tenant is not valid.
pub fn check_tenant(tenant: &str) -> Result<(), InvalidKey> {
    check(Part::Tenant, tenant, MAX_TENANT)
}

fn check(part: Part, text: &str, max: usize) -> Result<(), InvalidKey> {
    if text.trim().is_empty() {
        return Err(InvalidKey::Blank(part));
    }
    if text.len() > max {
        return Err(InvalidKey::TooLong { part, len: text.len(), max });
    }
    // Nearly all texts are visible ASCII, which this loop checks many bytes at a time.
    if text.as_bytes().iter().fold(0, |any, byte| any | u8::from(!matches!(byte, b' '..=b'~'))) == 0
    {
        return Ok(());
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(InvalidKey::Control { part, at }),
        None => Ok(()),
    }
}

/// Returns `bytes` as lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str, scope: &str, id: &str) -> Key {
        Key::command(tenant, scope, id).expect("valid")
    }

    #[test]
    fn every_part_changes_the_digest_and_no_split_collides() {
        let base = key("t", "s", "i");
        let others = [
            key("T", "s", "i"),
            key("t", "s", "i "),
            key("ts", "i", "i"),
            key("t", "si", "i"),
            base.clone().with_principal(Principal::of("")),
            Key::message("t", "s", "i").expect("valid"),
        ];
        for other in &others {
            assert_ne!(base.digest(), other.digest(), "{other:?}");
        }
        assert_eq!(base.digest(), key("t", "s", "i").digest());
    }

    #[test]
    fn the_error_of_an_invalid_part_contains_the_part_and_its_limit() {
        assert_eq!(Key::command("", "s", "i"), Err(InvalidKey::Blank(Part::Tenant)));
        assert_eq!(Key::command("t", "\u{3000} ", "i"), Err(InvalidKey::Blank(Part::Scope)));
        let long = "x".repeat(MAX_ID + 1);
        assert_eq!(
            Key::command("t", "s", &long),
            Err(InvalidKey::TooLong { part: Part::Id, len: 256, max: 255 })
        );
        assert!(Key::command("t", "s", &long[1..]).is_ok());
        let control = Key::command("t", "s", "a\0b");
        assert_eq!(control, Err(InvalidKey::Control { part: Part::Id, at: 1 }));
        assert!(Key::command(&"t".repeat(65), "s", "i").is_err());
        assert!(Key::command("t", &"s".repeat(129), "i").is_err());
    }

    #[test]
    fn debug_shows_neither_tenant_nor_id() {
        let shown = format!("{:?}", key("acme-secret", "PAY", "key-secret"));
        assert!(!shown.contains("secret"), "{shown}");
    }
}
