//! What a resolver says.

use std::sync::Arc;

use semel_core::key::InvalidKey;
use semel_core::store;
use ulid::Ulid;

use crate::typed::InvalidId;

/// How an answer came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResolveReason {
    /// This process knew it.
    HitL1,
    /// The shared cache knew it.
    HitL2,
    /// The map knew it.
    HitDb,
    /// A business table knew it.
    HitFallback,
    /// It is not there, or is another tenant's, or was revoked.
    NotFound,
    /// It is no public id. Nobody was asked.
    InvalidFormat,
    /// It is the id of another kind of thing. Nobody was asked.
    PrefixMismatch,
    /// Resolving is switched off. Nobody was asked.
    Disabled,
}

impl ResolveReason {
    /// Why nobody was asked about a text.
    pub(super) const fn of(invalid: &InvalidId) -> Self {
        match invalid {
            InvalidId::Format(_) => ResolveReason::InvalidFormat,
            InvalidId::Prefix { .. } => ResolveReason::PrefixMismatch,
        }
    }

    /// The name: `HIT_L1`.
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

/// The answer to one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedId<'t> {
    /// The text that was asked about.
    pub public_id: &'t str,
    /// What it stands for; `None` unless it is there.
    pub internal_id: Option<Ulid>,
    /// How that is known.
    pub reason: ResolveReason,
}

impl<'t> ResolvedId<'t> {
    /// An answer that names no id.
    pub(super) const fn without(public_id: &'t str, reason: ResolveReason) -> Self {
        Self { public_id, internal_id: None, reason }
    }
}

impl ResolvedId<'_> {
    /// Whether it was looked up at all: a valid id, there or not.
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

    /// Whether it is there.
    pub const fn exists(&self) -> bool {
        self.internal_id.is_some()
    }
}

/// A question that could not be answered. Nothing is remembered of it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ResolveError {
    /// The tenant cannot be one.
    #[error(transparent)]
    Tenant(#[from] InvalidKey),
    /// Too many at once.
    #[error("{asked} ids were asked for at once; ask for at most {max}")]
    TooMany {
        /// So many.
        asked: usize,
        /// The limit.
        max: usize,
    },
    /// The map, or a business table that stands in for it, did not answer.
    #[error("the id could not be looked up: {0}")]
    Store(Arc<store::Error>),
    /// The load ended without an answer.
    #[error("the id could not be looked up: the load was cut off; ask again")]
    CutOff,
}
