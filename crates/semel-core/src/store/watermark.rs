//! Decides whether a store's clock is trusted when records are removed by it.
//!
//! A clock that is set a day ahead for a moment makes every record look expired. Requests are judged by that
//! clock, but no record may be removed by it: each sweep stores its time, and a clock that is suddenly far
//! ahead of that mark is not trusted until it has run on for a while. A long stop of every process looks the
//! same; it only delays sweeping.

use std::time::Duration;

use crate::clock::Timestamp;

/// The time up to which a store's clock is trusted. Stores with a sweeper keep one beside their records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermark {
    /// The latest time at which the clock was trusted.
    pub trusted: Timestamp,
    /// When the clock was first seen far ahead; `None` while it is trusted.
    pub suspect: Option<Timestamp>,
}

/// Whether the clock is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ClockTrust {
    /// Expired records may be removed.
    Trusted,
    /// No record may be removed.
    Suspect,
}

impl Watermark {
    /// How far the clock may be ahead of the mark. A sweeper runs every minute.
    pub const LIMIT: Duration = Duration::from_secs(60 * 60);
    /// How long a clock that jumped must run on before it is trusted.
    pub const CONFIRMATION: Duration = Duration::from_secs(60 * 60);
    /// How far the mark may lag behind, so that it is not written at every sweep.
    const LAG: Duration = Duration::from_secs(1);

    /// Creates the mark of a store that has none yet.
    pub const fn new(now: Timestamp) -> Self {
        Self { trusted: now, suspect: None }
    }

    /// Compares the clock with the mark. Returns whether the clock is trusted, and the mark to be stored, if
    /// it changed.
    pub fn observe(self, now: Timestamp) -> (ClockTrust, Option<Self>) {
        let believed = Self::new(now);
        if !guard!(ClockJump) {
            return (ClockTrust::Trusted, Some(believed));
        }
        if now <= self.trusted.after(Self::LIMIT) {
            // Set back, or as expected. Removing by an earlier time removes less.
            let same = self.suspect.is_none()
                && now >= self.trusted
                && now.since(self.trusted) < Self::LAG;
            return (ClockTrust::Trusted, (!same).then_some(believed));
        }
        match self.suspect {
            Some(since) if now >= since.after(Self::CONFIRMATION) => {
                (ClockTrust::Trusted, Some(believed))
            }
            Some(since) if now >= since => (ClockTrust::Suspect, None),
            // Seen for the first time, or the clock was set back to another time that is not trusted.
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

    /// Observes the clock, and stores the mark.
    fn look(mark: &mut Watermark, now: Timestamp) -> ClockTrust {
        let (trust, next) = mark.observe(now);
        *mark = next.unwrap_or(*mark);
        trust
    }

    #[test]
    fn a_clock_that_goes_on_is_believed() {
        let mut mark = Watermark::new(START);
        let mut now = START;
        for _ in 0..10_000 {
            now = now.after(MINUTE);
            assert_eq!(look(&mut mark, now), ClockTrust::Trusted);
            assert_eq!(mark, Watermark::new(now));
        }
    }

    #[test]
    fn a_clock_that_jumped_is_believed_once_it_has_gone_on_for_long() {
        let mut mark = Watermark::new(START);
        let jumped = START.after(DAY);
        let minutes = Watermark::CONFIRMATION.as_secs() / 60;
        for minute in 0..minutes {
            let now = jumped.after(MINUTE * u32::try_from(minute).expect("few"));
            assert_eq!(look(&mut mark, now), ClockTrust::Suspect, "after {minute} minutes");
        }
        assert_eq!(look(&mut mark, jumped.after(Watermark::CONFIRMATION)), ClockTrust::Trusted);
    }

    #[test]
    fn a_clock_that_was_set_right_again_is_believed_and_the_next_jump_is_not() {
        let mut mark = Watermark::new(START);
        for round in 0..3 {
            let now = START.after(MINUTE * round);
            assert_eq!(look(&mut mark, now.after(DAY)), ClockTrust::Suspect);
            assert_eq!(look(&mut mark, now.after(MINUTE)), ClockTrust::Trusted);
            assert_eq!(mark.suspect, None);
        }
    }

    #[test]
    fn going_back_between_two_suspect_times_begins_the_wait_anew() {
        let mut mark = Watermark::new(START);
        assert_eq!(look(&mut mark, START.after(DAY * 2)), ClockTrust::Suspect);
        assert_eq!(look(&mut mark, START.after(DAY)), ClockTrust::Suspect);
        assert_eq!(mark.suspect, Some(START.after(DAY)));
    }

    #[test]
    fn the_mark_is_not_written_at_every_look() {
        let mark = Watermark::new(START);
        assert_eq!(mark.observe(START.after(Duration::from_millis(900))).1, None);
        assert!(mark.observe(START.after(Duration::from_millis(1_000))).1.is_some());
    }
}
