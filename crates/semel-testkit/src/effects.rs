//! A ledger of effects that is independent of the store, a history of requests and responses, and a
//! checker that counts broken guarantees in them.
//!
//! The ledger has no unique constraint, on purpose: an effect that happens twice is written twice.
//! The checker returns counts and never panics, so that a run with a guard removed can be counted
//! too.

mod check;
mod history;
mod lines;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use semel_core::Context;

pub use self::check::{Findings, check};
pub use self::history::{History, HistoryEntry, HistoryEvent};
use self::lines::{Lines, foreign};

/// An effect of one execution of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The id of the operation's key.
    pub key: String,
    /// The operation's id, which is the same in every attempt.
    pub operation: String,
    /// The attempt that had the effect, counted from 1.
    pub attempt: u32,
    /// The fence of the attempt.
    pub fence: u64,
    /// The value that the execution returns; empty if it is not known yet.
    pub value: String,
}

impl Effect {
    /// Returns the effect of the execution of `context`, with a random value.
    pub fn of(context: &Context) -> Self {
        Self {
            key: context.key().id().to_owned(),
            operation: context.operation_id().to_string(),
            attempt: context.attempt(),
            fence: context.fence().0,
            value: format!("{:016x}", fastrand::u64(..)),
        }
    }
}

/// A file of effects that separate processes append to.
#[derive(Debug)]
pub struct EffectLedger(Lines);

impl EffectLedger {
    /// Opens or creates the ledger. With `synced`, [`record`](Self::record) returns once the effect
    /// is on disk.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path, synced: bool) -> io::Result<Self> {
        Lines::open(path, synced).map(Self)
    }

    /// Appends an effect.
    ///
    /// # Errors
    /// When the line cannot be written, or when a text of it contains a tab or a line end.
    pub fn record(&self, effect: &Effect) -> io::Result<()> {
        let Effect { key, operation, attempt, fence, value } = effect;
        self.0.append(&[key, operation, &attempt.to_string(), &fence.to_string(), value])
    }

    /// Returns all effects in the order of writing.
    ///
    /// # Errors
    /// When the file cannot be read, or has a line that is not an effect.
    pub fn effects(&self) -> io::Result<Vec<Effect>> {
        let parse = |line: Vec<String>| {
            let [key, operation, attempt, fence, value] = &line[..] else {
                return Err(foreign(&line));
            };
            let (Ok(attempt), Ok(fence)) = (attempt.parse(), fence.parse()) else {
                return Err(foreign(&line));
            };
            let (key, operation, value) = (key.clone(), operation.clone(), value.clone());
            Ok(Effect { key, operation, attempt, fence, value })
        };
        self.0.read()?.into_iter().map(parse).collect()
    }

    /// Returns the number of effects of each key.
    ///
    /// # Errors
    /// As [`EffectLedger::effects`].
    pub fn per_key(&self) -> io::Result<BTreeMap<String, u32>> {
        let mut counts = BTreeMap::new();
        for effect in self.effects()? {
            *counts.entry(effect.key).or_default() += 1;
        }
        Ok(counts)
    }
}
