//! Checkpoints: where a backfill continues after its process has ended.
//!
//! Everything before a checkpoint is committed: it is saved after its batch. A run that ends in between repeats
//! a batch, which changes nothing.

mod file;

use std::collections::BTreeMap;
use std::future::Future;

use semel_core::store::Result;
use serde::{Deserialize, Serialize};

pub use file::FileCheckpoint;

use super::business::TableCursor;
use super::reading::RefusalReason;

/// The progress of a backfill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// The backfill that it belongs to: its type and table. Another one refuses it.
    pub job: String,
    /// Everything up to here is committed.
    pub cursor: TableCursor,
    /// Number of rows seen.
    pub seen: u64,
    /// Number of bindings written. Those of a repeated batch count as already there.
    pub written: u64,
    /// Number of bindings that were already there.
    pub already: u64,
    /// Number of rows refused, by reason.
    pub refused: BTreeMap<RefusalReason, u64>,
}

/// Stores the progress of a backfill. It belongs to one map: for another one, or one that was emptied, start
/// without it.
pub trait Checkpoint: Send + Sync {
    /// Returns what was saved last.
    fn load(&self) -> impl Future<Output = Result<Option<Saved>>> + Send;

    /// Replaces what was saved, durably and atomically.
    fn save(&self, saved: &Saved) -> impl Future<Output = Result<()>> + Send;

    /// Removes what was saved: the backfill is complete, and the next one begins at the beginning.
    fn clear(&self) -> impl Future<Output = Result<()>> + Send;
}

/// Stores nothing: a run that is interrupted begins again.
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
