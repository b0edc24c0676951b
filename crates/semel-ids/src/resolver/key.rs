//! Cache keys: tenant, resource type and public id.
//!
//! A key is hashed once per call and contains its hash, so that shards, caches and loads need not
//! hash it again.

use std::hash::{BuildHasher as _, BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use moka::Equivalent;

use crate::codec::PublicId;
use crate::map::Binding;
use crate::resource::ResourceType;

/// The tenant and the resource type, which are the same for all keys of a batch.
#[derive(Debug)]
pub(super) struct KeyGroup {
    pub(super) tenant: Box<str>,
    pub(super) kind: ResourceType,
}

impl KeyGroup {
    /// Returns the text with which all keys of the group begin: `tenant:TYPE:`.
    pub(super) fn prefix(&self) -> String {
        [&*self.tenant, ":", self.kind.name(), ":"].concat()
    }
}

/// A key that owns its parts.
#[derive(Clone, Debug)]
pub(super) struct CacheKey {
    pub(super) group: Arc<KeyGroup>,
    pub(super) public: PublicId,
    pub(super) hash: u64,
}

/// A key that borrows its parts, so that a hit allocates nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRef<'a> {
    pub(super) tenant: &'a str,
    pub(super) kind: &'a ResourceType,
    pub(super) public: &'a [u8],
    pub(super) hash: u64,
}

impl CacheKey {
    pub(super) fn as_ref(&self) -> KeyRef<'_> {
        let KeyGroup { tenant, kind } = &*self.group;
        KeyRef { tenant, kind, public: self.public.as_bytes(), hash: self.hash }
    }

    /// Returns the key as text: `tenant:TYPE:publicId`. Type and public id contain no colon, so
    /// [`Keys::parse`] can split the text.
    pub(super) fn to_text(&self) -> String {
        self.group.prefix() + &*self.public
    }
}

impl KeyRef<'_> {
    #[inline]
    pub(super) fn is(&self, group: &KeyGroup, public: &PublicId, hash: u64) -> bool {
        self.hash == hash
            && self.public == public.as_bytes()
            && *self.tenant == *group.tenant
            // The prefix of the type is part of the public id.
            && self.kind.name() == group.kind.name()
    }
}

/// Creates keys, all with the same hash seed.
#[derive(Debug, Default)]
pub(super) struct Keys(RandomState);

impl Keys {
    #[inline]
    pub(super) fn borrowed<'a>(
        &self,
        tenant: &'a str,
        kind: &'a ResourceType,
        public: &'a [u8],
    ) -> KeyRef<'a> {
        let mut hasher = self.0.build_hasher();
        // The public id begins with the prefix of its type, which therefore is not hashed.
        hasher.write(public);
        hasher.write(tenant.as_bytes());
        KeyRef { tenant, kind, public, hash: hasher.finish() }
    }

    pub(super) fn owned(&self, tenant: &str, kind: ResourceType, public: PublicId) -> CacheKey {
        let hash = self.borrowed(tenant, &kind, public.as_bytes()).hash;
        CacheKey { group: Arc::new(KeyGroup { tenant: tenant.into(), kind }), public, hash }
    }

    pub(super) fn of(&self, binding: &Binding) -> CacheKey {
        self.owned(binding.tenant(), binding.kind(), *binding.public())
    }

    /// Parses a key from the text that [`CacheKey::to_text`] returns.
    pub(super) fn parse(&self, text: &str) -> Option<CacheKey> {
        let (rest, public) = text.rsplit_once(':')?;
        let (tenant, kind) = rest.rsplit_once(':')?;
        let (prefix, _) = public.split_once('_')?;
        let kind = ResourceType::parse(kind, prefix).ok()?;
        Some(self.owned(tenant, kind, PublicId::stored(public)?))
    }
}

impl PartialEq for CacheKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_ref().is(&other.group, &other.public, other.hash)
    }
}

impl Eq for CacheKey {}

impl Equivalent<CacheKey> for KeyRef<'_> {
    #[inline]
    fn equivalent(&self, key: &CacheKey) -> bool {
        self.is(&key.group, &key.public, key.hash)
    }
}

impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Hash for KeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Builds the hasher of maps whose keys contain their hash.
pub(super) type ByHash = BuildHasherDefault<ContainedHash>;

/// A hasher that returns the hash which the key contains.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ContainedHash(u64);

impl Hasher for ContainedHash {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a key writes its hash")
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
