//! What answers are remembered under: whose, of what type, and the public id.
//!
//! A name is hashed once, by whoever first makes it, and carries its hash from place to place.

use std::hash::{BuildHasher as _, BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use moka::Equivalent;

use crate::codec::PublicId;
use crate::map::Binding;
use crate::resource::ResourceType;

/// Whose ids, and of what.
#[derive(Debug)]
pub(super) struct Realm {
    pub(super) tenant: Box<str>,
    pub(super) kind: ResourceType,
}

impl Realm {
    /// What the texts of its names begin with: `tenant:TYPE:`.
    pub(super) fn head(&self) -> String {
        [&*self.tenant, ":", self.kind.name(), ":"].concat()
    }
}

/// A name that can be kept.
#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) realm: Arc<Realm>,
    pub(super) public: PublicId,
    pub(super) hash: u64,
}

/// A name that borrows everything: hits allocate nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) tenant: &'a str,
    pub(super) kind: &'a ResourceType,
    pub(super) public: &'a [u8],
    pub(super) hash: u64,
}

impl Name {
    pub(super) fn asked(&self) -> Asked<'_> {
        let Realm { tenant, kind } = &*self.realm;
        Asked { tenant, kind, public: self.public.as_bytes(), hash: self.hash }
    }

    /// `tenant:TYPE:publicId`. A type and a public id hold no colon, so it can be taken apart.
    pub(super) fn to_text(&self) -> String {
        self.realm.head() + &*self.public
    }
}

impl Asked<'_> {
    #[inline]
    pub(super) fn is(&self, realm: &Realm, public: &PublicId, hash: u64) -> bool {
        self.hash == hash
            && self.public == public.as_bytes()
            && *self.tenant == *realm.tenant
            // Their prefixes are what the public id begins with.
            && self.kind.name() == realm.kind.name()
    }
}

/// Makes names.
#[derive(Debug, Default)]
pub(super) struct Names(RandomState);

impl Names {
    #[inline]
    pub(super) fn asked<'a>(
        &self,
        tenant: &'a str,
        kind: &'a ResourceType,
        public: &'a [u8],
    ) -> Asked<'a> {
        let mut hasher = self.0.build_hasher();
        // The type has its own prefix in front of the id.
        hasher.write(public);
        hasher.write(tenant.as_bytes());
        Asked { tenant, kind, public, hash: hasher.finish() }
    }

    pub(super) fn name(&self, tenant: &str, kind: ResourceType, public: PublicId) -> Name {
        let hash = self.asked(tenant, &kind, public.as_bytes()).hash;
        Name { realm: Arc::new(Realm { tenant: tenant.into(), kind }), public, hash }
    }

    pub(super) fn of(&self, binding: &Binding) -> Name {
        self.name(binding.tenant(), binding.kind(), *binding.public())
    }

    /// The name that [`Name::to_text`] wrote.
    pub(super) fn parse(&self, text: &str) -> Option<Name> {
        let (rest, public) = text.rsplit_once(':')?;
        let (tenant, kind) = rest.rsplit_once(':')?;
        let (prefix, _) = public.split_once('_')?;
        let kind = ResourceType::parse(kind, prefix).ok()?;
        Some(self.name(tenant, kind, PublicId::stored(public)?))
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.asked().is(&other.realm, &other.public, other.hash)
    }
}

impl Eq for Name {}

impl Equivalent<Name> for Asked<'_> {
    #[inline]
    fn equivalent(&self, name: &Name) -> bool {
        self.is(&name.realm, &name.public, name.hash)
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Hash for Asked<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// For tables of names.
pub(super) type ByHash = BuildHasherDefault<Carried>;

/// Gives the hash that a name carries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried(u64);

impl Hasher for Carried {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a name writes its hash")
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
