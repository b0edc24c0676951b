//! Migrates a business table into the map: backfill, verify and repair, with the table as the source of truth.
//!
//! A table that had public ids before the map did is read through the SPI [`BusinessTable`]. A
//! [`MapMigration`] fills the map from it, compares the two in both directions, and repairs the map where they
//! differ. It never writes to a business table, and has no SQL.
//!
//! All three may run beside live traffic, be killed, and be run again:
//!
//! - **Backfill** reads the table once, in the order of its key. It misses a row that appears behind its cursor
//!   (a small key, or a transaction that commits late); verify finds it. So first let the application register
//!   new ids, then backfill, then verify.
//! - **Verify** reads every difference a second time before it reports it: a row that is created or deleted
//!   meanwhile, with its mapping in the same transaction, is no difference. Read from a primary: a replica
//!   that lags shows differences that do not exist.
//! - **Repair** reads each row again right before it changes its mapping, and once more after. What remains is
//!   a window inside an application's own open transaction (it deleted a row whose mapping was missing, and
//!   commits after the last read); the next repair fixes that.
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

/// Ids in one lookup: what databases handle well in one `IN`.
const LOOKUP: usize = 200;

/// Migrates a business table into a map; see the [module](self).
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
    /// Creates the migration of a table whose rows are `R`s.
    pub fn of<R: Resource>(map: &'a M, table: &'a T) -> Self {
        Self::new(map, table, R::TYPE, R::codec())
    }

    /// Creates the migration of a table whose rows are of this type, with public ids of this codec.
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

    /// Sets the number of rows that are read, and bindings that are written, in one step. Default 1,000; at
    /// least 1, at most [`MAX_BATCH`].
    pub fn batch(mut self, rows: u32) -> Self {
        self.batch = rows.clamp(1, MAX_BATCH);
        self
    }

    /// Limits the rows per second, so that live traffic does not suffer. Default unlimited. A batch is never
    /// larger than what one second allows.
    pub fn rows_per_second(mut self, rows: u32) -> Self {
        self.rate = Some(rows.max(1));
        self
    }

    /// Sets how many samples a report keeps of each kind of finding. Default 10.
    pub fn samples(mut self, count: usize) -> Self {
        self.samples = count;
        self
    }

    /// Sets how often a step is retried that failed because of a connection or a lock, after 100 ms and twice
    /// as long each time. Default 5. Every step is idempotent.
    pub fn retries(mut self, times: u32) -> Self {
        self.retries = times;
        self
    }

    /// Reads and reports, and writes nothing: neither the map nor a checkpoint.
    pub fn dry_run(mut self) -> Self {
        self.dry = true;
        self
    }

    /// Lets a repair make revoked mappings live again whose rows are in the table. Default: they are reported
    /// and left, since they may have been revoked on purpose.
    pub fn revive_revoked(mut self) -> Self {
        self.revive = true;
        self
    }

    /// Sets how many mappings a repair may revoke. Default 1,000. If more are without a row, it revokes none:
    /// the table may be the wrong one, or one of several that share a type.
    pub fn max_revocations(mut self, count: u64) -> Self {
        self.revocations = count;
        self
    }

    /// Sets how old an id must be, by the time in it, before a repair revokes its mapping. Default 5 minutes,
    /// for applications that write mapping and row in two transactions.
    pub fn grace(mut self, age: Duration) -> Self {
        self.grace = age;
        self
    }

    /// Returns the number of rows in one step.
    fn step(&self) -> u32 {
        self.rate.map_or(self.batch, |rate| self.batch.min(rate))
    }

    /// Runs an idempotent step, with retries.
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

/// Returns whether a failure of this kind is worth a retry.
fn passes(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::RetryTransaction)
}
