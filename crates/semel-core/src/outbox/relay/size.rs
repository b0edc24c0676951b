//! How many rows the next claim asks for.
//!
//! A backlog is cheapest in large batches, and a quiet outbox needs none: a full batch doubles the next
//! one, a part-filled one halves it. Batches that are in progress at the same time share the partitions: one
//! that holds all of them leaves nothing for the others, so where that happened the batches stay at half
//! the size for a while.

/// The size that batches begin with, and shrink to.
const LEAST: u32 = 100;
/// Full batches at a lowered limit before a larger one is tried again. A claim in vain is not free: it may
/// write to rows that wait behind others.
const PATIENCE: u32 = 256;

/// Claims in a row that were not full before the next one looks further although a batch is in progress: rows
/// that wait for something else must not hide others for as long as there is work.
const UNFILLED: u32 = 16;

/// The size of the next batch.
#[derive(Debug)]
pub(super) struct BatchSize {
    next: u32,
    /// The largest size for now.
    limit: u32,
    /// The largest size ever: the setting.
    most: u32,
    /// Full batches since the limit was lowered.
    full: u32,
    /// Claims in a row that were not full.
    unfilled: u32,
    /// Whether a claim found nothing while another batch was in progress.
    starved: bool,
}

impl BatchSize {
    pub(super) fn new(most: u32) -> Self {
        Self { next: LEAST.min(most), limit: most, most, full: 0, unfilled: 0, starved: false }
    }

    /// Returns how many rows to ask for beside `others` batches in progress, and whether to
    /// [look further](crate::outbox::ClaimRequest::look_further).
    pub(super) fn next(&mut self, others: usize) -> (u32, bool) {
        let look_further = others == 0 || self.unfilled >= UNFILLED;
        if look_further {
            self.unfilled = 0;
        }
        (self.next, look_further)
    }

    /// Learns from a claim of `asked` rows that returned `got`, beside `others` batches in progress.
    pub(super) fn claimed(&mut self, asked: u32, got: u32, others: usize) {
        let least = LEAST.min(self.most);
        self.unfilled = if got < asked { self.unfilled + 1 } else { 0 };
        if got == 0 {
            // Either nothing is due, or its partitions are in progress: the next full batch tells.
            self.starved |= others > 0;
            self.next = (self.next / 2).max(least);
            return;
        }
        let starved = std::mem::take(&mut self.starved);
        if got < asked {
            self.next = (asked / 2).clamp(least, self.limit);
            return;
        }
        self.full += 1;
        if starved && asked > least {
            (self.limit, self.full) = ((asked / 2).max(least), 0);
        } else if self.full >= PATIENCE {
            (self.limit, self.full) = (self.limit.saturating_mul(2).min(self.most), 0);
        }
        self.next = asked.saturating_mul(2).min(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(size: &mut BatchSize, got: impl Fn(u32) -> u32, claims: usize) -> Vec<u32> {
        let mut asked = Vec::new();
        for _ in 0..claims {
            let (next, _) = size.next(1);
            asked.push(next);
            size.claimed(next, got(next), 1);
        }
        asked
    }

    #[test]
    fn a_full_batch_doubles_the_next_up_to_the_setting() {
        let mut size = BatchSize::new(1_000);
        assert_eq!(sizes(&mut size, |asked| asked, 6), [100, 200, 400, 800, 1_000, 1_000]);
    }

    #[test]
    fn a_part_filled_batch_halves_the_next() {
        let mut size = BatchSize::new(1_000);
        sizes(&mut size, |asked| asked, 6);
        assert_eq!(sizes(&mut size, |_| 1, 6), [1_000, 500, 250, 125, 100, 100]);
    }

    #[test]
    fn a_small_setting_is_never_exceeded() {
        let mut size = BatchSize::new(7);
        assert_eq!(sizes(&mut size, |asked| asked, 3), [7, 7, 7]);
        assert_eq!(sizes(&mut size, |_| 0, 3), [7, 7, 7]);
    }

    #[test]
    fn batches_that_take_all_partitions_are_halved_until_much_was_published() {
        let mut size = BatchSize::new(1_000);
        sizes(&mut size, |asked| asked, 5);
        size.claimed(1_000, 0, 1);
        size.claimed(1_000, 1_000, 0);
        assert_eq!(size.next(1), (500, false));
        let asked = sizes(&mut size, |asked| asked, 400);
        assert_eq!(asked.iter().position(|asked| *asked == 1_000), Some(256));
    }

    #[test]
    fn a_claim_looks_further_alone_or_after_many_that_were_not_full() {
        let mut size = BatchSize::new(1_000);
        assert!(size.next(0).1);
        for _ in 0..UNFILLED {
            assert!(!size.next(1).1);
            size.claimed(100, 7, 1);
        }
        assert!(size.next(1).1);
        assert!(!size.next(1).1, "once");
    }

    #[test]
    fn the_end_of_a_backlog_lowers_no_limit() {
        let mut size = BatchSize::new(1_000);
        sizes(&mut size, |asked| asked, 5);
        // The last rows are in progress, and there is nothing beside them or after them.
        size.claimed(1_000, 0, 1);
        size.claimed(500, 3, 0);
        assert_eq!(sizes(&mut size, |asked| asked, 6), [250, 500, 1_000, 1_000, 1_000, 1_000]);
    }
}
