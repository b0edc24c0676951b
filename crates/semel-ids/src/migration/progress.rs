//! The progress of a migration.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// The side that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The migration reads the rows of the business table.
    Rows,
    /// The migration reads the rows of the map.
    Mappings,
}

/// The progress of a migration, reported after every batch and at the end.
#[derive(Clone, Debug)]
pub struct Progress<'r, R> {
    /// The report so far.
    pub report: &'r R,
    /// The side that is being read.
    pub stage: Stage,
    /// The number of rows of this stage that were read, including the earlier runs that this run
    /// continues.
    pub seen: u64,
    /// The estimated number of rows of this stage.
    pub total: Option<u64>,
    /// The time since this run began.
    pub elapsed: Duration,
    /// The number of rows per second in this stage of this run.
    pub rate: f64,
}

impl<R> Progress<'_, R> {
    /// Returns the estimated time until the end of the stage.
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.total?.saturating_sub(self.seen);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        Duration::try_from_secs_f64(left as f64 / self.rate).ok()
    }
}

impl<R> fmt::Display for Progress<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.stage {
            Stage::Rows => "rows",
            Stage::Mappings => "mappings",
        };
        write!(f, "{} ", self.seen)?;
        if let Some(total) = self.total {
            write!(f, "of about {total} ")?;
        }
        write!(f, "{what}, {:.0} a second", self.rate)?;
        match self.remaining() {
            Some(left) => write!(f, ", about {} s left", left.as_secs()),
            None => Ok(()),
        }
    }
}

/// Measures one stage of a run.
#[derive(Debug)]
pub(super) struct Watch {
    began: Instant,
    stage_began: Instant,
    stage: Stage,
    before: u64,
    total: Option<u64>,
}

impl Watch {
    pub(super) fn new(total: Option<u64>) -> Self {
        let now = Instant::now();
        Self { began: now, stage_began: now, stage: Stage::Rows, before: 0, total }
    }

    /// Sets the number of rows that earlier runs have read.
    pub(super) fn resumed(mut self, seen: u64) -> Self {
        self.before = seen;
        self
    }

    /// Begins the second stage: the rows of the map.
    pub(super) fn next_stage(&mut self, total: Option<u64>) {
        (self.stage, self.total) = (Stage::Mappings, total);
        (self.stage_began, self.before) = (Instant::now(), 0);
    }

    pub(super) fn progress<'r, R>(&self, report: &'r R, seen: u64) -> Progress<'r, R> {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let fresh = seen.saturating_sub(self.before) as f64;
        let spent = self.stage_began.elapsed().as_secs_f64().max(1e-6);
        Progress {
            report,
            stage: self.stage,
            seen,
            // The table may have grown since the estimate.
            total: self.total.map(|total| total.max(seen)),
            elapsed: self.began.elapsed(),
            rate: fresh / spent,
        }
    }
}
