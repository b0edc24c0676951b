//! Whether the server's clock is trusted by statements that remove rows by it.
//!
//! The rule is [`Watermark`]'s; here is what is read of the table `semel_clock` and what is written to it.

use semel_core::clock::Timestamp;
use semel_core::store::{ClockTrust, Watermark};

/// The clock, and the mark as it is stored, read in one step.
pub(crate) struct Reading {
    pub(crate) now: i64,
    /// `None` where there is no mark.
    pub(crate) trusted: Option<i64>,
    pub(crate) suspect: Option<i64>,
}

/// What a reading means.
pub(crate) struct Judged {
    /// The clock, if it is trusted. What is removed afterwards goes by this moment, not by a clock that may have
    /// jumped since.
    pub(crate) trusted_now: Option<i64>,
    /// The mark to write, if it changes: `trusted` and `suspect`.
    pub(crate) write: Option<(i64, Option<i64>)>,
}

impl Reading {
    /// Compares the clock with the mark.
    pub(crate) fn judge(self) -> Judged {
        let now = Timestamp::from_micros(self.now);
        let (trust, next) = match self.trusted.map(Timestamp::from_micros) {
            Some(trusted) => {
                let suspect = self.suspect.map(Timestamp::from_micros);
                Watermark { trusted, suspect }.observe(now)
            }
            // A mark that was lost is made anew, or every jump would be trusted.
            None => (ClockTrust::Trusted, Some(Watermark::new(now))),
        };
        let write =
            next.map(|next| (next.trusted.as_micros(), next.suspect.map(Timestamp::as_micros)));
        Judged { trusted_now: (trust == ClockTrust::Trusted).then_some(self.now), write }
    }
}
