//! What came of all the visits, in numbers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use semel_testkit::effects::{Effect, Findings, check};

use super::desk::Moment;
use super::office::Office;

#[derive(Debug)]
pub(super) struct Tally {
    seed: u64,
    pub(super) findings: Findings,
    /// Whose second request waited in vain.
    pub(super) stuck: u64,
    pub(super) left: BTreeMap<Moment, u64>,
    /// Who left while the handler was at work.
    pub(super) while_running: u64,
    /// Whose leaving the server noticed before it had an answer.
    pub(super) noticed: u64,
}

impl Tally {
    pub(super) fn of(office: &Office, effects: &[Effect]) -> Self {
        let history = office.history.answers().expect("our file");
        let left = office.left.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            seed: office.seed,
            findings: check(&history, effects),
            stuck: office.stuck.load(Ordering::SeqCst),
            left: left.clone(),
            while_running: office.while_running.load(Ordering::SeqCst),
            noticed: office.noticed.load(Ordering::SeqCst),
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, findings, stuck, left, while_running, noticed } = self;
        let Findings { keys, doubled, lost, never_done, .. } = findings;
        write!(f, "of {keys} requests {doubled} doubled, {lost} lost, {stuck} stuck, ")?;
        write!(f, "{never_done} never done; left {left:?}, {while_running} while running, ")?;
        write!(f, "{noticed} noticed; {findings:?}; run it again with {}={seed}", super::SEED)
    }
}
