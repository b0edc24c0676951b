//! The buffer of messages that were pulled and that no caller has taken yet.
//!
//! Taking a message is one step without a wait in it: a cancelled caller has taken nothing.
//! Messages are taken in the order in which they arrived, so no partition starves another.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_nats::Subject;
use semel_core::inbox::SourceError;
use tokio::sync::Notify;

use super::NatsMessage;

/// The number of rounds of keeping alive after which a message that no caller took is given back.
const PATIENCE: u32 = 3;

pub(super) struct Buffer {
    inside: Mutex<Inside>,
    filled: Notify,
    emptied: Notify,
    /// The largest number of messages; `None` if the pumps have their own limit.
    most: Option<usize>,
}

#[derive(Default)]
struct Inside {
    waiting: VecDeque<Waiting>,
    /// The error that the next caller gets, unless there is a message.
    trouble: Option<SourceError>,
    /// Whether messages were given back and no caller has taken one since. Nothing is pulled then.
    has_no_caller: bool,
}

struct Waiting {
    message: NatsMessage,
    rounds: u32,
}

/// The messages to keep alive and those to give back in one round.
pub(super) struct Round {
    pub(super) keep: Vec<Subject>,
    pub(super) give_back: Vec<NatsMessage>,
}

impl Buffer {
    pub(super) fn new(most: Option<usize>) -> Self {
        Self { inside: Mutex::default(), filled: Notify::new(), emptied: Notify::new(), most }
    }

    /// Takes the oldest message, or the last error.
    pub(super) async fn take(&self) -> Result<NatsMessage, SourceError> {
        loop {
            // Registered before the check, so that no message that arrives after it is missed.
            let filled = self.filled.notified();
            if let Some(taken) = self.look() {
                return taken;
            }
            filled.await;
        }
    }

    fn look(&self) -> Option<Result<NatsMessage, SourceError>> {
        let mut inside = self.inside();
        inside.has_no_caller = false;
        let found = match inside.waiting.pop_front() {
            Some(waiting) => Some(Ok(waiting.message)),
            None => inside.trouble.take().map(Err),
        };
        drop(inside);
        self.emptied.notify_waiters();
        found
    }

    /// Waits until a pull is worthwhile, and returns how many messages fit into the buffer.
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
        if inside.has_no_caller {
            return None;
        }
        let Some(most) = self.most else { return Some(1) };
        let free = most.saturating_sub(inside.waiting.len());
        // Waits until half of the buffer is free, so that one pull gets many messages.
        (free >= most.div_ceil(2)).then_some(free)
    }

    pub(super) fn put(&self, message: NatsMessage) {
        let mut inside = self.inside();
        inside.trouble = None;
        inside.waiting.push_back(Waiting { message, rounds: 0 });
        drop(inside);
        self.filled.notify_waiters();
    }

    /// Records an error and wakes the waiting callers.
    pub(super) fn fail(&self, trouble: SourceError) {
        self.inside().trouble = Some(trouble);
        self.filled.notify_waiters();
    }

    /// Clears the error.
    pub(super) fn recover(&self) {
        self.inside().trouble = None;
    }

    /// Runs one round of keeping alive. A message that has been through too many rounds goes back
    /// to the server, where another source may be waiting for it.
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
        inside.has_no_caller |= !round.give_back.is_empty();
        round
    }

    /// Removes and returns all messages.
    pub(super) fn clear(&self) -> Vec<NatsMessage> {
        self.inside().waiting.drain(..).map(|waiting| waiting.message).collect()
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
