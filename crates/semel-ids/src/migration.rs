//! Moving into the map: backfill, verify and repair, with a business table as the truth.
//!
//! A table that had public ids before the map did is read through the SPI [`BusinessTable`]. A
//! [`MapMigration`] fills the map from it, compares the two in both directions, and mends the map where
//! they differ. Nothing here ever writes to a business table, and no SQL is here.
//!
//! All three may run beside live traffic, be killed, and be run again:
//!
//! - **Backfill** walks the table once by its key. A row that appears behind the cursor (a small key
//!   given late, or a transaction that commits late) is not seen by that walk; verify finds it. So
//!   first let the application register what it makes, then backfill, then verify.
//! - **Verify** looks twice at whatever differs before it says so: a row that is made or deleted
//!   meanwhile, with its mapping in the same transaction, is no difference. Read from a primary: a
//!   replica that lags shows differences that are none.
//! - **Repair** looks at each row again right before it changes its mapping, and once more after. What
//!   remains is a window inside an application's own open transaction (it deleted a row whose
//!   mapping was missing, and commits after our last look); the next repair sees and mends that.
//!
//! ```
//! use semel_ids::map::memory::MemoryMap;
//! use semel_ids::migration::{MemoryTable, MapMigration};
//! use semel_ids::resource::Order;
//!
//! # async fn example() -> semel_core::store::Result<()> {
//! let (map, table) = (MemoryMap::new(), MemoryTable::new());
//! table.put("acme", "ord_01arz3ndektsv4rrffq69g5fav");
//!
//! let moving = MapMigration::of::<Order>(&map, &table).rows_per_second(50_000);
//! let filled = moving.backfill(&(), |progress| println!("{progress}")).await?;
//! assert_eq!((filled.seen, filled.written), (1, 1));
//! assert!(moving.verify(|_| {}).await?.clean());
//! # Ok(())
//! # }
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
//! # runtime.block_on(example()).unwrap();
//! ```

mod backfill;
mod business;
mod checkpoint;
mod compare;
mod fallback;
mod memory;
mod pace;
mod progress;
mod reading;
mod repair;
mod samples;
mod verify;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use semel_core::store::{ErrorKind, Result};

pub use backfill::Backfilled;
pub use business::{BusinessRow, BusinessTable, Field, TableCursor, TablePage};
pub use checkpoint::{Checkpoint, FileCheckpoint, Saved};
pub use fallback::TableFallback;
pub use memory::MemoryTable;
pub use progress::{Progress, Stage};
pub use reading::RefusalReason;
pub use repair::{RepairChange, Repaired, RepairedMapping};
pub use samples::{Refusals, Sample, SampledCount};
pub use verify::Verified;

use crate::codec::Codec;
use crate::map::IdMap;
use crate::resource::{Resource, ResourceType};

/// Most rows of a batch.
pub const MAX_BATCH: u32 = 10_000;

/// How many ids one lookup asks for: what databases take well in one `IN`.
const LOOKUP: usize = 200;

/// A business table and the map that it moves into; see the module's first lines.
#[must_use]
pub struct MapMigration<'a, M, T> {
    map: &'a M,
    table: &'a T,
    kind: ResourceType,
    codec: Codec,
    batch: u32,
    rate: Option<u32>,
    samples: usize,
    retries: u32,
    dry: bool,
    revive: bool,
    revocations: u64,
    grace: Duration,
}

impl<M, T> Clone for MapMigration<'_, M, T> {
    fn clone(&self) -> Self {
        Self { codec: self.codec.clone(), ..*self }
    }
}

impl<M, T> fmt::Debug for MapMigration<'_, M, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Migration");
        shown.field("kind", &self.kind).field("batch", &self.batch).field("dry", &self.dry);
        shown.finish_non_exhaustive()
    }
}

impl<'a, M: IdMap, T: BusinessTable> MapMigration<'a, M, T> {
    /// The rows of `table` are `R`s.
    pub fn of<R: Resource>(map: &'a M, table: &'a T) -> Self {
        Self::new(map, table, R::TYPE, R::codec())
    }

    /// The rows of `table` are of this type, and their public ids written by this codec.
    pub fn new(map: &'a M, table: &'a T, kind: ResourceType, codec: &Codec) -> Self {
        Self {
            map,
            table,
            kind,
            codec: codec.clone(),
            batch: 1_000,
            rate: None,
            samples: 10,
            retries: 5,
            dry: false,
            revive: false,
            revocations: 1_000,
            grace: Duration::from_secs(300),
        }
    }

    /// Rows read, and bindings written, in one step. Default 1,000; at least 1, at most
    /// [`MAX_BATCH`].
    pub fn batch(mut self, rows: u32) -> Self {
        self.batch = rows.clamp(1, MAX_BATCH);
        self
    }

    /// Rows a second at most, so that live traffic does not suffer. Default: as fast as it goes.
    /// A batch is never larger than what one second allows.
    pub fn rows_per_second(mut self, rows: u32) -> Self {
        self.rate = Some(rows.max(1));
        self
    }

    /// How many examples a report keeps of each kind of trouble. Default 10.
    pub fn samples(mut self, count: usize) -> Self {
        self.samples = count;
        self
    }

    /// How often a step that failed for want of a connection, or against a lock, is tried again,
    /// after 100 ms and twice as long each time. Default 5. Every step can be repeated without harm.
    pub fn retries(mut self, times: u32) -> Self {
        self.retries = times;
        self
    }

    /// Reads and reports, and writes nothing: neither the map nor a checkpoint.
    pub fn dry_run(mut self) -> Self {
        self.dry = true;
        self
    }

    /// Lets a repair make a revoked mapping live again whose row is in the table. Default: it is
    /// reported and left, since somebody may have revoked an id that leaked.
    pub fn revive_revoked(mut self) -> Self {
        self.revive = true;
        self
    }

    /// How many mappings a repair may revoke. Default 1,000. Where more are without a row it revokes
    /// none: the wrong table, or one of several that share a type, looks just like that.
    pub fn max_revocations(mut self, count: u64) -> Self {
        self.revocations = count;
        self
    }

    /// How old an id must be, by the time in it, before a repair revokes its mapping. Default 5
    /// minutes: for applications that write mapping and row in two transactions.
    pub fn grace(mut self, age: Duration) -> Self {
        self.grace = age;
        self
    }

    /// How many rows one step takes.
    fn step(&self) -> u32 {
        self.rate.map_or(self.batch, |rate| self.batch.min(rate))
    }

    /// Tries a step that can be repeated until it is done, or until trying is no use.
    async fn tried<O, F>(&self, mut step: impl FnMut() -> F) -> Result<O>
    where
        F: Future<Output = Result<O>>,
    {
        let mut wait = Duration::from_millis(100);
        for _ in 0..self.retries {
            match step().await {
                Err(error) if passes(error.kind()) => {}
                done => return done,
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        step().await
    }
}

/// Whether a failure of this kind may be over by itself.
fn passes(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::RetryTransaction)
}
