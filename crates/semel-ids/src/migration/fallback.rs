//! A business table as the resolver's fallback, while its rows are on their way into the map.

use semel_core::store::{BoxFuture, Result};
use ulid::Ulid;

use super::LOOKUP;
use super::business::BusinessTable;
use super::reading::read;
use crate::codec::{Codec, PublicId};
use crate::fallback::Fallback;
use crate::resource::{Resource, ResourceType};

/// Finds ids of one type in a business table. Rows that say no binding are not found; where several
/// rows have one public id, the first is.
#[derive(Clone, Debug)]
pub struct TableFallback<T> {
    table: T,
    kind: ResourceType,
    codec: Codec,
}

impl<T: BusinessTable> TableFallback<T> {
    /// The rows of `table` are `R`s.
    pub fn of<R: Resource>(table: T) -> Self {
        Self::new(table, R::TYPE, R::codec())
    }

    /// The rows of `table` are of this type, and their public ids written by this codec.
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
