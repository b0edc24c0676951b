//! Makes a business table the resolver's fallback until its rows are in the map.

use semel_core::store::{BoxFuture, Result};
use ulid::Ulid;

use super::LOOKUP;
use super::business::BusinessTable;
use super::reading::read;
use crate::codec::{Codec, PublicId};
use crate::fallback::Fallback;
use crate::resource::{Resource, ResourceType};

/// Finds ids of one type in a business table. Rows without a valid binding are ignored; of several
/// rows with the same public id, the first is returned.
///
/// ```
/// use semel_ids::map::memory::MemoryMap;
/// use semel_ids::migration::{MemoryTable, TableFallback};
/// use semel_ids::resource::Order;
/// use semel_ids::{ResolveReason, Resolver, ResolverSettings};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let table = MemoryTable::new();
/// table.put("acme", "ord_01arz3ndektsv4rrffq69g5fav");
/// let resolver = Resolver::builder(MemoryMap::new())
///     .fallback(TableFallback::of::<Order>(table))
///     .settings(ResolverSettings { fallback_to_biz_table: true, ..ResolverSettings::default() })
///     .build();
/// let found = resolver.resolve::<Order>("acme", "ord_01arz3ndektsv4rrffq69g5fav").await?;
/// assert_eq!(found.reason, ResolveReason::HitFallback);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TableFallback<T> {
    table: T,
    kind: ResourceType,
    codec: Codec,
}

impl<T: BusinessTable> TableFallback<T> {
    /// Creates the fallback of a table whose rows are `R`s.
    pub fn of<R: Resource>(table: T) -> Self {
        Self::new(table, R::TYPE, R::codec())
    }

    /// Creates the fallback of a table whose rows have this type and public ids of this codec.
    pub fn new(table: T, kind: ResourceType, codec: &Codec) -> Self {
        Self { table, kind, codec: codec.clone() }
    }
}

impl<T: BusinessTable> Fallback for TableFallback<T> {
    fn supports(&self, kind: ResourceType) -> bool {
        kind == self.kind
    }

    fn find<'a>(
        &'a self,
        tenant: &'a str,
        kind: ResourceType,
        publics: &'a [PublicId],
    ) -> BoxFuture<'a, Result<Vec<(PublicId, Ulid)>>> {
        Box::pin(async move {
            let mut found: Vec<(PublicId, Ulid)> = Vec::new();
            if !self.supports(kind) {
                return Ok(found);
            }
            for chunk in publics.chunks(LOOKUP) {
                let texts: Vec<&str> = chunk.iter().map(PublicId::as_str).collect();
                for row in self.table.find(tenant, &texts).await? {
                    let Ok(binding) = read(&row, self.kind, &self.codec) else { continue };
                    if found.iter().all(|(public, _)| public != binding.public()) {
                        found.push((*binding.public(), binding.internal()));
                    }
                }
            }
            Ok(found)
        })
    }
}
