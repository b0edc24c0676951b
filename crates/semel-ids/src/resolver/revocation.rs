//! Revoking ids.
//!
//! A revocation is published before and after the map is changed. The first message makes other nodes
//! cache nothing of the id for as long as a lookup takes, so that no lookup which still saw the live
//! row outlasts a process that dies before the second.

use std::sync::Arc;

use semel_core::store::{self, ErrorKind};

use super::key::CacheKey;
use super::{Inner, Resolver};
use crate::map::{Binding, IdMap};
use crate::resource::Resource;
use crate::typed::TypedId;

/// The result of a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// Whether the id was live until now. An id that only a business table knows has no row to revoke:
    /// this is `false`, and a fallback still finds it.
    pub was_live: bool,
    /// Whether the shared cache took the revocation at once. If not, this node retries for as long as
    /// an entry of the shared cache can live.
    pub propagated: bool,
}

/// Why a revocation failed.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// The tenant is not valid.
    #[error(transparent)]
    Tenant(semel_core::InvalidKey),
    /// The map could not be written: the id may be revoked or live.
    #[error(transparent)]
    Store(store::Error),
}

impl Resolver {
    /// Revokes an id: at once on this node, on the others as soon as they receive the message, and
    /// within ten seconds on nodes that receive nothing.
    ///
    /// If the shared cache is unreachable or refuses writes ([`Revoked::propagated`] is `false`), this
    /// node asks the map instead of the cache and retries: the others know within ten seconds of the
    /// cache's return. If this process ends before that, an entry may stay for
    /// [`l2_ttl`](crate::CacheSettings::l2_ttl), and in a node that reads it there for
    /// [`l1_ttl`](crate::CacheSettings::l1_ttl) more.
    ///
    /// Revokes every text that the type's codec reads as this id, also those of earlier hiding keys. To
    /// revoke a text that leaked, [resolve](Self::resolve) it first: with several keys only the map
    /// knows its id.
    ///
    /// Goes on if the caller is cancelled.
    ///
    /// # Errors
    /// [`RevokeError`]. After [`RevokeError::Store`] the id may be revoked or live: revoke it again.
    pub async fn revoke<R: Resource>(
        &self,
        tenant: &str,
        id: TypedId<R>,
    ) -> Result<Revoked, RevokeError> {
        let (inner, keys) = (Arc::clone(&self.0), self.0.spellings(tenant, id)?);
        let revoking = self.0.runtime.spawn(async move { inner.revoke_all(&keys).await });
        let interrupted = |_| {
            let text = "the revocation was interrupted; revoke it again";
            store::Error::new(ErrorKind::Ambiguous, "revoke", text)
        };
        revoking.await.map_err(interrupted).flatten().map_err(RevokeError::Store)
    }

    /// Revokes an id in the caller's transaction, for example the one that deletes its resource. Call
    /// [`Revocation::committed`] after the commit.
    ///
    /// # Errors
    /// As [`revoke`](Self::revoke); the caller should roll back.
    pub async fn revoke_in<R: Resource, M: IdMap>(
        &self,
        map: &M,
        connection: &mut M::Connection,
        tenant: &str,
        id: TypedId<R>,
    ) -> Result<Revocation, RevokeError> {
        let keys = self.0.spellings(tenant, id)?;
        let (revoked, announced) = (Vec::new(), Vec::new());
        let mut begun = Revocation { resolver: self.clone(), revoked, announced, ended: false };
        for key in keys {
            self.0.announce_revocation(&key).await;
            begun.announced.push(key.clone());
            let was_live = map.revoke_in(connection, tenant, R::TYPE, &key.public).await;
            if was_live.map_err(RevokeError::Store)? {
                begun.revoked.push(key);
            }
        }
        Ok(begun)
    }
}

/// A revocation that was written in a transaction which is still open. Report how the transaction
/// ended.
///
/// Until then other nodes cache nothing of the id, for no longer than a lookup takes. Dropping it
/// without a report publishes what the map says.
#[must_use = "call `committed` after the commit, so that all nodes know of the revocation"]
#[derive(Debug)]
pub struct Revocation {
    resolver: Resolver,
    /// The keys whose rows were live.
    revoked: Vec<CacheKey>,
    /// The keys of which other nodes know that they are about to be revoked.
    announced: Vec<CacheKey>,
    ended: bool,
}

impl Revocation {
    /// Returns whether the id was live until now.
    pub fn was_live(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// Reports that the transaction committed: revokes the id on this node and publishes it to the
    /// others.
    pub fn committed(mut self) {
        self.end();
    }

    /// Reports that the transaction was rolled back. If that is not certain, drop the revocation.
    pub fn rolled_back(mut self) {
        self.ended = true;
        let inner = &self.resolver.0;
        for key in &self.announced {
            inner.l1().registered(key);
            if let Some(invalidator) = &inner.invalidator {
                invalidator.registered(key);
            }
        }
    }

    /// The invalidator reads the map before it publishes, so this is right after a rollback too.
    fn end(&mut self) {
        self.ended = true;
        let inner = &self.resolver.0;
        for key in &self.revoked {
            inner.l1().revoked(key);
            if let Some(invalidator) = &inner.invalidator {
                invalidator.changed(key);
            }
        }
    }
}

impl Drop for Revocation {
    fn drop(&mut self) {
        if !self.ended {
            self.end();
        }
    }
}

impl Inner {
    /// Returns the keys of all texts that stand for an id: one for each hiding key of the codec.
    fn spellings<R: Resource>(
        &self,
        tenant: &str,
        id: TypedId<R>,
    ) -> Result<Vec<CacheKey>, RevokeError> {
        let binding = Binding::of(tenant, id).map_err(RevokeError::Tenant)?;
        let publics = R::codec().spellings(R::TYPE.prefix(), id.ulid());
        let key = |public| self.l1().keys.owned(binding.tenant(), R::TYPE, public);
        Ok(publics.map(key).collect())
    }

    async fn revoke_all(&self, keys: &[CacheKey]) -> store::Result<Revoked> {
        let mut all = Revoked { was_live: false, propagated: true };
        for key in keys {
            let Revoked { was_live, propagated } = self.revoke(key).await?;
            all.was_live |= was_live;
            all.propagated &= propagated;
        }
        Ok(all)
    }

    async fn revoke(&self, key: &CacheKey) -> store::Result<Revoked> {
        let propagated = self.announce_revocation(key).await;
        let was_live = self.loader.map.revoke(key).await?;
        if !was_live && !self.loader.is_revoked(key).await? {
            // There is no row, and there may be one later: nothing more is published.
            return Ok(Revoked { was_live, propagated });
        }
        self.l1().revoked(key);
        let propagated = match &self.invalidator {
            None => true,
            Some(invalidator) => invalidator.revoked(key).await,
        };
        Ok(Revoked { was_live, propagated })
    }

    /// Tells this node and the others that an id is about to be revoked. Returns whether the shared
    /// cache took it.
    async fn announce_revocation(&self, key: &CacheKey) -> bool {
        self.l1().revoked(key);
        match &self.invalidator {
            None => true,
            Some(invalidator) => invalidator.revoking(key).await,
        }
    }
}
