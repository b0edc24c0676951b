//! Revokes ids.
//!
//! A revocation is published before and after the map is changed. After the first message, other
//! nodes cache no answer for the id during the time of one lookup. So a lookup that saw the live
//! row leaves no cached answer, even if this process dies before the second message.

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
    /// Whether the id was live until now. An id that is only in a business table has no row to
    /// revoke: this is `false`, and a fallback still finds the id.
    pub was_live: bool,
    /// Whether the shared cache accepted the revocation at once. If not, this node retries for as
    /// long as an entry of the shared cache can live.
    pub propagated: bool,
}

/// The reason why a revocation failed.
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
    /// Revokes an id: at once on this node, on the other nodes as soon as they receive the message,
    /// and within ten seconds on nodes that receive no messages.
    ///
    /// If the shared cache is unreachable or refuses writes ([`Revoked::propagated`] is `false`),
    /// this node reads the map instead of the cache and retries: the other nodes see the revocation
    /// within ten seconds after the cache's return. If this process ends before that, the entry in
    /// the shared cache may stay for [`l2_ttl`](crate::CacheSettings::l2_ttl), and a node that
    /// reads it may cache it for [`l1_ttl`](crate::CacheSettings::l1_ttl) more.
    ///
    /// All texts that the type's codec decodes to this id are revoked, including those of earlier
    /// hiding keys. To revoke a text that leaked, [resolve](Self::resolve) it first: with several
    /// keys, only the map has its internal id.
    ///
    /// The revocation continues even if the caller drops the future.
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
            let text = "the revocation was interrupted; revoke the id again";
            store::Error::new(ErrorKind::Ambiguous, "revoke", text)
        };
        revoking.await.map_err(interrupted).flatten().map_err(RevokeError::Store)
    }

    /// Revokes an id in the caller's transaction, for example the one that deletes its resource. Call
    /// [`Revocation::committed`] after the commit.
    ///
    /// # Errors
    /// The same errors as [`revoke`](Self::revoke); the caller should roll its transaction back.
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

/// A revocation that was written in a transaction which is still open. The caller must report how
/// the transaction ended.
///
/// Until then, but at most for the time of one lookup, other nodes cache no answer for the id. If
/// the revocation is dropped without a report, the state that the map has is published.
#[must_use = "call `committed` after the commit, so that all nodes know of the revocation"]
#[derive(Debug)]
pub struct Revocation {
    resolver: Resolver,
    /// The keys whose rows were live.
    revoked: Vec<CacheKey>,
    /// The keys that were announced to other nodes as about to be revoked.
    announced: Vec<CacheKey>,
    ended: bool,
}

impl Revocation {
    /// Returns whether the id was live until now.
    pub fn was_live(&self) -> bool {
        !self.revoked.is_empty()
    }

    /// Reports that the transaction was committed: revokes the id on this node and publishes the
    /// revocation to the others.
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

    /// Invalidates the revoked keys. The invalidator reads the map before it publishes, so this is
    /// correct after a rollback too.
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
    /// Returns the keys of all texts that encode an id: one for each hiding key of the codec.
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
            // The id has no row and may be registered later, so no revocation is published.
            return Ok(Revoked { was_live, propagated });
        }
        self.l1().revoked(key);
        let propagated = match &self.invalidator {
            None => true,
            Some(invalidator) => invalidator.revoked(key).await,
        };
        Ok(Revoked { was_live, propagated })
    }

    /// Announces to this node and the others that an id is about to be revoked. Returns whether the
    /// shared cache accepted the message.
    async fn announce_revocation(&self, key: &CacheKey) -> bool {
        self.l1().revoked(key);
        match &self.invalidator {
            None => true,
            Some(invalidator) => invalidator.revoking(key).await,
        }
    }
}
