//! Answers that a door makes itself: what the ledger keeps of one, and what its caller gets.
//!
//! A function's result is kept or it is an error. A door's answer is neither: a `422` of a handler
//! is delivered and forgotten, a `503` is delivered and counts as a failure, an answer too large to
//! keep is delivered once. The door says which, the executor does it.

use std::future::Future;
use std::time::Duration;

use super::codec::{Codec, Unencodable};
use super::command::Command;
use super::execution::{Error, Execution, Receipt};
use super::run::shown;
use super::unit::Unit;
use super::{Context, Executor, Inner};
use crate::claim::OperationId;
use crate::outcome::{Outcome, Recorded};
use crate::store::{Store, TransactionalStore};

/// How a door wants its claim settled, and what its caller gets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Finish<A> {
    /// Done: `outcome` answers every repeat, or says that there is too much of it to keep.
    Complete {
        /// What this caller gets.
        answer: A,
        /// What the ledger keeps.
        outcome: Recorded,
    },
    /// Refused, and that is the answer: it is kept as a completed one is, but what the work wrote
    /// in its transaction is rolled back first. After an earlier attempt it counts as a failure
    /// instead: that attempt may be what it is about ("exists already"), and to keep it would send
    /// the caller to a new key.
    Refuse {
        /// What this caller gets.
        answer: A,
        /// What the ledger keeps.
        outcome: Recorded,
    },
    /// Failed, by the command's failure policy: visible, counted, and run again when it is due.
    Fail {
        /// What this caller gets.
        answer: A,
        /// What operators read.
        error: String,
    },
    /// Broke off, and nobody here knows what it did: as a crash is, by the command's crash policy.
    /// Run again it counts as a failure; held it is uncertain until somebody resolves it; verified
    /// it waits for its lease to end, and the next caller asks.
    Doubt {
        /// What this caller gets.
        answer: A,
        /// What operators read.
        error: String,
    },
    /// Failed, and no retry would help: dead at once, until an operator decides.
    Bury {
        /// What this caller gets.
        answer: A,
        /// What operators read.
        error: String,
    },
    /// Refused without effect: the key is free again, also for another request. Where an earlier
    /// attempt failed or crashed, or this one asked for a downstream key, there may be an effect
    /// after all: the operation keeps its id, and the next caller runs it again.
    Release {
        /// What this caller gets.
        answer: A,
    },
}

/// What a door tells its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Served<A> {
    /// This call ran the work; this is its answer, kept or not.
    Executed {
        /// The work's own answer.
        answer: A,
        /// How it came about, where the answer is what repeats will get.
        receipt: Option<Receipt>,
    },
    /// An earlier call ran the work; this is what the ledger kept.
    Replayed {
        /// What was kept.
        outcome: Outcome,
        /// How it came about.
        receipt: Receipt,
    },
    /// Somebody is running it now.
    InProgress {
        /// The operation, where it is known yet.
        operation_id: Option<OperationId>,
        /// How long the holder's lease still runs, where it is known.
        lease_remaining: Option<Duration>,
    },
}

impl<A> Finish<A> {
    /// The same settlement with another answer.
    pub fn map<B>(self, f: impl FnOnce(A) -> B) -> Finish<B> {
        match self {
            Finish::Complete { answer, outcome } => Finish::Complete { answer: f(answer), outcome },
            Finish::Refuse { answer, outcome } => Finish::Refuse { answer: f(answer), outcome },
            Finish::Fail { answer, error } => Finish::Fail { answer: f(answer), error },
            Finish::Doubt { answer, error } => Finish::Doubt { answer: f(answer), error },
            Finish::Bury { answer, error } => Finish::Bury { answer: f(answer), error },
            Finish::Release { answer } => Finish::Release { answer: f(answer) },
        }
    }
}

impl<S: Store> Executor<S> {
    /// As [`run_outcome`](Self::run_outcome), for doors: the work says how its claim is settled.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Store`] means that nothing ran.
    pub fn serve<A, F, Fut>(
        &self,
        command: Command,
        work: F,
    ) -> impl Future<Output = Result<Served<A>, Error>> + Send
    where
        A: Send + 'static,
        F: FnOnce(Context) -> Fut + Send + 'static,
        Fut: Future<Output = Finish<A>> + Send + 'static,
    {
        // Not in the future, which would keep room for the command as well as for the order.
        let order = self.0.resolve(command);
        async move {
            let order = order?;
            self.0.start_sweeping();
            let work = |context: Context| async move {
                let settlement = work(context.clone()).await;
                made(settlement, &context, false)
            };
            let attempt = Inner::attempt::<Door, _, _, _, _>;
            Served::from(self.0.drive::<Door, _, _, _, _, _>(order, work, attempt).await)
        }
    }

    /// As [`transact`](Self::transact), for doors: a completed answer commits with the work's own
    /// writes, any other rolls them back.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::ResultTooLarge`] where the answer cannot be kept: nothing was
    /// committed.
    pub async fn serve_transact<A, F, Fut>(
        &self,
        command: Command,
        work: F,
    ) -> Result<Served<A>, Error>
    where
        S: TransactionalStore,
        A: Send + 'static,
        F: FnOnce(Unit<S>) -> Fut + Send + 'static,
        Fut: Future<Output = Finish<A>> + Send + 'static,
    {
        let order = self.0.accept(command)?;
        order.survives_a_crash(order.claim_first)?;
        let work = |unit: Unit<S>| async move {
            let context = unit.context().clone();
            made(work(unit).await, &context, true)
        };
        let attempt = Inner::attempt_transact::<Door, _, _, _, _>;
        Served::from(self.0.drive::<Door, _, _, _, _, _>(order, work, attempt).await)
    }
}

impl<A> Served<A> {
    fn from(result: Result<Execution<Made<A>>, Error<Unkept<A>>>) -> Result<Self, Error> {
        Ok(match result {
            Ok(Execution::InProgress { operation_id, lease_remaining }) => {
                Served::InProgress { operation_id, lease_remaining }
            }
            Ok(Execution::Executed { value, receipt } | Execution::Replayed { value, receipt }) => {
                match value {
                    Made::Here { answer, .. } => {
                        Served::Executed { answer, receipt: Some(receipt) }
                    }
                    Made::Before(outcome) => Served::Replayed { outcome, receipt },
                }
            }
            Err(error) => match error.narrow() {
                Ok(Unkept { answer, .. }) => Served::Executed { answer, receipt: None },
                Err(error) => return Err(error),
            },
        })
    }
}

/// An answer as the executor's roads carry it.
enum Made<A> {
    /// By this call.
    Here { answer: A, outcome: Option<Recorded> },
    /// By an earlier one.
    Before(Outcome),
}

/// An answer whose work has no effect to keep.
struct Unkept<A> {
    answer: A,
    end: End,
}

/// What becomes of a claim whose work has no result.
#[derive(Clone)]
pub(super) enum End {
    Fail(String),
    Doubt(String),
    Bury(String),
    /// The key is free again; whether the operation is `forgotten` too.
    Release {
        forgotten: bool,
    },
    Refuse(Recorded),
}

/// The road that a settlement takes. A refusal has effects to undo only where it was `transacted`.
fn made<A>(
    settlement: Finish<A>,
    context: &Context,
    transacted: bool,
) -> Result<Made<A>, Unkept<A>> {
    let (answer, end) = match settlement {
        Finish::Complete { answer, outcome } => {
            return Ok(Made::Here { answer, outcome: Some(outcome) });
        }
        Finish::Refuse { answer, .. } if context.attempt() > 1 => {
            let error = "refused, after an earlier attempt that may have had effects";
            (answer, End::Fail(error.to_owned()))
        }
        Finish::Refuse { answer, outcome } if !transacted => {
            return Ok(Made::Here { answer, outcome: Some(outcome) });
        }
        Finish::Refuse { answer, outcome } => (answer, End::Refuse(outcome)),
        Finish::Fail { answer, error } => (answer, End::Fail(error)),
        Finish::Doubt { answer, error } => (answer, End::Doubt(error)),
        Finish::Bury { answer, error } => (answer, End::Bury(error)),
        Finish::Release { answer } => {
            (answer, End::Release { forgotten: !context.is_known_outside() })
        }
    };
    Err(Unkept { answer, end })
}

/// Results that carry their own outcome.
struct Door;

impl<A: Send + 'static> Codec<Made<A>> for Door {
    fn encode(value: Made<A>) -> Result<(Recorded, Made<A>), Unencodable<Made<A>>> {
        match value {
            Made::Here { answer, outcome: Some(outcome) } => {
                Ok((outcome, Made::Here { answer, outcome: None }))
            }
            Made::Before(outcome) => Ok((Recorded::Whole(outcome.clone()), Made::Before(outcome))),
            value @ Made::Here { outcome: None, .. } => {
                Err(Unencodable { value, reason: "the answer was settled before".to_owned() })
            }
        }
    }

    fn decode(outcome: &Outcome) -> Result<Made<A>, String> {
        Ok(Made::Before(outcome.clone()))
    }
}

/// Why work has no result, as far as settling its claim goes.
pub(super) trait Fault {
    /// What becomes of the claim.
    fn end(&self) -> End;
}

impl<E: std::fmt::Display> Fault for E {
    fn end(&self) -> End {
        End::Fail(shown(self))
    }
}

impl<A> Fault for Unkept<A> {
    fn end(&self) -> End {
        self.end.clone()
    }
}
