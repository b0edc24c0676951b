//! The results of resolving.

use std::sync::Arc;

use semel_core::key::InvalidKey;
use semel_core::store;
use ulid::Ulid;

use crate::codec::{InvalidId, PublicId};

/// The source of the answer for an id, or the reason why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResolveReason {
    /// The id was found in the cache of this process.
    HitL1,
    /// The id was found in the shared cache.
    HitL2,
    /// The id was found in the map.
    HitDb,
    /// The id was found in a business table.
    HitFallback,
    /// The id does not exist, belongs to another tenant, or was revoked.
    NotFound,
    /// The text is not a public id. No lookup was made.
    InvalidFormat,
    /// The text is a public id of another resource type. No lookup was made.
    PrefixMismatch,
    /// Resolving is disabled. No lookup was made.
    Disabled,
}

impl ResolveReason {
    /// Returns the reason why a text is not looked up.
    pub(super) const fn of(invalid: &InvalidId) -> Self {
        match invalid {
            InvalidId::Format(_) => ResolveReason::InvalidFormat,
            InvalidId::Prefix { .. } => ResolveReason::PrefixMismatch,
        }
    }

    /// Returns the name in upper case, such as `HIT_L1`.
    pub const fn name(self) -> &'static str {
        match self {
            ResolveReason::HitL1 => "HIT_L1",
            ResolveReason::HitL2 => "HIT_L2",
            ResolveReason::HitDb => "HIT_DB",
            ResolveReason::HitFallback => "HIT_FALLBACK",
            ResolveReason::NotFound => "NOT_FOUND",
            ResolveReason::InvalidFormat => "INVALID_FORMAT",
            ResolveReason::PrefixMismatch => "PREFIX_MISMATCH",
            ResolveReason::Disabled => "DISABLED",
        }
    }
}

/// The answer for one public id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedId<'t> {
    /// The text that was resolved.
    pub public_id: &'t str,
    /// The internal id; `None` if the public id does not exist.
    pub internal_id: Option<Ulid>,
    /// The source of the answer, or the reason why there is none.
    pub reason: ResolveReason,
}

impl<'t> ResolvedId<'t> {
    /// Creates an answer without an internal id.
    pub(super) const fn without(public_id: &'t str, reason: ResolveReason) -> Self {
        Self { public_id, internal_id: None, reason }
    }

    /// Creates an answer from an entry of L1.
    pub(super) const fn cached(public_id: &'t str, internal_id: Option<Ulid>) -> Self {
        let reason = match internal_id {
            Some(_) => ResolveReason::HitL1,
            None => ResolveReason::NotFound,
        };
        Self { public_id, internal_id, reason }
    }
}

impl ResolvedId<'_> {
    /// Returns whether the text is a valid id that was looked up, whether or not it exists.
    pub const fn hit(&self) -> bool {
        match self.reason {
            ResolveReason::HitL1
            | ResolveReason::HitL2
            | ResolveReason::HitDb
            | ResolveReason::HitFallback
            | ResolveReason::NotFound => true,
            ResolveReason::InvalidFormat
            | ResolveReason::PrefixMismatch
            | ResolveReason::Disabled => false,
        }
    }

    /// Returns the text as a public id; `None` if it is not a valid id.
    pub fn public(&self) -> Option<PublicId> {
        PublicId::stored(self.public_id).filter(|_| self.hit())
    }

    /// Returns whether the id exists.
    pub const fn exists(&self) -> bool {
        self.internal_id.is_some()
    }
}

/// The reason why an id could not be resolved. Errors are not cached.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ResolveError {
    /// The tenant is not valid.
    #[error(transparent)]
    Tenant(#[from] InvalidKey),
    /// The batch is too large.
    #[error("{asked} ids were asked for at once; ask for at most {max}")]
    TooMany {
        /// The number of ids in the batch.
        asked: usize,
        /// The limit, [`MAX_BATCH`](super::MAX_BATCH).
        max: usize,
    },
    /// The map, or a business table, could not be read.
    #[error("the id could not be looked up: {0}")]
    Store(Arc<store::Error>),
    /// The load ended without an answer, because its runtime shut down or the store panicked.
    #[error("the id could not be looked up: the load was interrupted; try again")]
    Interrupted,
}
