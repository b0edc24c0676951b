//! What the outbox has the writer do.

use std::time::Duration;

use semel_core::claim::AttemptId;
use semel_core::outbox::{
    Applied, Ask, Cleaned, Disposition, Leased, Marked, RowAction, Selection, Ticket,
};

use crate::outbox::Scanned;

/// Something to do in the writer's transaction.
#[derive(Debug)]
pub(super) enum Task {
    /// Lease rows, from the first so many that are due.
    Claim { ask: Ask, token: AttemptId, after: Option<u64>, window: i64 },
    /// Put off what waits behind others, of the first so many that are due, if there are more than
    /// the window has.
    PutOff { step: i64, window: i64 },
    /// Write what became of leased rows.
    Mark(Vec<(Ticket, Disposition)>),
    /// Do a verb to some rows.
    Apply { selection: Selection, verb: RowAction, after: Option<u64>, limit: u32 },
    /// Remove what was published long ago.
    Clean { keep: Duration, limit: u32 },
}

impl Task {
    /// The name of the SPI's method, for errors.
    pub(super) const fn operation(&self) -> &'static str {
        match self {
            Task::Claim { .. } | Task::PutOff { .. } => "claim",
            Task::Mark(_) => "mark",
            Task::Apply { .. } => "apply",
            Task::Clean { .. } => "clean",
        }
    }
}

/// What came of a [`Task`].
#[derive(Debug)]
pub(super) enum TaskAnswer {
    /// A claim's, by their numbers; and whether more is due than it scanned at, if it wanted more.
    Leased(Vec<Leased>, bool),
    /// What was scanned at and put off.
    Scanned(Scanned),
    /// A mark's.
    Marked(Vec<Marked>),
    /// Which rows a verb changed.
    Applied(Applied),
    /// What was cleaned away.
    Cleaned(Cleaned),
}
