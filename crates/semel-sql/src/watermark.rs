//! Decides whether statements that remove rows by the server's clock may trust it.
//!
//! The rule is [`Watermark`]'s; this module converts the values of the table `semel_clock`.

use semel_core::clock::Timestamp;
use semel_core::store::{ClockTrust, Watermark};

/// The server's clock and the stored watermark, read together.
pub(crate) struct Reading {
    pub(crate) now: i64,
    /// `None` if no watermark is stored.
    pub(crate) trusted: Option<i64>,
    pub(crate) suspect: Option<i64>,
}

/// The result of comparing the clock with the watermark.
pub(crate) struct Judged {
    /// The clock's time, if it is trusted. Rows are removed by this time, not by a later reading of
    /// a clock that may have jumped since.
    pub(crate) trusted_now: Option<i64>,
    /// The watermark to store, if it changes: `trusted` and `suspect`.
    pub(crate) write: Option<(i64, Option<i64>)>,
}

impl Reading {
    /// Compares the clock with the stored watermark.
    pub(crate) fn judge(self) -> Judged {
        let now = Timestamp::from_micros(self.now);
        let (trust, next) = match self.trusted.map(Timestamp::from_micros) {
            Some(trusted) => {
                let suspect = self.suspect.map(Timestamp::from_micros);
                Watermark { trusted, suspect }.observe(now)
            }
            // A lost watermark is created again; otherwise every jump would be trusted.
            None => (ClockTrust::Trusted, Some(Watermark::new(now))),
        };
        let write =
            next.map(|next| (next.trusted.as_micros(), next.suspect.map(Timestamp::as_micros)));
        Judged { trusted_now: (trust == ClockTrust::Trusted).then_some(self.now), write }
    }
}
