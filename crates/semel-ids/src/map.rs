//! The id map: the table of public ids, their tenants and their internal ids.
//!
//! A backend stores rows and makes no decisions. Only a [`Binding`] can be written, and a binding
//! cannot be created from a public and an internal id that do not belong together. The map does not
//! cache; the [`Resolver`](crate::Resolver) does.

pub mod memory;

use std::future::Future;

use semel_core::key::{InvalidKey, check_tenant};
use semel_core::store::{self, Result};
use ulid::Ulid;

use crate::codec::{Codec, InvalidId, PublicId};
use crate::resource::{Resource, ResourceType};
use crate::typed::TypedId;

/// The public id of a tenant's resource, with its internal id. The public id decodes to the
/// internal id, and begins with the prefix of its type.
///
/// ```
/// use semel_ids::map::memory::MemoryMap;
/// use semel_ids::map::{IdMap, Inserted};
/// use semel_ids::resource::{Order, Resource};
/// use semel_ids::{Binding, Generator, TypedId};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let id = TypedId::<Order>::new(Generator::new().generate()?);
/// let binding = Binding::of("acme", id)?;
/// let map = MemoryMap::new();
/// let mut transaction = map.clone();
/// assert_eq!(map.insert(&mut transaction, &binding).await?, Inserted::New);
/// let found = map.find("acme", Order::TYPE, &[id.public()]).await?;
/// assert_eq!(found[0].internal, id.ulid());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    tenant: Box<str>,
    kind: ResourceType,
    public: PublicId,
    internal: Ulid,
}

impl Binding {
    /// Creates the binding of an `R`, with the public id that the codec of `R` writes.
    ///
    /// # Errors
    /// [`InvalidKey`] if the tenant is not valid.
    pub fn of<R: Resource>(tenant: &str, id: TypedId<R>) -> std::result::Result<Self, InvalidKey> {
        check_tenant(tenant)?;
        let (kind, public, internal) = (R::TYPE, id.public(), id.ulid());
        Ok(Self { tenant: tenant.into(), kind, public, internal })
    }

    /// Creates a binding from an existing public id, for example from a row of a business table.
    ///
    /// # Errors
    /// [`InvalidBinding`] if the parts do not belong together.
    pub fn checked(
        tenant: &str,
        kind: ResourceType,
        codec: &Codec,
        public: &str,
        internal: Ulid,
    ) -> std::result::Result<Self, InvalidBinding> {
        check_tenant(tenant)?;
        if !codec.read(kind.prefix(), public)?.contains(internal) {
            return Err(InvalidBinding::Internal);
        }
        let public = PublicId::checked(public);
        Ok(Self { tenant: tenant.into(), kind, public, internal })
    }

    /// Returns the tenant of the resource.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Returns the type of the resource.
    pub fn kind(&self) -> ResourceType {
        self.kind
    }

    /// Returns the public id of the resource.
    pub fn public(&self) -> &PublicId {
        &self.public
    }

    /// Returns the internal id of the resource.
    pub fn internal(&self) -> Ulid {
        self.internal
    }
}

/// The reason why a tenant, a public id and an internal id are not a valid binding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBinding {
    /// The tenant is not valid.
    #[error(transparent)]
    Tenant(#[from] InvalidKey),
    /// The text is not a public id of the type.
    #[error(transparent)]
    Public(#[from] InvalidId),
    /// The public id encodes another internal id.
    #[error("the public id stands for another internal id than the one given")]
    Internal,
}

/// The result of writing a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Inserted {
    /// The binding was written.
    New,
    /// The same binding exists and is live.
    Already,
    /// The binding exists and is revoked; it was not changed.
    Revoked,
    /// The public or the internal id is bound to another id; the binding was not written.
    Conflict,
}

/// A row of the map. Its texts are not validated, since another program may have written them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapRow {
    /// The tenant.
    pub tenant: String,
    /// The public id.
    pub public: String,
    /// The internal id.
    pub internal: Ulid,
    /// Whether the id is live. The row of a revoked id stays, so that the id is never registered
    /// again.
    pub live: bool,
}

/// The key of a row within its type, and the position at which a listing continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapKey {
    /// The tenant.
    pub tenant: String,
    /// The public id.
    pub public: String,
}

/// Stores bindings. Within a tenant and type, public ids and internal ids are unique, compared byte
/// for byte.
pub trait IdMap: Send + Sync + 'static {
    /// The connection of the caller's open transaction, in which [`insert`](Self::insert) and
    /// [`revoke_in`](Self::revoke_in) write.
    type Connection: Send;

    /// Writes a binding in the caller's transaction.
    fn insert(
        &self,
        connection: &mut Self::Connection,
        binding: &Binding,
    ) -> impl Future<Output = Result<Inserted>> + Send;

    /// Writes bindings in a separate transaction, for migrations. Returns one result per binding,
    /// in order.
    fn insert_many(
        &self,
        bindings: &[Binding],
    ) -> impl Future<Output = Result<Vec<Inserted>>> + Send;

    /// Returns the rows of these public ids, including revoked ones, in any order, at most one per
    /// id. Uses one statement.
    fn find(
        &self,
        tenant: &str,
        kind: ResourceType,
        publics: &[PublicId],
    ) -> impl Future<Output = Result<Vec<MapRow>>> + Send;

    /// Marks a live row as revoked. Returns whether there was a live row.
    fn revoke(
        &self,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Marks a live row as revoked in the caller's transaction. Call
    /// [`Resolver::revoke_in`](crate::Resolver::revoke_in) instead, which invalidates the caches too.
    fn revoke_in(
        &self,
        connection: &mut Self::Connection,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Makes these bindings live in one transaction, and replaces rows that conflict with them by
    /// public or internal id. Meant for repairs, in which the business table is the source of
    /// truth.
    fn overwrite(&self, bindings: &[Binding]) -> impl Future<Output = Result<()>> + Send;

    /// Revokes rows by their stored texts, and returns the number of rows that were live. Meant for
    /// repairs.
    fn revoke_rows(
        &self,
        kind: ResourceType,
        rows: &[MapKey],
    ) -> impl Future<Output = Result<u32>> + Send;

    /// Returns at most `limit` rows of a type after the row `after`, ordered by the bytes of tenant
    /// and public id.
    fn list(
        &self,
        kind: ResourceType,
        tenant: Option<&str>,
        after: Option<&MapKey>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<MapRow>>> + Send;
}

/// Writes a binding in the caller's transaction, and fails unless the binding is live afterwards.
///
/// # Errors
/// [`RegisterError`]; the caller should roll its transaction back.
pub async fn register<M: IdMap>(
    map: &M,
    connection: &mut M::Connection,
    binding: &Binding,
) -> std::result::Result<Registered, RegisterError> {
    match map.insert(connection, binding).await? {
        Inserted::New => Ok(Registered::New),
        Inserted::Already => Ok(Registered::Already),
        Inserted::Revoked => Err(RegisterError::Revoked { public: *binding.public() }),
        Inserted::Conflict => Err(RegisterError::Conflict { public: *binding.public() }),
    }
}

/// The result of registering a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The binding was written by this call.
    New,
    /// The binding was in the map before.
    Already,
}

/// The reason why a binding could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The id was revoked, and revoked ids are not registered again.
    #[error("{public} was revoked and cannot be registered again; make a new id")]
    Revoked {
        /// The public id.
        public: PublicId,
    },
    /// The public or the internal id is bound to another id.
    #[error(
        "{public} cannot be registered: it, or its internal id, is bound to something else; \
         `map verify` shows what"
    )]
    Conflict {
        /// The public id.
        public: PublicId,
    },
    /// The store of the map failed.
    #[error(transparent)]
    Store(#[from] store::Error),
}
