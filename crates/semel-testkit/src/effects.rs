//! An independent ledger of effects, a history of requests and responses, and a checker that counts broken
//! promises in them.
//!
//! There is no unique constraint, on purpose: an effect that happens twice is written twice. The checker
//! returns counts and never panics, so that a run with a guard removed can be counted too.

mod check;
mod history;
mod lines;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

pub use self::check::{Findings, check};
pub use self::history::{History, HistoryEntry, Told};
use self::lines::{Lines, foreign};

/// An effect outside the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The id of its key.
    pub key: String,
    /// The attempt.
    pub attempt: u32,
    /// Under which fence.
    pub fence: u64,
    /// The run of the process, by any name.
    pub run: String,
}

/// A file of effects that separate processes append to.
#[derive(Debug)]
pub struct EffectLedger(Lines);

impl EffectLedger {
    /// Opens or creates the ledger. With `synced`, an effect is on disk before it is acknowledged.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path, synced: bool) -> io::Result<Self> {
        Lines::open(path, synced).map(Self)
    }

    /// Appends an effect.
    ///
    /// # Errors
    /// When it cannot be written, or when a text of it holds a tab or a line end.
    pub fn record(&self, effect: &Effect) -> io::Result<()> {
        let Effect { key, attempt, fence, run } = effect;
        self.0.append(&[key, &attempt.to_string(), &fence.to_string(), run])
    }

    /// Returns all effects in the order of writing.
    ///
    /// # Errors
    /// When the file cannot be read, or holds something else.
    pub fn effects(&self) -> io::Result<Vec<Effect>> {
        let parse = |line: Vec<String>| {
            let [key, attempt, fence, run] = &line[..] else { return Err(foreign(&line)) };
            let (Ok(attempt), Ok(fence)) = (attempt.parse(), fence.parse()) else {
                return Err(foreign(&line));
            };
            Ok(Effect { key: key.clone(), attempt, fence, run: run.clone() })
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
