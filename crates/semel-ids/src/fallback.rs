//! Where to look when the map does not know an id: business tables, while their rows are on their
//! way into the map.

use semel_core::store::{BoxFuture, Result};
use ulid::Ulid;

use crate::codec::PublicId;
use crate::resource::ResourceType;

/// Finds ids in a business table. Off unless a resolver is told to use it: two sources of truth
/// are one too many, except while one moves into the other.
pub trait Fallback: Send + Sync + 'static {
    /// Whether it knows things of this type.
    fn supports(&self, kind: ResourceType) -> bool;

    /// The internal ids of those that it knows, in no order.
    fn find<'a>(
        &'a self,
        tenant: &'a str,
        kind: ResourceType,
        publics: &'a [PublicId],
    ) -> BoxFuture<'a, Result<Vec<(PublicId, Ulid)>>>;
}
