//! Decides whether a store's clock is trusted for removing expired records.
//!
//! A clock that is set a day ahead for a moment makes every record look expired. Requests are
//! judged by that clock, but no record may be removed by it. So each sweep stores its time as a
//! mark, and a clock that is suddenly far ahead of the mark is not trusted until it has continued
//! for a while. If every process was stopped for long, the clock looks the same; this only delays
//! sweeping.

use std::time::Duration;

use crate::clock::Timestamp;

/// The mark by which a store's clock is trusted. Stores keep it beside their records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermark {
    /// The latest time at which the clock was trusted.
    pub trusted: Timestamp,
    /// The time at which the clock was first seen far ahead; `None` while the clock is trusted.
    pub suspect: Option<Timestamp>,
}

/// Whether a store's clock is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ClockTrust {
    /// The clock is as expected, so expired records may be removed.
    Trusted,
    /// The clock has jumped ahead, so no record may be removed.
    Suspect,
}

impl Watermark {
    /// The time by which a trusted clock may be ahead of the mark. A sweeper runs every minute.
    pub const LIMIT: Duration = Duration::from_secs(60 * 60);
    /// The time for which a clock that jumped must continue before it is trusted.
    pub const CONFIRMATION: Duration = Duration::from_secs(60 * 60);
    /// The time by which the mark may lag behind, so that it is not written at every sweep.
    const LAG: Duration = Duration::from_secs(1);

    /// Creates the first mark of a store.
    pub const fn new(now: Timestamp) -> Self {
        Self { trusted: now, suspect: None }
    }

    /// Compares the clock with the mark. Returns whether the clock is trusted, and the new mark if
    /// it must be stored.
    pub fn observe(self, now: Timestamp) -> (ClockTrust, Option<Self>) {
        let confirmed = Self::new(now);
        if !guard!(ClockJump) {
            return (ClockTrust::Trusted, Some(confirmed));
        }
        if now <= self.trusted.after(Self::LIMIT) {
            // The clock is as expected, or was set back. An earlier time only removes fewer
            // records.
            let same = self.suspect.is_none()
                && now >= self.trusted
                && now.since(self.trusted) < Self::LAG;
            return (ClockTrust::Trusted, (!same).then_some(confirmed));
        }
        match self.suspect {
            Some(since) if now >= since.after(Self::CONFIRMATION) => {
                (ClockTrust::Trusted, Some(confirmed))
            }
            Some(since) if now >= since => (ClockTrust::Suspect, None),
            // The jump is seen for the first time, or the clock was set back to another time that
            // is not trusted.
            Some(_) | None => (ClockTrust::Suspect, Some(Self { suspect: Some(now), ..self })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
    const MINUTE: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(25 * 60 * 60);

    /// Observes the clock, and updates the mark.
    fn observe(mark: &mut Watermark, now: Timestamp) -> ClockTrust {
        let (trust, next) = mark.observe(now);
        *mark = next.unwrap_or(*mark);
        trust
    }

    #[test]
    fn a_clock_that_advances_steadily_is_trusted() {
        let mut mark = Watermark::new(START);
        let mut now = START;
        for _ in 0..10_000 {
            now = now.after(MINUTE);
            assert_eq!(observe(&mut mark, now), ClockTrust::Trusted);
            assert_eq!(mark, Watermark::new(now));
        }
    }

    #[test]
    fn a_clock_that_jumped_is_trusted_after_the_confirmation_time() {
        let mut mark = Watermark::new(START);
        let jumped = START.after(DAY);
        let minutes = Watermark::CONFIRMATION.as_secs() / 60;
        for minute in 0..minutes {
            let now = jumped.after(MINUTE * u32::try_from(minute).expect("few"));
            assert_eq!(observe(&mut mark, now), ClockTrust::Suspect, "after {minute} minutes");
        }
        assert_eq!(observe(&mut mark, jumped.after(Watermark::CONFIRMATION)), ClockTrust::Trusted);
    }

    #[test]
    fn a_clock_that_was_corrected_is_trusted_and_the_next_jump_is_not() {
        let mut mark = Watermark::new(START);
        for round in 0..3 {
            let now = START.after(MINUTE * round);
            assert_eq!(observe(&mut mark, now.after(DAY)), ClockTrust::Suspect);
            assert_eq!(observe(&mut mark, now.after(MINUTE)), ClockTrust::Trusted);
            assert_eq!(mark.suspect, None);
        }
    }

    #[test]
    fn setting_a_suspect_clock_back_restarts_the_confirmation_time() {
        let mut mark = Watermark::new(START);
        assert_eq!(observe(&mut mark, START.after(DAY * 2)), ClockTrust::Suspect);
        assert_eq!(observe(&mut mark, START.after(DAY)), ClockTrust::Suspect);
        assert_eq!(mark.suspect, Some(START.after(DAY)));
    }

    #[test]
    fn the_mark_is_not_written_at_every_observation() {
        let mark = Watermark::new(START);
        assert_eq!(mark.observe(START.after(Duration::from_millis(900))).1, None);
        assert!(mark.observe(START.after(Duration::from_millis(1_000))).1.is_some());
    }
}
