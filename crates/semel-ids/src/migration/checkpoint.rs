//! Checkpoints, from which a backfill continues after its process has ended.
//!
//! A checkpoint is saved after its batch was committed. A run that ends in between repeats a batch,
//! which changes nothing.

mod file;

use std::collections::BTreeMap;
use std::future::Future;

use semel_core::store::Result;
use serde::{Deserialize, Serialize};

pub use file::FileCheckpoint;

use super::business::TableCursor;
use super::reading::RefusalReason;

/// The saved progress of a backfill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The backfill that the checkpoint belongs to: its type and table. Another backfill refuses
    /// the checkpoint.
    pub job: String,
    /// The position up to which all rows are committed.
    pub cursor: TableCursor,
    /// The number of rows that were read.
    pub seen: u64,
    /// The number of bindings that were written. Bindings of a repeated batch count as `already`.
    pub written: u64,
    /// The number of bindings that were in the map before.
    pub already: u64,
    /// The number of rows that were refused, by reason.
    pub refused: BTreeMap<RefusalReason, u64>,
}

/// Stores the progress of a backfill. A checkpoint belongs to one map: for another map, or after
/// the map was emptied, start without it.
pub trait Checkpoint: Send + Sync {
    /// Returns the progress that was saved last, if any.
    fn load(&self) -> impl Future<Output = Result<Option<Saved>>> + Send;

    /// Replaces the saved progress, durably and atomically.
    fn save(&self, saved: &Saved) -> impl Future<Output = Result<()>> + Send;

    /// Removes the saved progress, because the backfill is complete: the next backfill starts at
    /// the beginning.
    fn clear(&self) -> impl Future<Output = Result<()>> + Send;
}

/// Stores no progress: after an interruption the next run starts at the beginning.
impl Checkpoint for () {
    async fn load(&self) -> Result<Option<Saved>> {
        Ok(None)
    }

    async fn save(&self, _saved: &Saved) -> Result<()> {
        Ok(())
    }

    async fn clear(&self) -> Result<()> {
        Ok(())
    }
}
