//! Resource types and their prefixes.

use std::fmt;

use crate::codec::Codec;
use crate::prefix::{InvalidPrefix, Prefix};

/// The longest name of a resource type, in bytes.
pub const MAX_TYPE: usize = 32;

/// A type of resource that has public ids.
pub trait Resource: Send + Sync + 'static {
    /// The name of the type in the map, such as `ORDER`, and its prefix. The compiler does not
    /// detect two types with the same prefix, which would accept each other's ids: add all types of
    /// a service to a [`Registry`] at start, which refuses that.
    const TYPE: ResourceType;

    /// Returns the codec of the type's public ids. Default [`Codec::new`].
    fn codec() -> &'static Codec {
        static PLAIN: Codec = Codec::new();
        &PLAIN
    }
}

/// The name and the prefix of a resource type.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResourceType {
    name: [u8; MAX_TYPE],
    len: u8,
    prefix: Prefix,
}

impl ResourceType {
    /// Creates a resource type. `name` is a capital letter, then at most 31 capital letters, digits
    /// and underscores. In a constant, an invalid name or prefix is a compile error.
    ///
    /// # Panics
    /// Panics if the name or the prefix is not valid; use [`parse`](Self::parse) for texts that
    /// come from outside the program.
    pub const fn new(name: &str, prefix: &str) -> Self {
        match Self::parse(name, prefix) {
            Ok(kind) => kind,
            Err(InvalidResource::Name) => panic!("a resource type is named like WALLET_ACCOUNT"),
            Err(InvalidResource::Prefix(_)) => {
                panic!("a prefix is a lower-case letter and 1 to 9 lower-case letters or digits")
            }
        }
    }

    /// Creates a resource type from texts, such as settings.
    ///
    /// # Errors
    /// [`InvalidResource`] if the name or the prefix is not valid.
    pub const fn parse(name: &str, prefix: &str) -> Result<Self, InvalidResource> {
        let bytes = name.as_bytes();
        if !is_name(bytes) {
            return Err(InvalidResource::Name);
        }
        let prefix = match Prefix::new(prefix) {
            Ok(prefix) => prefix,
            Err(invalid) => return Err(InvalidResource::Prefix(invalid)),
        };
        let mut stored = [0; MAX_TYPE];
        let mut at = 0;
        while at < bytes.len() {
            stored[at] = bytes[at];
            at += 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_TYPE")]
        let len = bytes.len() as u8;
        Ok(Self { name: stored, len, prefix })
    }

    /// Returns the name of the type, such as `ORDER`.
    pub const fn name(&self) -> &str {
        match std::str::from_utf8(self.name_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a type's name is ASCII"),
        }
    }

    pub(crate) const fn name_bytes(&self) -> &[u8] {
        self.name.split_at(self.len as usize).0
    }

    /// Returns the prefix of the type's public ids, such as `ord`.
    pub const fn prefix(&self) -> Prefix {
        self.prefix
    }
}

impl fmt::Debug for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.prefix)
    }
}

/// The reason why a name and a prefix are not a valid resource type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidResource {
    /// The name is not valid.
    #[error("a resource type is a capital and at most 31 capitals, digits and underscores")]
    Name,
    /// The prefix is not valid.
    #[error(transparent)]
    Prefix(#[from] InvalidPrefix),
}

const fn is_name(name: &[u8]) -> bool {
    if name.is_empty() || name.len() > MAX_TYPE || !name[0].is_ascii_uppercase() {
        return false;
    }
    let mut at = 1;
    while at < name.len() {
        if !name[at].is_ascii_uppercase() && !name[at].is_ascii_digit() && name[at] != b'_' {
            return false;
        }
        at += 1;
    }
    true
}

macro_rules! shipped {
    ($($name:ident $type:literal $prefix:literal $what:literal)*) => {
        $(
            #[doc = concat!($what, ": `", $prefix, "_…`.")]
            #[derive(Clone, Copy, Debug)]
            pub enum $name {}

            impl Resource for $name {
                const TYPE: ResourceType = ResourceType::new($type, $prefix);
            }
        )*

        /// The resource types that this crate defines.
        pub const SHIPPED: &[ResourceType] = &[$($name::TYPE),*];
    };
}

shipped! {
    Tenant  "TENANT"  "tnt" "A tenant"
    Store   "STORE"   "sto" "A store"
    Order   "ORDER"   "ord" "An order"
    User    "USER"    "usr" "A user"
    Product "PRODUCT" "prd" "A product"
    Sku     "SKU"     "sku" "A stock-keeping unit"
    Payment "PAYMENT" "pay" "A payment"
}

/// The resource types of a service, of which no two have the same name or prefix.
///
/// ```
/// use semel_ids::{Registry, ResourceType};
///
/// let mut types = Registry::shipped();
/// types.add(ResourceType::new("INVOICE", "inv"))?;
/// assert!(types.add(ResourceType::new("INVITATION", "inv")).is_err());
/// # Ok::<(), semel_ids::resource::Taken>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Registry {
    types: Vec<ResourceType>,
}

impl Registry {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a registry with the types in [`SHIPPED`].
    pub fn shipped() -> Self {
        let mut registry = Self::new();
        for kind in SHIPPED {
            registry.add(*kind).expect("shipped types differ");
        }
        registry
    }

    /// Adds a type. Adding the same type again has no effect.
    ///
    /// # Errors
    /// [`Taken`] if another type has the same name or prefix.
    pub fn add(&mut self, kind: ResourceType) -> Result<(), Taken> {
        let rival = |held: &&ResourceType| held.name() == kind.name() || held.prefix == kind.prefix;
        match self.types.iter().find(rival) {
            Some(held) if *held == kind => Ok(()),
            Some(held) => Err(Taken { wanted: kind, holder: *held }),
            None => {
                self.types.push(kind);
                Ok(())
            }
        }
    }

    /// Returns the type with this name.
    pub fn named(&self, name: &str) -> Option<ResourceType> {
        self.types.iter().find(|kind| kind.name() == name).copied()
    }

    /// Returns the type with this prefix.
    pub fn prefixed(&self, prefix: Prefix) -> Option<ResourceType> {
        self.types.iter().find(|kind| kind.prefix == prefix).copied()
    }

    /// Returns all types in the order of their registration.
    pub fn types(&self) -> &[ResourceType] {
        &self.types
    }
}

/// The error of adding a type whose name or prefix another type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted:?} cannot be added: {holder:?} is there; choose another name and prefix")]
pub struct Taken {
    /// The type that could not be added.
    pub wanted: ResourceType,
    /// The registered type that has the name or prefix.
    pub holder: ResourceType,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_types_cannot_share_a_name_or_a_prefix() {
        let mut registry = Registry::shipped();
        assert_eq!(registry.add(ResourceType::new("ORDER", "ord")), Ok(()));
        let taken = registry.add(ResourceType::new("ORDINANCE", "ord"));
        assert!(taken.is_err_and(|taken| taken.to_string().contains("ORDER (ord)")));
        assert!(registry.add(ResourceType::new("ORDER", "odr")).is_err());
        assert_eq!(registry.add(ResourceType::new("WALLET_ACCOUNT", "wac")), Ok(()));
        assert_eq!(
            registry.named("WALLET_ACCOUNT").map(|kind| kind.prefix().to_string()),
            Some("wac".to_owned())
        );
    }
}
