//! The tasks that the outbox gives to the writer.

use std::time::Duration;

use semel_core::claim::AttemptId;
use semel_core::outbox::{
    Applied, ClaimRequest, Cleaned, Disposition, Leased, Marked, RowAction, Selection, Ticket,
};

use crate::outbox::Scanned;

/// A task for the writer's transaction.
#[derive(Debug)]
pub(super) enum Task {
    /// Leases rows, among the first `window` rows that are due.
    Claim { ask: ClaimRequest, token: AttemptId, after: Option<u64>, window: i64 },
    /// Puts off the rows that wait behind others, among the first `step` rows that are due, if more
    /// than `window` rows are due.
    PutOff { step: i64, window: i64 },
    /// Marks leased rows with their dispositions.
    Mark(Vec<(Ticket, Disposition)>),
    /// Applies an operator's verb to the selected rows.
    Apply { selection: Selection, verb: RowAction, after: Option<u64>, limit: u32 },
    /// Removes rows that were published or discarded longer than `keep` ago.
    Clean { keep: Duration, limit: u32 },
}

impl Task {
    /// Returns the name of the operation, for errors.
    pub(super) const fn operation(&self) -> &'static str {
        match self {
            Task::Claim { .. } | Task::PutOff { .. } => "claim",
            Task::Mark(_) => "mark",
            Task::Apply { .. } => "apply",
            Task::Clean { .. } => "clean",
        }
    }
}

/// The answer to a [`Task`].
#[derive(Debug)]
pub(super) enum TaskAnswer {
    /// The rows of a claim in the order of their numbers, and whether more rows are due than were
    /// scanned, if the claim is not full.
    Leased(Vec<Leased>, bool),
    /// The number of rows that were scanned and put off.
    Scanned(Scanned),
    /// The answers to marks.
    Marked(Vec<Marked>),
    /// The rows that a verb changed.
    Applied(Applied),
    /// The rows that were removed.
    Cleaned(Cleaned),
}
