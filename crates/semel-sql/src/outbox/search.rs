//! Limits how far a claim searches for due rows when many rows wait behind earlier ones of their
//! partition.
//!
//! A claim scans a window of due rows. If the window is full but too few of its rows can be
//! claimed, the rows that wait behind others are put off: they become due later, out of the way of
//! this claim and the next ones. Then the claim scans again. This module has the limits for all
//! dialects; the dialects have the statements.

use std::ops::RangeInclusive;

/// The number of due rows, beyond its limit, that the first scan of a claim covers. Scanning a row costs about a twentieth of
/// leasing it.
const WINDOW: i64 = 500;
/// The least number of due rows that one step scans for rows to put off.
const STEP: i64 = 1_000;
/// The largest window: more rows than relays can hold leased.
const WIDEST: i64 = 100_000;
/// The largest number of steps of one claim. After them the claim returns nothing and rings the
/// bell, so that the relay claims again soon and can do other work in between.
const STEPS: u32 = 16;

/// How long a row is put off if it may be its partition's next at any moment, in microseconds: as
/// long as it has waited so far, but at least a tenth of a second and at most five.
pub(crate) const SHORT: RangeInclusive<i64> = 100_000..=5_000_000;
/// How long a row is put off if it cannot be the next of its partition soon (several rows are before
/// it, or the row before it waits for a retry or is dead), in microseconds: one minute to ten. When
/// a write removes the row before it, that write makes it due; the limit is for the case that no
/// write does.
pub(crate) const LONG: RangeInclusive<i64> = 60_000_000..=600_000_000;

/// How much longer than [`LONG`], its lease or its backoff a row may wait, in microseconds. A
/// longer wait means that a clock was ahead, and is corrected.
pub(crate) const GRACE: i64 = 1_000_000;
/// The largest number of such rows that are corrected at once.
pub(crate) const REDATED: i64 = 1_000;

/// The result of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scanned {
    /// The number of due rows that were scanned.
    pub(crate) rows: i64,
    /// The number of scanned rows that were put off.
    pub(crate) put_off: i64,
}

/// The progress of one claim.
#[derive(Debug)]
pub(crate) struct Search {
    window: i64,
    steps: u32,
}

impl Search {
    /// Starts the search of a claim for at most `limit` rows.
    pub(crate) fn new(limit: u32) -> Self {
        Self { window: WINDOW + i64::from(limit), steps: 0 }
    }

    /// Returns how many due rows to scan for rows that can be claimed. If few partitions hold many
    /// rows, the first rows of the partitions are found soon, and scanning the rest of the backlog
    /// would be in vain.
    pub(crate) fn window(&self) -> i64 {
        self.window
    }

    /// Returns how many due rows to scan for rows that can be put off.
    pub(crate) fn step(&self) -> i64 {
        self.window.max(STEP)
    }

    /// Returns whether to scan again, after a scan that found no row to claim and a step that put
    /// rows off.
    pub(crate) fn goes_on(&mut self, scanned: Scanned) -> bool {
        self.steps += 1;
        let step = self.step();
        if scanned.put_off == 0 {
            // Rows that could not be put off were leased before, or are being leased at this
            // moment.
            self.window = (self.window * 4).min(WIDEST.max(self.window));
        }
        self.steps < STEPS && (scanned.put_off > 0 || scanned.rows >= step)
    }

    /// Returns whether the search ended because of [`STEPS`], so that there may be more rows to
    /// claim.
    pub(crate) fn gave_up(&self) -> bool {
        self.steps >= STEPS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_goes_on_while_something_can_be_put_off_but_not_for_ever() {
        let mut search = Search::new(100);
        let mut steps = 1;
        while search.goes_on(Scanned { rows: 1_000, put_off: 1 }) {
            steps += 1;
            assert_eq!(search.window(), 600);
        }
        assert_eq!(steps, STEPS);
        assert!(search.gave_up());
    }

    #[test]
    fn a_search_that_has_seen_everything_ends() {
        let mut search = Search::new(1);
        assert!(!search.goes_on(Scanned { rows: 999, put_off: 0 }));
        assert!(!search.gave_up());
    }

    #[test]
    fn a_window_grows_over_what_cannot_be_put_off() {
        let mut search = Search::new(100);
        assert!(search.goes_on(Scanned { rows: 1_000, put_off: 0 }));
        assert_eq!((search.window(), search.step()), (2_400, 2_400));
        while search.goes_on(Scanned { rows: search.step(), put_off: 0 }) {}
        assert_eq!(search.window(), WIDEST);
    }
}
