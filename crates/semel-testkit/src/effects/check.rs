//! Counts violations of the safety properties in a history and a ledger of effects.
//!
//! S1: a key has at most one recorded completion. S2: a finished record never changes. S3: every
//! response has the record's outcome. S4: a different request under the same key never gets the
//! outcome. S5: fences strictly grow. S6: an effect in the store's own transaction happens at most
//! once, and exactly once if a client received an outcome, which is the value of an effect.

use std::collections::{BTreeMap, BTreeSet};

use super::{Effect, HistoryEntry, HistoryEvent};

/// The number of keys, of lines, and of keys per broken guarantee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The number of different keys in the history and the effects together.
    pub keys: u64,
    /// The number of lines of the history.
    pub lines: u64,
    /// S1: keys of which more than one caller got a completion that was not a replay.
    pub completed_twice: u64,
    /// S2: keys of which two reads of the finished record returned different outcomes.
    pub record_changed: u64,
    /// S3: keys of which callers got different outcomes, or an outcome other than the record's.
    pub answers_differ: u64,
    /// S4: keys of which callers with different requests got an outcome.
    pub answered_another_request: u64,
    /// S5: keys of which a later attempt had no larger fence, or an attempt or a fence was granted
    /// twice.
    pub fence_did_not_grow: u64,
    /// S5: keys with effects of different operations.
    pub operation_changed: u64,
    /// S6: keys whose effect happened more than once.
    pub doubled: u64,
    /// S6: keys of which a caller got an outcome although the effect did not happen.
    pub lost: u64,
    /// S6: keys of which a caller got an outcome that is not the value of an effect.
    pub answer_without_effect: u64,
    /// Keys that were requested and of which no caller got an outcome: stuck, or given up.
    pub never_done: u64,
}

impl Findings {
    /// Returns the sum of the counts that must be zero on every store: S1 to S5.
    pub fn violations(&self) -> u64 {
        self.completed_twice
            + self.record_changed
            + self.answers_differ
            + self.answered_another_request
            + self.fence_did_not_grow
            + self.operation_changed
    }

    /// Returns the sum of the counts that must be zero where effects commit with the record: S1 to
    /// S6.
    pub fn atomic_violations(&self) -> u64 {
        self.violations() + self.doubled + self.lost + self.answer_without_effect
    }
}

/// Counts the violations of the safety properties in a history and its effects.
pub fn check(history: &[HistoryEntry], effects: &[Effect]) -> Findings {
    let mut keys: BTreeMap<&str, Seen<'_>> = BTreeMap::new();
    for answer in history {
        keys.entry(&answer.key).or_default().add(answer);
    }
    for effect in effects {
        let seen = keys.entry(&effect.key).or_default();
        seen.effects += 1;
        seen.operations.insert(&effect.operation);
        seen.values.insert(&effect.value);
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
        operation_changed: count(|seen| seen.operations.len() > 1),
        doubled: count(|seen| seen.effects > 1),
        lost: count(|seen| seen.effects == 0 && !seen.outcomes.is_empty()),
        answer_without_effect: count(|seen| seen.answer_without_effect()),
        never_done: count(|seen| seen.asked && seen.outcomes.is_empty()),
    }
}

/// The entries and the effects of one key.
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
    operations: BTreeSet<&'a str>,
    values: BTreeSet<&'a str>,
}

impl<'a> Seen<'a> {
    fn add(&mut self, answer: &'a HistoryEntry) {
        match &answer.event {
            HistoryEvent::Asked => self.asked = true,
            HistoryEvent::Granted { attempt, fence } => {
                self.granted += 1;
                self.grants.insert((*attempt, *fence));
            }
            HistoryEvent::Done { outcome, replayed } => {
                self.completions += u32::from(!replayed);
                self.outcomes.insert(outcome);
                self.answered.insert(&answer.request);
            }
            HistoryEvent::Recorded { outcome } => {
                self.records.insert(outcome);
            }
            HistoryEvent::NotDone { .. } | HistoryEvent::Unknown { .. } => {}
        }
    }

    fn answers_differ(&self) -> bool {
        let recorded = || self.outcomes.iter().all(|outcome| self.records.contains(outcome));
        self.outcomes.len() > 1 || !(self.records.is_empty() || recorded())
    }

    /// Returns `false` if the value of an effect was not known when it was written.
    fn answer_without_effect(&self) -> bool {
        let known = self.effects > 0 && !self.values.contains("");
        known && !self.outcomes.is_subset(&self.values)
    }

    /// Compares grants in the order of their attempts, not of their lines: a paused holder writes
    /// its line late.
    fn fence_did_not_grow(&self) -> bool {
        let repeated = self.grants.len() < self.granted as usize;
        let grants: Vec<_> = self.grants.iter().collect();
        repeated || grants.windows(2).any(|pair| pair[0].0 == pair[1].0 || pair[0].1 >= pair[1].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, request: &str, event: HistoryEvent) -> HistoryEntry {
        HistoryEntry { client: "c".into(), key: key.into(), request: request.into(), event }
    }

    fn done(outcome: &str, replayed: bool) -> HistoryEvent {
        HistoryEvent::Done { outcome: outcome.into(), replayed }
    }

    fn effect(key: &str) -> Effect {
        let (operation, value) = ("o".into(), "a".into());
        Effect { key: key.into(), operation, attempt: 1, fence: 1, value }
    }

    fn good() -> (Vec<HistoryEntry>, Vec<Effect>) {
        let history = vec![
            entry("k", "r", HistoryEvent::Asked),
            entry("k", "r", HistoryEvent::Granted { attempt: 1, fence: 10 }),
            entry("k", "r", HistoryEvent::Unknown { why: "timeout".into() }),
            entry("k", "r", HistoryEvent::Granted { attempt: 2, fence: 12 }),
            entry("k", "r", done("a", false)),
            entry("k", "r", done("a", true)),
            entry("k", "other", HistoryEvent::NotDone { why: "mismatch".into() }),
            entry("k", "r", HistoryEvent::Recorded { outcome: "a".into() }),
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
        assert_eq!(broken(entry("k", "r", done("a", false))).completed_twice, 1);
        assert_eq!(broken(entry("k", "r", done("b", true))).answers_differ, 1);
        assert_eq!(broken(entry("k", "other", done("a", true))).answered_another_request, 1);
        let changed = broken(entry("k", "r", HistoryEvent::Recorded { outcome: "b".into() }));
        assert_eq!(changed.record_changed, 1);
        for (attempt, fence) in [(3, 12), (3, 11), (2, 13), (2, 12)] {
            let grant = entry("k", "r", HistoryEvent::Granted { attempt, fence });
            assert_eq!(broken(grant).fence_did_not_grow, 1, "{attempt} {fence}");
        }
        assert_eq!(broken(entry("stuck", "r", HistoryEvent::Asked)).never_done, 1);
        assert_eq!(broken(entry("k", "r", HistoryEvent::Asked)).violations(), 0);
    }

    #[test]
    fn doubled_and_lost_effects_are_counted_by_key() {
        let (history, _) = good();
        assert_eq!(check(&history, &[]).lost, 1);
        let twice = check(&history, &[effect("k"), effect("k"), effect("other")]);
        assert_eq!((twice.doubled, twice.lost, twice.keys), (1, 0, 2));
        assert_eq!((twice.violations(), twice.atomic_violations()), (0, 1));
    }

    #[test]
    fn an_effect_of_another_execution_or_operation_is_counted() {
        let (history, _) = good();
        let with = |value: &str| check(&history, &[Effect { value: value.into(), ..effect("k") }]);
        assert_eq!(with("b").answer_without_effect, 1);
        assert_eq!((with("b").violations(), with("b").atomic_violations()), (0, 1));
        assert_eq!(with("").atomic_violations(), 0, "its value was not known");
        let moved = Effect { operation: "p".into(), ..effect("k") };
        let moved = check(&history, &[effect("k"), moved]);
        assert_eq!((moved.operation_changed, moved.violations()), (1, 1));
    }
}
