//! The results of all requests, in numbers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use semel_testkit::effects::{Effect, Findings, check};

use super::request_state::Moment;
use super::service::LeavingService;

#[derive(Debug)]
pub(super) struct Tally {
    seed: u64,
    pub(super) findings: Findings,
    /// The number of callers whose second request waited in vain.
    pub(super) stuck: u64,
    pub(super) left: BTreeMap<Moment, u64>,
    /// The number of callers that left while the handler was running.
    pub(super) while_running: u64,
    /// The number of callers whose leaving the server noticed before it had a response.
    pub(super) noticed: u64,
}

impl Tally {
    pub(super) fn of(service: &LeavingService, effects: &[Effect]) -> Self {
        let history = service.history.answers().expect("our file");
        let left = service.left.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            seed: service.seed,
            findings: check(&history, effects),
            stuck: service.stuck.load(Ordering::SeqCst),
            left: left.clone(),
            while_running: service.while_running.load(Ordering::SeqCst),
            noticed: service.noticed.load(Ordering::SeqCst),
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
