//! Runs the whole suite on the id map in memory.

use semel_ids::map::memory::MemoryMap;
use semel_testkit::{IdMapFixture, idmap_conformance};

struct Memory(MemoryMap);

impl Memory {
    async fn new() -> Self {
        Self(MemoryMap::new())
    }
}

impl IdMapFixture for Memory {
    type Map = MemoryMap;
    type Transaction = MemoryMap;

    async fn map(&self) -> MemoryMap {
        self.0.clone()
    }

    async fn begin(&self, map: &MemoryMap) -> MemoryMap {
        map.clone()
    }

    fn connection(transaction: &mut MemoryMap) -> &mut MemoryMap {
        transaction
    }

    /// Does nothing: an insert in memory is visible at once.
    async fn commit(&self, _: &MemoryMap, _: MemoryMap) {}
}

idmap_conformance!(Memory::new());
