//! Keys: the identity under which an operation happens once.
//!
//! Every constructor validates, so a `Key` is always valid. All five parts are identity; stores index
//! only the [`Digest`], which no collation can merge.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Hash state of maps whose keys are digests. Every map has a seed of its own, so that keys chosen to
/// collide in one map do not collide in another.
pub(crate) use foldhash::fast::RandomState as Mixing;

/// Longest tenant, in bytes.
pub const MAX_TENANT: usize = 64;
/// Longest scope, in bytes.
pub const MAX_SCOPE: usize = 128;
/// Longest id, in bytes: what fits a header value that other implementations also accept.
pub const MAX_ID: usize = 255;

/// The entry point that a key belongs to. The same id under two kinds is two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A function call.
    Command,
    /// An HTTP request.
    Http,
    /// A gRPC call.
    Grpc,
    /// A message that is deduplicated without keeping a result.
    Message,
    /// An event handled by a consumer group.
    Event,
}

impl Kind {
    /// Returns the stored code.
    pub const fn code(self) -> u8 {
        match self {
            Kind::Command => 1,
            Kind::Http => 2,
            Kind::Grpc => 3,
            Kind::Message => 4,
            Kind::Event => 5,
        }
    }

    /// Returns the kind with this stored code.
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

/// The caller, as a digest: two callers that send the same id have two records.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Principal(Option<[u8; 32]>);

impl Principal {
    /// Returns the principal of a scope that all callers of the tenant share.
    pub const fn global() -> Self {
        Self(None)
    }

    /// Returns the caller with this identity (a user id, a client id, a token subject).
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

    /// Reads the stored form; `None` if the bytes have neither length.
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

/// The fixed-size identity of a [`Key`]: what stores index, and all that logs may show.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Reads a stored digest; `None` unless it is 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.try_into().ok()?))
    }

    /// Returns the first eight bytes: enough to wake waiters, for whom a false alarm costs one read.
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

/// Eight hex digits: enough to follow a key through logs, too few to guess it from.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0[..4]))
    }
}

/// A short, lossy name of a key, sent between processes to wake waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hint(pub [u8; 8]);

#[derive(PartialEq, Eq)]
struct Parts {
    kind: Kind,
    principal: Principal,
    /// Tenant, scope and id, one after the other.
    text: Box<str>,
    /// Where the scope and the id begin.
    starts: (u16, u16),
    digest: Digest,
}

/// The identity of an operation: kind, tenant, scope, principal and id. Cheap to clone.
///
/// ```
/// use semel_core::{Key, Principal};
///
/// let key = Key::command("acme", "ORDER_CREATE", "7f9c…client-key")?;
/// let hers = key.clone().principal(Principal::of("user-1"));
/// let his = key.clone().principal(Principal::of("user-2"));
/// assert_ne!(hers.digest(), his.digest());
/// assert!(Key::command("acme", "ORDER_CREATE", " ").is_err());
/// # Ok::<(), semel_core::InvalidKey>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Arc<Parts>);

impl Key {
    /// Creates the key with these parts.
    ///
    /// # Errors
    /// [`InvalidKey`] names the part that is blank, too long or holds a control character.
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

    /// Creates the key of a function call: `scope` is the operation, `id` the caller's key. The principal
    /// is [global](Principal::global).
    ///
    /// # Errors
    /// As [`Key::new`].
    pub fn command(tenant: &str, scope: &str, id: &str) -> Result<Self, InvalidKey> {
        Self::new(Kind::Command, tenant, scope, Principal::global(), id)
    }

    /// Creates the key of a message to be deduplicated: `scope` is the consumer, `id` the message's id.
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
    /// As [`Key::new`].
    pub fn message(tenant: &str, scope: &str, id: &str) -> Result<Self, InvalidKey> {
        Self::new(Kind::Message, tenant, scope, Principal::global(), id)
    }

    /// Returns the same key for another caller.
    #[must_use]
    pub fn principal(self, principal: Principal) -> Self {
        Self::assemble(self.kind(), self.tenant(), self.scope(), principal, self.id())
    }

    fn assemble(kind: Kind, tenant: &str, scope: &str, principal: Principal, id: &str) -> Self {
        // Every part is preceded by its length, so no two different splits give the same bytes.
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

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// Returns the tenant.
    pub fn tenant(&self) -> &str {
        &self.0.text[..usize::from(self.0.starts.0)]
    }

    /// Returns the operation or consumer group.
    pub fn scope(&self) -> &str {
        &self.0.text[usize::from(self.0.starts.0)..usize::from(self.0.starts.1)]
    }

    /// Returns the caller; [`Key::principal`] sets it.
    pub fn asked_by(&self) -> &Principal {
        &self.0.principal
    }

    /// Returns the caller's key, or the message's id.
    pub fn id(&self) -> &str {
        &self.0.text[usize::from(self.0.starts.1)..]
    }

    /// Returns the identity that stores index.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }
}

/// Shows the scope and the digest, never the tenant's or the caller's own text.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} {} {})", self.kind().name(), self.scope(), self.digest())
    }
}

/// A part of a key, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The tenant.
    Tenant,
    /// The scope.
    Scope,
    /// The id.
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

/// Why parts do not make a key. Nothing was sent to a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The part is empty or white space only.
    #[error("the {0} of a key is blank; give it a value that is unique to the request")]
    Blank(Part),
    /// The part is longer than its limit.
    #[error("the {part} of a key has {len} bytes, at most {max} are allowed; send a digest of it")]
    TooLong {
        /// The part that is too long.
        part: Part,
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The part holds a control character.
    #[error("the {part} of a key has a control character at byte {at}; remove or encode it")]
    Control {
        /// The part that holds it.
        part: Part,
        /// The byte offset.
        at: usize,
    },
}

/// Validates a tenant: not blank, at most [`MAX_TENANT`] bytes, no control characters.
///
/// # Errors
/// [`InvalidKey`] says what is wrong.
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
    // Nearly all are visible ASCII, which is seen many bytes at a time.
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
    fn every_part_is_identity_and_no_split_collides() {
        let base = key("t", "s", "i");
        let others = [
            key("T", "s", "i"),
            key("t", "s", "i "),
            key("ts", "i", "i"),
            key("t", "si", "i"),
            base.clone().principal(Principal::of("")),
            Key::message("t", "s", "i").expect("valid"),
        ];
        for other in &others {
            assert_ne!(base.digest(), other.digest(), "{other:?}");
        }
        assert_eq!(base.digest(), key("t", "s", "i").digest());
    }

    #[test]
    fn a_bad_part_is_named_with_its_limit() {
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
