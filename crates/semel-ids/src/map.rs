//! The id map: which public ids there are, whose, and what they stand for.
//!
//! A backend keeps rows and decides nothing. Whatever enters it is a [`Binding`], which cannot be
//! made from an id and a text that do not belong together. Caching is not here: see
//! [`Resolver`](crate::Resolver).

pub mod memory;

use std::future::Future;

use semel_core::key::{InvalidKey, check_tenant};
use semel_core::store::{self, Result};
use ulid::Ulid;

use crate::codec::{Codec, PublicId};
use crate::resource::{Resource, ResourceType};
use crate::typed::{InvalidId, TypedId};

/// A public id of a tenant and what it stands for. The two belong together: the text decodes to
/// the id, and begins with its type's prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    tenant: Box<str>,
    kind: ResourceType,
    public: PublicId,
    internal: Ulid,
}

impl Binding {
    /// The `R` of this id, as its codec writes it.
    ///
    /// # Errors
    /// [`InvalidKey`] if the tenant cannot be one.
    pub fn of<R: Resource>(tenant: &str, id: TypedId<R>) -> std::result::Result<Self, InvalidKey> {
        check_tenant(tenant)?;
        let (kind, public, internal) = (R::TYPE, id.public(), id.ulid());
        Ok(Self { tenant: tenant.into(), kind, public, internal })
    }

    /// A public id that is there already, such as that of a business table's row.
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

    /// Whose it is.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// What it is of.
    pub fn kind(&self) -> ResourceType {
        self.kind
    }

    /// The public id.
    pub fn public(&self) -> &PublicId {
        &self.public
    }

    /// What it stands for.
    pub fn internal(&self) -> Ulid {
        self.internal
    }
}

/// Parts that do not make a binding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBinding {
    /// The tenant.
    #[error(transparent)]
    Tenant(#[from] InvalidKey),
    /// The text is no public id of its type.
    #[error(transparent)]
    Public(#[from] InvalidId),
    /// The text stands for another id.
    #[error("the public id stands for another internal id than the one given")]
    Internal,
}

/// What came of writing a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Inserted {
    /// It is there now.
    New,
    /// The same one was there, live.
    Already,
    /// It was there and was revoked; nothing was written.
    Revoked,
    /// The public or the internal id is bound to something else; nothing was written.
    Conflict,
}

/// A row of the map. Texts are as they are stored: a row that somebody else wrote may hold anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapRow {
    /// Whose.
    pub tenant: String,
    /// The public id.
    pub public: String,
    /// What it stands for.
    pub internal: Ulid,
    /// Whether it counts. A revoked row stays, so that its id is never given out again.
    pub live: bool,
}

/// Where a listing of rows goes on: after this tenant's public id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapKey {
    /// The tenant.
    pub tenant: String,
    /// The public id.
    pub public: String,
}

/// Keeps bindings: unique both ways inside a tenant and type, compared byte for byte.
pub trait IdMap: Send + Sync + 'static {
    /// What [`insert`](Self::insert) and [`revoke_in`](Self::revoke_in) write on: an open transaction of
    /// the caller's.
    type Connection: Send;

    /// Writes a binding in the caller's transaction.
    fn insert(
        &self,
        connection: &mut Self::Connection,
        binding: &Binding,
    ) -> impl Future<Output = Result<Inserted>> + Send;

    /// Writes bindings in a transaction of its own, for whoever moves many: one answer each, in
    /// order.
    fn insert_many(
        &self,
        bindings: &[Binding],
    ) -> impl Future<Output = Result<Vec<Inserted>>> + Send;

    /// The rows of these public ids, revoked ones too, in no order. At most one for each; what is
    /// not there is left out. One statement.
    fn find(
        &self,
        tenant: &str,
        kind: ResourceType,
        publics: &[PublicId],
    ) -> impl Future<Output = Result<Vec<MapRow>>> + Send;

    /// Makes a live row count no more; gives whether there was one. It stays.
    fn revoke(
        &self,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// The same in the caller's transaction: a thing goes with its mapping, or neither does. Tell the
    /// resolver: [`Resolver::revoke_in`](crate::Resolver::revoke_in).
    fn revoke_in(
        &self,
        connection: &mut Self::Connection,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Makes these bindings live, in place of whatever rows stand against them by public or internal
    /// id. One transaction. Only for repairs, where the business table is the truth.
    fn overwrite(&self, bindings: &[Binding]) -> impl Future<Output = Result<()>> + Send;

    /// Revokes rows by their texts, as they are stored; gives how many were live. For repairs.
    fn revoke_rows(
        &self,
        kind: ResourceType,
        rows: &[MapKey],
    ) -> impl Future<Output = Result<u32>> + Send;

    /// At most `limit` rows of a type, by tenant and public id (byte order), after `after`.
    fn list(
        &self,
        kind: ResourceType,
        tenant: Option<&str>,
        after: Option<&MapKey>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<MapRow>>> + Send;
}

/// Writes a binding, loudly: whoever makes a resource must not go on without its mapping.
///
/// # Errors
/// [`RegisterError`]; the caller's transaction should be rolled back.
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

/// A binding is in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// Since now.
    New,
    /// Since before.
    Already,
}

/// A binding is not in the map.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// It was revoked, and revoked ids are not given out again.
    #[error("{public} was revoked and cannot be registered again; make a new id")]
    Revoked {
        /// The public id.
        public: PublicId,
    },
    /// One of its two ids is bound to another.
    #[error(
        "{public} cannot be registered: it, or its internal id, is bound to something else; \
         `map verify` shows what"
    )]
    Conflict {
        /// The public id.
        public: PublicId,
    },
    /// The map could not be written.
    #[error(transparent)]
    Store(#[from] store::Error),
}
