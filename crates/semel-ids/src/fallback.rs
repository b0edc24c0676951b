//! Looks ids up in business tables while their rows are being copied into the map.

use semel_core::store::{BoxFuture, Result};
use ulid::Ulid;

use crate::codec::PublicId;
use crate::resource::ResourceType;

/// Finds ids in a business table. The resolver uses it only if
/// [`fallback_to_biz_table`](crate::ResolverSettings::fallback_to_biz_table) is set: outside a
/// migration the map is the only source of truth.
pub trait Fallback: Send + Sync + 'static {
    /// Returns whether the table contains resources of this type.
    fn supports(&self, kind: ResourceType) -> bool;

    /// Returns the public ids that exist in the table, with their internal ids, in any order.
    fn find<'a>(
        &'a self,
        tenant: &'a str,
        kind: ResourceType,
        publics: &'a [PublicId],
    ) -> BoxFuture<'a, Result<Vec<(PublicId, Ulid)>>>;
}
