//! The safety properties, counted over a history and a ledger of effects.
//!
//! S1 at most one recorded completion a key; S2 a finished record never changes; S3 every answer is
//! the record's; S4 another request never gets the answer; S5 fences strictly grow; S6 an effect in
//! the store's own transaction happens once if a client was told so, and never twice.

use std::collections::{BTreeMap, BTreeSet};

use super::{Effect, HistoryEntry, Told};

/// Counts of broken promises. All but the first two are counts of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Keys of the history.
    pub keys: u64,
    /// Lines of the history.
    pub lines: u64,
    /// S1: more than one caller got its own execution as the recorded one.
    pub completed_twice: u64,
    /// S2: two reads of the finished record found two outcomes.
    pub record_changed: u64,
    /// S3: two callers got two outcomes, or one that is not the record's.
    pub answers_differ: u64,
    /// S4: callers with different requests got the outcome.
    pub answered_another_request: u64,
    /// S5: a later attempt had no larger fence, or two grants shared one.
    pub fence_did_not_grow: u64,
    /// S6: the effect happened more than once.
    pub doubled: u64,
    /// S6: a caller got an outcome, but the effect did not happen.
    pub lost: u64,
    /// Requested, and never done: stuck, or given up.
    pub never_done: u64,
}

impl Findings {
    /// Returns the sum of what must be zero on every store: S1 to S5.
    pub fn violations(&self) -> u64 {
        self.completed_twice
            + self.record_changed
            + self.answers_differ
            + self.answered_another_request
            + self.fence_did_not_grow
    }

    /// Returns the sum of what must be zero where effects commit with the record: S1 to S6.
    pub fn atomic_violations(&self) -> u64 {
        self.violations() + self.doubled + self.lost
    }
}

/// Counts where a history and its effects break the promises.
pub fn check(history: &[HistoryEntry], effects: &[Effect]) -> Findings {
    let mut keys: BTreeMap<&str, Seen<'_>> = BTreeMap::new();
    for answer in history {
        keys.entry(&answer.key).or_default().hear(answer);
    }
    for effect in effects {
        keys.entry(&effect.key).or_default().effects += 1;
    }
    let count =
        |broken: fn(&Seen<'_>) -> bool| keys.values().filter(|seen| broken(seen)).count() as u64;
    Findings {
        keys: keys.len() as u64,
        lines: history.len() as u64,
        completed_twice: count(|seen| seen.completions > 1),
        record_changed: count(|seen| seen.records.len() > 1),
        answers_differ: count(|seen| seen.answers_differ()),
        answered_another_request: count(|seen| seen.answered.len() > 1),
        fence_did_not_grow: count(|seen| seen.fence_did_not_grow()),
        doubled: count(|seen| seen.effects > 1),
        lost: count(|seen| seen.effects == 0 && !seen.outcomes.is_empty()),
        never_done: count(|seen| seen.asked && seen.outcomes.is_empty()),
    }
}

/// All entries of one key.
#[derive(Debug, Default)]
struct Seen<'a> {
    asked: bool,
    completions: u32,
    outcomes: BTreeSet<&'a str>,
    records: BTreeSet<&'a str>,
    answered: BTreeSet<&'a str>,
    grants: BTreeSet<(u32, u64)>,
    granted: u32,
    effects: u32,
}

impl<'a> Seen<'a> {
    fn hear(&mut self, answer: &'a HistoryEntry) {
        match &answer.told {
            Told::Asked => self.asked = true,
            Told::Granted { attempt, fence } => {
                self.granted += 1;
                self.grants.insert((*attempt, *fence));
            }
            Told::Done { outcome, replayed } => {
                self.completions += u32::from(!replayed);
                self.outcomes.insert(outcome);
                self.answered.insert(&answer.request);
            }
            Told::Recorded { outcome } => {
                self.records.insert(outcome);
            }
            Told::NotDone { .. } | Told::Unknown { .. } => {}
        }
    }

    fn answers_differ(&self) -> bool {
        let recorded = || self.outcomes.iter().all(|outcome| self.records.contains(outcome));
        self.outcomes.len() > 1 || !(self.records.is_empty() || recorded())
    }

    /// Compares by attempt, not by line: a paused holder writes its line late.
    fn fence_did_not_grow(&self) -> bool {
        let repeated = self.grants.len() < self.granted as usize;
        let grants: Vec<_> = self.grants.iter().collect();
        repeated || grants.windows(2).any(|pair| pair[0].0 == pair[1].0 || pair[0].1 >= pair[1].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(key: &str, request: &str, told: Told) -> HistoryEntry {
        HistoryEntry { client: "c".into(), key: key.into(), request: request.into(), told }
    }

    fn done(outcome: &str, replayed: bool) -> Told {
        Told::Done { outcome: outcome.into(), replayed }
    }

    fn effect(key: &str) -> Effect {
        Effect { key: key.into(), attempt: 1, fence: 1, run: "r".into() }
    }

    fn good() -> (Vec<HistoryEntry>, Vec<Effect>) {
        let history = vec![
            said("k", "r", Told::Asked),
            said("k", "r", Told::Granted { attempt: 1, fence: 10 }),
            said("k", "r", Told::Unknown { why: "timeout".into() }),
            said("k", "r", Told::Granted { attempt: 2, fence: 12 }),
            said("k", "r", done("a", false)),
            said("k", "r", done("a", true)),
            said("k", "other", Told::NotDone { why: "mismatch".into() }),
            said("k", "r", Told::Recorded { outcome: "a".into() }),
        ];
        (history, vec![effect("k")])
    }

    #[test]
    fn a_good_history_has_no_findings() {
        let (history, effects) = good();
        let findings = check(&history, &effects);
        assert_eq!(findings, Findings { keys: 1, lines: 8, ..Findings::default() });
    }

    #[test]
    fn each_broken_promise_is_counted_as_itself() {
        let broken = |line: HistoryEntry| {
            let (mut history, effects) = good();
            history.push(line);
            check(&history, &effects)
        };
        assert_eq!(broken(said("k", "r", done("a", false))).completed_twice, 1);
        assert_eq!(broken(said("k", "r", done("b", true))).answers_differ, 1);
        assert_eq!(broken(said("k", "other", done("a", true))).answered_another_request, 1);
        let changed = broken(said("k", "r", Told::Recorded { outcome: "b".into() }));
        assert_eq!(changed.record_changed, 1);
        for (attempt, fence) in [(3, 12), (3, 11), (2, 13), (2, 12)] {
            let grant = said("k", "r", Told::Granted { attempt, fence });
            assert_eq!(broken(grant).fence_did_not_grow, 1, "{attempt} {fence}");
        }
        assert_eq!(broken(said("stuck", "r", Told::Asked)).never_done, 1);
        assert_eq!(broken(said("k", "r", Told::Asked)).violations(), 0);
    }

    #[test]
    fn doubled_and_lost_effects_are_counted_by_key() {
        let (history, _) = good();
        assert_eq!(check(&history, &[]).lost, 1);
        let twice = check(&history, &[effect("k"), effect("k"), effect("other")]);
        assert_eq!((twice.doubled, twice.lost, twice.keys), (1, 0, 2));
        assert_eq!((twice.violations(), twice.atomic_violations()), (0, 1));
    }
}
