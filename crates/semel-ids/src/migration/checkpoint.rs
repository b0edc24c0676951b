//! Where a backfill goes on after its process has died.
//!
//! A checkpoint says "everything up to here is committed". It is saved after the batch that it
//! speaks of, never before: a run that dies in between repeats a batch, which changes nothing.

mod file;

use std::collections::BTreeMap;
use std::future::Future;

use semel_core::store::Result;
use serde::{Deserialize, Serialize};

pub use file::FileCheckpoint;

use super::business::TableCursor;
use super::reading::RefusalReason;

/// How far a backfill has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Which backfill: of what, from where. Another one refuses it.
    pub job: String,
    /// Everything up to here is committed.
    pub cursor: TableCursor,
    /// Rows seen.
    pub seen: u64,
    /// Bindings written. Those of a batch that was repeated count as there already.
    pub written: u64,
    /// Bindings that were there.
    pub already: u64,
    /// Rows that were refused.
    pub refused: BTreeMap<RefusalReason, u64>,
}

/// Keeps how far a backfill has come. Belongs to one map: with another one, or with one that was
/// emptied, begin anew.
pub trait Checkpoint: Send + Sync {
    /// What was saved last.
    fn load(&self) -> impl Future<Output = Result<Option<Saved>>> + Send;

    /// Replaces what was saved, durably and in one step: a reader finds the old or the new.
    fn save(&self, saved: &Saved) -> impl Future<Output = Result<()>> + Send;

    /// The walk is at its end: the next one begins at the beginning.
    fn clear(&self) -> impl Future<Output = Result<()>> + Send;
}

/// Keeps nothing: a run that dies begins anew, which is slower and not wrong.
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
