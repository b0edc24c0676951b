//! Messages that were pulled and wait for somebody to take them.
//!
//! Taking is one step without a wait in it: a caller that goes away has taken nothing. The first to
//! come is the first to leave, so no partition starves another.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_nats::Subject;
use semel_core::inbox::SourceError;
use tokio::sync::Notify;

use super::NatsMessage;

/// Rounds of keeping alive after which a message that nobody took goes back.
const PATIENCE: u32 = 3;

pub(super) struct Shelf {
    inside: Mutex<Inside>,
    filled: Notify,
    emptied: Notify,
    /// Messages at most; `None` if those who fill it have their own bound.
    most: Option<usize>,
}

#[derive(Default)]
struct Inside {
    waiting: VecDeque<Waiting>,
    /// What whoever asks next is told, unless there is a message.
    trouble: Option<SourceError>,
    /// Messages went back, and nobody has asked since.
    deserted: bool,
}

struct Waiting {
    message: NatsMessage,
    rounds: u32,
}

/// What one round of keeping alive has to say to the server.
pub(super) struct Round {
    pub(super) keep: Vec<Subject>,
    pub(super) give_back: Vec<NatsMessage>,
}

impl Shelf {
    pub(super) fn new(most: Option<usize>) -> Self {
        Self { inside: Mutex::default(), filled: Notify::new(), emptied: Notify::new(), most }
    }

    /// Takes the oldest message, or hears what is wrong.
    pub(super) async fn take(&self) -> Result<NatsMessage, SourceError> {
        loop {
            // Before the look: it hears of everything that is put down after it.
            let filled = self.filled.notified();
            if let Some(taken) = self.look() {
                return taken;
            }
            filled.await;
        }
    }

    fn look(&self) -> Option<Result<NatsMessage, SourceError>> {
        let mut inside = self.inside();
        inside.deserted = false;
        let found = match inside.waiting.pop_front() {
            Some(waiting) => Some(Ok(waiting.message)),
            None => inside.trouble.take().map(Err),
        };
        drop(inside);
        self.emptied.notify_waiters();
        found
    }

    /// Waits until it is worth pulling, and says how many.
    pub(super) async fn room(&self) -> usize {
        loop {
            let emptied = self.emptied.notified();
            if let Some(room) = self.free() {
                return room;
            }
            emptied.await;
        }
    }

    fn free(&self) -> Option<usize> {
        let inside = self.inside();
        if inside.deserted {
            return None;
        }
        let Some(most) = self.most else { return Some(1) };
        let free = most.saturating_sub(inside.waiting.len());
        // Many in one pull rather than one in each.
        (free >= most.div_ceil(2)).then_some(free)
    }

    pub(super) fn put(&self, message: NatsMessage) {
        let mut inside = self.inside();
        inside.trouble = None;
        inside.waiting.push_back(Waiting { message, rounds: 0 });
        drop(inside);
        self.filled.notify_waiters();
    }

    /// Something is wrong; whoever waits hears of it.
    pub(super) fn fail(&self, trouble: SourceError) {
        self.inside().trouble = Some(trouble);
        self.filled.notify_waiters();
    }

    /// Nothing is wrong any more.
    pub(super) fn recover(&self) {
        self.inside().trouble = None;
    }

    /// One round of keeping alive. What has seen too many goes back to the server, where somebody
    /// else may be waiting for it.
    pub(super) fn round(&self) -> Round {
        let mut inside = self.inside();
        let (mut round, mut stay) =
            (Round { keep: Vec::new(), give_back: Vec::new() }, VecDeque::new());
        for mut waiting in inside.waiting.drain(..) {
            waiting.rounds += 1;
            if waiting.rounds > PATIENCE {
                round.give_back.push(waiting.message);
            } else {
                round.keep.push(waiting.message.reply().clone());
                stay.push_back(waiting);
            }
        }
        inside.waiting = stay;
        inside.deserted |= !round.give_back.is_empty();
        round
    }

    /// Everything, when nobody will come any more.
    pub(super) fn clear(&self) -> Vec<NatsMessage> {
        self.inside().waiting.drain(..).map(|waiting| waiting.message).collect()
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
