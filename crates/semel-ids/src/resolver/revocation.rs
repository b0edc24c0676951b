//! Making ids count no more.
//!
//! A revocation is said before and after: whatever is looked up in between is not remembered, and
//! should the process die in between, nobody is left with an id that counts no more. Before, it is only
//! likely, and said for no longer than a lookup takes.

use std::sync::Arc;

use semel_core::store::{self, ErrorKind};

use super::name::Name;
use super::{Inner, Resolver, Word};
use crate::map::{Binding, IdMap};
use crate::resource::Resource;
use crate::typed::TypedId;

/// What revoking did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revoked {
    /// Whether it counted until now. An id that only a business table knows has no row that could be
    /// revoked: this is `false`, and a fallback goes on finding it.
    pub was_live: bool,
    /// Whether the other nodes were told. If not, and there is a row that counts no more, this node goes
    /// on telling them, for as long as an entry of the shared cache could live; if they never hear of
    /// it, they know when their caches forget.
    pub propagated: bool,
}

/// A revocation that failed.
#[derive(Debug, thiserror::Error)]
pub enum RevokeError {
    /// The tenant cannot be one.
    #[error(transparent)]
    Tenant(semel_core::InvalidKey),
    /// The map did not answer.
    #[error(transparent)]
    Store(store::Error),
}

impl Resolver {
    /// Makes an id count no more: at once on this node; elsewhere as soon as it is told, and within
    /// ten seconds on nodes that do not hear. If the shared cache cannot be reached or refuses writes
    /// ([`Revoked::propagated`]), this node and those that hear of it ask the map instead of believing it, and
    /// this node tells it as soon as it can: within ten seconds of that the others know. Should this process end before, an
    /// entry may stay for [`l2_ttl`](crate::CacheSettings::l2_ttl), and whoever reads it there may keep
    /// it for [`l1_ttl`](crate::CacheSettings::l1_ttl) more.
    ///
    /// Every text that the type's codec reads as this id counts no more, those of earlier hiding keys
    /// too. Of a text that leaked, [resolve](Self::resolve) what it stands for, and revoke that: with
    /// several keys only the map knows.
    ///
    /// It goes on if the caller leaves.
    ///
    /// # Errors
    /// The map did not answer: it may or may not count any more.
    pub async fn revoke<R: Resource>(
        &self,
        tenant: &str,
        id: TypedId<R>,
    ) -> Result<Revoked, RevokeError> {
        let (inner, names) = (Arc::clone(&self.0), self.0.spellings(tenant, id)?);
        let revoking = self.0.runtime.spawn(async move { inner.revoke_all(&names).await });
        let cut_off = |_| {
            let text = "the revocation was cut off; revoke it again";
            store::Error::new(ErrorKind::Ambiguous, "revoke", text)
        };
        revoking.await.map_err(cut_off).flatten().map_err(RevokeError::Store)
    }
}

impl Resolver {
    /// Revokes an id in the caller's transaction, where the thing itself goes away. Call
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
        let names = self.0.spellings(tenant, id)?;
        let mut begun =
            Revocation { resolver: self.clone(), gone: Vec::new(), said: Vec::new(), ended: false };
        for name in names {
            self.0.revoking(&name).await;
            begun.said.push(name.clone());
            let was_live = map.revoke_in(connection, tenant, R::TYPE, &name.public).await;
            if was_live.map_err(RevokeError::Store)? {
                begun.gone.push(name);
            }
        }
        Ok(begun)
    }
}

/// A revocation that was written in a transaction which has not ended. Say how it ended.
///
/// Other nodes are told that it is likely, and believe that for no longer than a lookup takes. If nobody
/// says how it ended, the map is asked once, when this is dropped.
#[must_use = "call `committed` after the commit, so that all nodes know that the id counts no more"]
#[derive(Debug)]
pub struct Revocation {
    resolver: Resolver,
    /// Those that were live.
    gone: Vec<Name>,
    /// Those that others have heard of.
    said: Vec<Name>,
    ended: bool,
}

impl Revocation {
    /// Whether it counted until now.
    pub fn was_live(&self) -> bool {
        !self.gone.is_empty()
    }

    /// The transaction has committed: it counts no more on this node, and the others are told.
    pub fn committed(mut self) {
        self.end();
    }

    /// The transaction was rolled back, for certain: it counts.
    pub fn rolled_back(mut self) {
        self.ended = true;
        let inner = &self.resolver.0;
        for name in &self.said {
            inner.near.appeared(name);
            if let Some(middle) = &inner.middle {
                middle.tell_later(inner.registered(name));
            }
        }
    }

    /// Whoever tells of it looks into the map first: what was rolled back is not said to be gone.
    fn end(&mut self) {
        self.ended = true;
        let inner = &self.resolver.0;
        for name in &self.gone {
            inner.near.revoked(name);
            if let Some(teller) = &inner.teller {
                teller.tell_later(name);
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
    /// Every name that an id can have.
    fn spellings<R: Resource>(
        &self,
        tenant: &str,
        id: TypedId<R>,
    ) -> Result<Vec<Name>, RevokeError> {
        let binding = Binding::of(tenant, id).map_err(RevokeError::Tenant)?;
        let publics = R::codec().spellings(R::TYPE.prefix(), id.ulid());
        let name = |public| self.near.names.name(binding.tenant(), R::TYPE, public);
        Ok(publics.map(name).collect())
    }

    async fn revoke_all(&self, names: &[Name]) -> store::Result<Revoked> {
        let mut all = Revoked { was_live: false, propagated: true };
        for name in names {
            let Revoked { was_live, propagated } = self.revoke(name).await?;
            all = Revoked {
                was_live: all.was_live || was_live,
                propagated: all.propagated && propagated,
            };
        }
        Ok(all)
    }

    async fn revoke(&self, name: &Name) -> store::Result<Revoked> {
        let propagated = self.revoking(name).await;
        let was_live = self.loader.map.revoke(name).await?;
        let is_gone = was_live || self.loader.map.row(name).await?.is_some_and(|row| !row.live);
        if !is_gone {
            // There was nothing to revoke, and there may be from now on: no more is said of it.
            return Ok(Revoked { was_live, propagated });
        }
        self.near.revoked(name);
        let propagated = match &self.teller {
            None => true,
            Some(teller) => teller.tell_now(name).await,
        };
        Ok(Revoked { was_live, propagated })
    }

    /// It is about to be revoked. Gives whether everybody there is was told.
    async fn revoking(&self, name: &Name) -> bool {
        self.near.revoked(name);
        let likely = self.loader.settings.cache.revoking();
        match &self.middle {
            None => true,
            Some(middle) => middle.tell(&Word::Revoked(vec![name.to_text()], likely)).await,
        }
    }
}
