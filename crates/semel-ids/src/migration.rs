//! Migrates a business table into the map, with the table as the source of truth: backfill, verify
//! and repair.
//!
//! A table that had public ids before there was a map is read through the trait [`BusinessTable`].
//! A [`MapMigration`] fills the map from the table, compares table and map in both directions, and
//! repairs the map if they differ. It never writes to a business table, and contains no SQL.
//!
//! All three steps can run beside live traffic, be killed, and be run again:
//!
//! - **Backfill** reads the table once, in the order of its key. It misses a row that appears
//!   behind its cursor (a row with a small key, or of a transaction that commits late); verify
//!   finds such a row. So first make the application register new ids, then backfill, then verify.
//! - **Verify** reads every difference a second time before it reports the difference: a row that
//!   is created or deleted meanwhile, with its mapping in the same transaction, is not reported.
//!   Read from the primary, because a replica that lags shows differences that do not exist.
//! - **Repair** reads each row again right before it changes the row's mapping, and once more
//!   afterwards. One race remains: an application deletes a row whose mapping was missing, in a
//!   transaction that commits after the last read. The next repair fixes that.
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

/// The largest number of rows in a batch.
pub const MAX_BATCH: u32 = 10_000;

/// The largest number of ids in one lookup, which databases handle well in one `IN`.
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

    /// Creates the migration of a table whose rows have this type and public ids of this codec.
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

    /// Sets the number of rows that are read, and of bindings that are written, in one step.
    /// Default 1,000; at least 1, at most [`MAX_BATCH`].
    pub fn batch(mut self, rows: u32) -> Self {
        self.batch = rows.clamp(1, MAX_BATCH);
        self
    }

    /// Limits the number of rows per second, to protect live traffic. Default unlimited. A batch is
    /// never larger than the number of rows in one second.
    pub fn rows_per_second(mut self, rows: u32) -> Self {
        self.rate = Some(rows.max(1));
        self
    }

    /// Sets the number of samples that a report keeps of each kind of finding. Default 10.
    pub fn samples(mut self, count: usize) -> Self {
        self.samples = count;
        self
    }

    /// Sets how often a step is retried after a connection error or a lock conflict. The first
    /// pause is 100 ms, and each further pause is twice as long. Default 5. Every step is
    /// idempotent.
    pub fn retries(mut self, times: u32) -> Self {
        self.retries = times;
        self
    }

    /// Makes the migration read and report without writing to the map or a checkpoint.
    pub fn dry_run(mut self) -> Self {
        self.dry = true;
        self
    }

    /// Makes a repair revive revoked mappings whose rows are in the table. By default they are
    /// reported and not changed, since they may have been revoked on purpose.
    pub fn revive_revoked(mut self) -> Self {
        self.revive = true;
        self
    }

    /// Sets the largest number of mappings that a repair may revoke. Default 1,000. If more
    /// mappings have no row, the repair revokes none: the table may be the wrong one, or one of
    /// several tables of the same type.
    pub fn max_revocations(mut self, count: u64) -> Self {
        self.revocations = count;
        self
    }

    /// Sets the age that an id must have, by the time in the id, before a repair revokes its
    /// mapping. Default 5 minutes, for applications that write mapping and row in two transactions.
    pub fn grace(mut self, age: Duration) -> Self {
        self.grace = age;
        self
    }

    /// Returns the number of rows in one step.
    fn step(&self) -> u32 {
        self.rate.map_or(self.batch, |rate| self.batch.min(rate))
    }

    /// Runs an idempotent step, with retries.
    async fn with_retries<O, F>(&self, mut step: impl FnMut() -> F) -> Result<O>
    where
        F: Future<Output = Result<O>>,
    {
        let mut wait = Duration::from_millis(100);
        for _ in 0..self.retries {
            match step().await {
                Err(error) if is_transient(error.kind()) => {}
                done => return done,
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        step().await
    }
}

/// Returns whether a step that failed with this kind of error is retried.
fn is_transient(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::RetryTransaction)
}
