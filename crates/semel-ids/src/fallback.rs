//! Lookups in business tables, for the time while their rows are being copied into the map.

use semel_core::store::{BoxFuture, Result};
use ulid::Ulid;

use crate::codec::PublicId;
use crate::resource::ResourceType;

/// Finds ids in a business table. Used only where
/// [`fallback_to_biz_table`](crate::ResolverSettings::fallback_to_biz_table) is set: outside a migration
/// the map is the only source of truth.
pub trait Fallback: Send + Sync + 'static {
    /// Returns whether the table holds resources of this type.
    fn supports(&self, kind: ResourceType) -> bool;

    /// Returns the internal ids of those that exist, in any order.
    fn find<'a>(
        &'a self,
        tenant: &'a str,
        kind: ResourceType,
        publics: &'a [PublicId],
    ) -> BoxFuture<'a, Result<Vec<(PublicId, Ulid)>>>;
}
