//! How far a claim looks for rows that it may take, where many wait behind others of their partition.
//!
//! It looks at a window of what is due. Where the window is full and holds too little, those that
//! wait in it are put off, out of the way of this claim and of the next ones, and the claim looks
//! again. What is put off and for how long is said once for all dialects here; how, in their
//! statements.

use std::ops::RangeInclusive;

/// Due rows that a claim looks through beyond its limit. Looking at one costs about a twentieth of leasing it.
const WINDOW: i64 = 500;
/// Rows that are scanned at in one step to be put off, at least.
const STEP: i64 = 1_000;
/// The widest window: more than relays can have left behind leased.
const WIDEST: i64 = 100_000;
/// Steps of one claim. After those it comes back with nothing and rings, so that the relay can
/// also do something else.
const STEPS: u32 = 16;

/// For how long a row is put off that may be its partition's next at any moment, in microseconds: as long
/// as it has waited so far, within these: a tenth of a second to five.
pub(crate) const SHORT: RangeInclusive<i64> = 100_000..=5_000_000;
/// The same for rows that are further behind, or behind one that rests or is dead. A write that takes the
/// row before them out of the partition wakes them; this is for when none does. A minute to ten.
pub(crate) const LONG: RangeInclusive<i64> = 60_000_000..=600_000_000;

/// How much longer than that, or than its lease or its backoff, a row may wait, in microseconds; and how
/// many of those that wait for longer, because a clock was ahead, are corrected at once.
pub(crate) const GRACE: i64 = 1_000_000;
pub(crate) const REDATED: i64 = 1_000;

/// What a step came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scanned {
    /// Due rows that were scanned at.
    pub(crate) rows: i64,
    /// How many of them were put off.
    pub(crate) put_off: i64,
}

/// The course of one claim.
#[derive(Debug)]
pub(crate) struct Search {
    window: i64,
    steps: u32,
}

impl Search {
    /// A claim of `limit` rows at most.
    pub(crate) fn new(limit: u32) -> Self {
        Self { window: WINDOW + i64::from(limit), steps: 0 }
    }

    /// How many due rows to look through for what can be taken. Where few partitions hold many rows their
    /// heads are soon found, and the rest of the backlog would be scanned through in vain.
    pub(crate) fn window(&self) -> i64 {
        self.window
    }

    /// How many due rows to look at for what can be put off.
    pub(crate) fn step(&self) -> i64 {
        self.window.max(STEP)
    }

    /// Whether to look for rows again, after a look that found none and a step.
    pub(crate) fn goes_on(&mut self, scanned: Scanned) -> bool {
        self.steps += 1;
        let step = self.step();
        if scanned.put_off == 0 {
            // What could not be put off was leased before, or is being leased this moment.
            self.window = (self.window * 4).min(WIDEST.max(self.window));
        }
        self.steps < STEPS && (scanned.put_off > 0 || scanned.rows >= step)
    }

    /// Whether there may be more to find than this search had the time for.
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
