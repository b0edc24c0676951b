//! Queues the steps that wait for a connection, and selects the next.

use std::collections::{HashSet, VecDeque};

use semel_core::key::Digest;
use semel_core::store::{Draft, Result};
use tokio::sync::oneshot;

use super::step::{SettleRequest, Step};
use super::{BATCH, Checkout, Dialect};

/// A queued step.
pub(crate) struct Waiting<S: Step<D>, D: Dialect> {
    pub(super) ticket: u64,
    pub(super) step: S,
    pub(super) reply: oneshot::Sender<Result<S::Answer>>,
}

/// A step that can be queued.
pub(crate) trait Queued<D: Dialect>: Step<D> {
    /// Returns the part of the queue in which steps of this kind wait.
    fn line(queue: &mut Queue<D>) -> &mut VecDeque<Waiting<Self, D>>;
}

impl<D: Dialect> Queued<D> for Draft {
    fn line(queue: &mut Queue<D>) -> &mut VecDeque<Waiting<Self, D>> {
        &mut queue.opens
    }
}

impl<D: Dialect> Queued<D> for SettleRequest {
    fn line(queue: &mut Queue<D>) -> &mut VecDeque<Waiting<Self, D>> {
        &mut queue.settles
    }
}

impl<D: Dialect> Queued<D> for Digest {
    fn line(queue: &mut Queue<D>) -> &mut VecDeque<Waiting<Self, D>> {
        &mut queue.peeks
    }
}

/// A queued caller that needs a connection for itself.
pub(super) struct WaitingSingle<D: Dialect> {
    pub(super) ticket: u64,
    pub(super) reply: oneshot::Sender<Checkout<D>>,
}

/// Steps that found no idle connection, by kind, oldest first.
pub(crate) struct Queue<D: Dialect> {
    next_ticket: u64,
    pub(super) opens: VecDeque<Waiting<Draft, D>>,
    pub(super) settles: VecDeque<Waiting<SettleRequest, D>>,
    pub(super) peeks: VecDeque<Waiting<Digest, D>>,
    pub(super) singles: VecDeque<WaitingSingle<D>>,
}

/// The kind of a queued step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Open,
    Settle,
    Peek,
    Single,
}

impl<D: Dialect> Queue<D> {
    pub(super) fn new() -> Self {
        Self {
            next_ticket: 0,
            opens: VecDeque::new(),
            settles: VecDeque::new(),
            peeks: VecDeque::new(),
            singles: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.opens.len() + self.settles.len() + self.peeks.len() + self.singles.len()
    }

    pub(super) fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Returns the kind of the step that has waited longest, so that no kind starves another.
    pub(super) fn oldest(&self) -> Option<Verb> {
        let fronts = [
            (self.opens.front().map(|w| w.ticket), Verb::Open),
            (self.settles.front().map(|w| w.ticket), Verb::Settle),
            (self.peeks.front().map(|w| w.ticket), Verb::Peek),
            (self.singles.front().map(|w| w.ticket), Verb::Single),
        ];
        fronts
            .into_iter()
            .filter_map(|(ticket, verb)| Some((ticket?, verb)))
            .min_by_key(|f| f.0)
            .map(|f| f.1)
    }

    /// Takes up to [`BATCH`] steps with different digests, in order of arrival. A second step on a
    /// digest stays queued: in one statement, neither of the two would see the other's effect.
    pub(super) fn take<S: Queued<D>>(&mut self) -> Vec<Waiting<S, D>> {
        let line = S::line(self);
        let mut seen = HashSet::with_capacity(line.len().min(BATCH));
        let mut batch = Vec::with_capacity(line.len().min(BATCH));
        let mut passed = VecDeque::new();
        while batch.len() < BATCH {
            let Some(waiting) = line.pop_front() else { break };
            if waiting.reply.is_closed() {
                // The caller was cancelled before anything was sent, so the step is not run.
                continue;
            }
            if seen.insert(waiting.step.digest()) {
                batch.push(waiting);
            } else {
                passed.push_back(waiting);
            }
        }
        while let Some(waiting) = passed.pop_back() {
            line.push_front(waiting);
        }
        batch
    }
}
