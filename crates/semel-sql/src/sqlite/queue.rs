//! The queue of the writer: selects the next steps, and limits how many may wait.
//!
//! Renewals come first (a late one costs a claim), then settles, then steps that begin something,
//! then one transaction. Every group also contains at most one slice of sweeping and one task of
//! the outbox. Nothing is executed here.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::claim::Lease;
use semel_core::key::Key;
use semel_core::record::Version;
use semel_core::store::{
    Change, Draft, Opened, Renewed, Result, Settled, Settlement, Swapped, Swept,
};
use tokio::sync::{Notify, oneshot};

use super::task::{Task, TaskAnswer};
use super::transaction::SqliteTransaction;

/// The largest number of steps that share a commit. A larger group gains little, and every step in
/// it waits longer.
pub(super) const GROUP: usize = 64;

/// The largest number of steps that may wait in one priority. At a few thousand steps a second on a
/// slow disk, the last of them is still served within its lease; more would only be refused later.
pub(super) const QUEUED: usize = 4096;

/// The error for steps that cannot begin because a lent transaction has exceeded its limit.
pub(super) const OVERDUE: &str = "a transaction has outlived its limit and still holds the database, so nothing was begun: its unit \
     was moved out of its work (into a spawned task?), or its thread is blocked; end it, and try again";

/// A step for the writer.
#[derive(Debug)]
pub(super) enum Step {
    Renew(Vec<(Lease, Duration)>),
    Settle(Lease, Settlement),
    Open(Draft),
    Swap(Key, Version, Change),
    Sweep(u32),
    Outbox(Task),
    /// Writes a probe, to find out whether the file can be written, or removes it.
    Probe {
        write: bool,
    },
}

impl Step {
    /// Returns the name of the operation, for errors.
    pub(super) const fn operation(&self) -> &'static str {
        match self {
            Step::Renew(_) => "renew",
            Step::Settle(..) => "settle",
            Step::Open(_) => "open",
            Step::Swap(..) => "swap",
            Step::Sweep(_) => "sweep",
            Step::Outbox(task) => task.operation(),
            Step::Probe { .. } => "check",
        }
    }

    const fn priority(&self) -> Priority {
        match self {
            Step::Renew(_) => Priority::Renew,
            Step::Settle(..) => Priority::Settle,
            Step::Open(_) | Step::Swap(..) => Priority::Begin,
            Step::Sweep(_) => Priority::Sweep,
            Step::Outbox(_) => Priority::Outbox,
            Step::Probe { .. } => Priority::Begin,
        }
    }

    /// Returns whether the step is still run after its caller was cancelled: an outcome is still
    /// recorded, but a claim without a holder is not made.
    const fn outlives_its_caller(&self) -> bool {
        matches!(self, Step::Settle(..) | Step::Outbox(Task::Mark(_)))
    }
}

/// The answer to a [`Step`], in the variant for that step.
#[derive(Debug)]
pub(super) enum Answer {
    Renewed(Vec<Renewed>),
    Settled(Settled),
    Opened(Opened),
    Swapped(Swapped),
    Swept(Swept),
    Outbox(TaskAnswer),
    Probed,
}

/// A queued step, with its ticket and the channel for its answer.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) step: Step,
    pub(super) reply: oneshot::Sender<Result<Answer>>,
    ticket: Ticket,
}

/// Identifies a queued request, so that it can be withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// The channel to a caller that waits for the writer's connection, to run a transaction.
pub(super) type Borrower = oneshot::Sender<Result<SqliteTransaction>>;

/// The work of the writer's next turn.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// The steps to commit together.
    pub(super) group: Vec<Request>,
    /// The caller that gets a transaction after the group.
    pub(super) borrower: Option<Borrower>,
}

/// Why a request was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// [`QUEUED`] requests of the same priority wait already.
    Full,
    /// The writer has ended.
    Closed,
    /// The writer waits for a transaction that has exceeded its limit.
    Overdue,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Priority {
    Renew,
    Settle,
    Begin,
    Sweep,
    Outbox,
}

#[derive(Debug, Default)]
struct Queues {
    renew: VecDeque<Request>,
    settle: VecDeque<Request>,
    begin: VecDeque<Request>,
    sweep: VecDeque<Request>,
    outbox: VecDeque<Request>,
    transact: VecDeque<Borrower>,
    tickets: u64,
    closed: bool,
    overdue: bool,
}

/// The queue of the writer. Independent of any runtime: callers may be on several.
#[derive(Debug, Default)]
pub(super) struct Queue {
    queues: Mutex<Queues>,
    arrival: Notify,
}

impl Queue {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        // Every change under the lock is one push, pop or flag: a panic cannot leave half of one
        // behind.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a step.
    pub(super) fn push(
        &self,
        step: Step,
        reply: oneshot::Sender<Result<Answer>>,
    ) -> std::result::Result<Ticket, Refused> {
        let mut queues = self.queues();
        if queues.closed {
            return Err(Refused::Closed);
        }
        queues.tickets += 1;
        let ticket = Ticket(queues.tickets);
        let priority = step.priority();
        if queues.overdue && priority == Priority::Begin {
            return Err(Refused::Overdue);
        }
        let line = queues.of(priority);
        if line.len() >= QUEUED {
            return Err(Refused::Full);
        }
        line.push_back(Request { step, reply, ticket });
        drop(queues);
        self.arrival.notify_one();
        Ok(ticket)
    }

    /// Queues a caller that waits for a transaction.
    pub(super) fn push_borrower(&self, borrower: Borrower) -> std::result::Result<(), Refused> {
        let mut queues = self.queues();
        if queues.closed {
            return Err(Refused::Closed);
        }
        if queues.overdue {
            return Err(Refused::Overdue);
        }
        if queues.transact.len() >= QUEUED {
            return Err(Refused::Full);
        }
        queues.transact.push_back(borrower);
        drop(queues);
        self.arrival.notify_one();
        Ok(())
    }

    /// Removes a step from the queue. Returns `false` if the writer has already taken it: then its
    /// answer will come.
    pub(super) fn withdraw(&self, ticket: Ticket) -> bool {
        let queues = &mut *self.queues();
        let Queues { begin, settle, renew, sweep, outbox, .. } = queues;
        [begin, settle, renew, sweep, outbox].into_iter().any(|line| {
            let before = line.len();
            line.retain(|request| request.ticket != ticket);
            line.len() < before
        })
    }

    /// Refuses steps that begin something until [`admit`](Self::admit) is called, and returns those
    /// that are queued. Renewals, outcomes and tasks of the outbox stay queued: they belong to work
    /// that has begun.
    pub(super) fn refuse(&self) -> (VecDeque<Request>, VecDeque<Borrower>) {
        let mut queues = self.queues();
        queues.overdue = true;
        (mem::take(&mut queues.begin), mem::take(&mut queues.transact))
    }

    /// Ends the [refusal](Self::refuse).
    pub(super) fn admit(&self) {
        self.queues().overdue = false;
    }

    /// Returns whether steps that begin something are [refused](Self::refuse).
    pub(super) fn is_overdue(&self) -> bool {
        self.queues().overdue
    }

    /// Refuses further steps; those that wait are still served.
    pub(super) fn close(&self) {
        self.queues().closed = true;
        self.arrival.notify_one();
    }

    /// Drops a group of the steps that still wait, because the writer is gone. Returns `false` if
    /// there were none.
    pub(super) fn abandon(&self) -> bool {
        let work = self.queues().work();
        !work.group.is_empty() || work.borrower.is_some()
    }

    /// Waits for the next work of the writer. Returns `None` when the queue is closed and empty.
    pub(super) async fn next(&self) -> Option<Work> {
        loop {
            {
                let mut queues = self.queues();
                let work = queues.work();
                if !work.group.is_empty() || work.borrower.is_some() {
                    return Some(work);
                }
                if queues.closed {
                    return None;
                }
            }
            self.arrival.notified().await;
        }
    }
}

impl Queues {
    fn of(&mut self, priority: Priority) -> &mut VecDeque<Request> {
        match priority {
            Priority::Renew => &mut self.renew,
            Priority::Settle => &mut self.settle,
            Priority::Begin => &mut self.begin,
            Priority::Sweep => &mut self.sweep,
            Priority::Outbox => &mut self.outbox,
        }
    }

    /// Takes at most [`GROUP`] steps in the order of their priority, and then one transaction:
    /// neither can delay the other by more than a turn. One slice of sweeping and one task of the
    /// outbox are added to every group, so that even the busiest store sweeps and publishes.
    fn work(&mut self) -> Work {
        let mut group = Vec::new();
        for priority in [Priority::Renew, Priority::Settle, Priority::Begin] {
            let line = self.of(priority);
            while group.len() < GROUP {
                let Some(request) = line.pop_front() else { break };
                group.extend(wanted(request));
            }
        }
        for line in [&mut self.outbox, &mut self.sweep] {
            while let Some(request) = line.pop_front() {
                if let Some(request) = wanted(request) {
                    group.push(request);
                    break;
                }
            }
        }
        let mut borrower = None;
        while borrower.is_none()
            && let Some(next) = self.transact.pop_front()
        {
            borrower = (!next.is_closed()).then_some(next);
        }
        Work { group, borrower }
    }
}

/// Drops a step whose caller was cancelled before the step began.
fn wanted(request: Request) -> Option<Request> {
    (request.step.outlives_its_caller() || !request.reply.is_closed()).then_some(request)
}

#[cfg(test)]
mod tests {
    use semel_core::claim::{AttemptId, Fence};
    use semel_core::key::Digest;

    use super::*;

    fn lease() -> Lease {
        let digest = Digest::from_bytes(&[7; 32]).expect("32 bytes");
        Lease { digest, fence: Fence(1), attempt_id: AttemptId::generate() }
    }

    fn swap(n: u32) -> Step {
        let key = Key::command("t", "s", &n.to_string()).expect("valid");
        let judged = Version { attempt_id: AttemptId::generate(), number: 1 };
        Step::Swap(key, judged, Change::Redrive)
    }

    type Waiting = oneshot::Receiver<Result<Answer>>;

    fn push(queue: &Queue, step: Step) -> (Ticket, Waiting) {
        let (reply, answer) = oneshot::channel();
        (queue.push(step, reply).expect("not full"), answer)
    }

    fn operations(work: &Work) -> Vec<&'static str> {
        work.group.iter().map(|request| request.step.operation()).collect()
    }

    #[tokio::test]
    async fn a_renewal_runs_before_all_waiting_claims() {
        let queue = Queue::default();
        let begins: Vec<_> = (0..100).map(|n| push(&queue, swap(n))).collect();
        let _sweep = push(&queue, Step::Sweep(1));
        let _settle = push(&queue, Step::Settle(lease(), Settlement::Removed));
        let _renew = push(&queue, Step::Renew(vec![]));
        let first = queue.next().await.expect("open");
        assert_eq!(operations(&first)[..3], ["renew", "settle", "swap"]);
        assert_eq!(first.group.len(), GROUP + 1, "the group also contains the slice of sweeping");
        assert_eq!(operations(&first).last(), Some(&"sweep"));
        let second = queue.next().await.expect("open");
        assert_eq!(second.group.len(), begins.len() - (GROUP - 2));
    }

    #[tokio::test]
    async fn a_transaction_waits_for_one_group_and_not_for_all() {
        let queue = Queue::default();
        let _begins: Vec<_> = (0..200).map(|n| push(&queue, swap(n))).collect();
        let (one, _waiting) = oneshot::channel();
        let (left, gone) = oneshot::channel();
        drop(gone);
        queue.push_borrower(left).expect("not full");
        queue.push_borrower(one).expect("not full");
        let work = queue.next().await.expect("open");
        assert!(work.borrower.is_some_and(|borrower| !borrower.is_closed()));
        assert!(queue.next().await.expect("open").borrower.is_none());
    }

    #[tokio::test]
    async fn a_claim_of_a_cancelled_caller_is_not_made_but_an_outcome_is_recorded() {
        let queue = Queue::default();
        drop(push(&queue, swap(1)));
        drop(push(&queue, Step::Renew(vec![])));
        drop(push(&queue, Step::Settle(lease(), Settlement::Removed)));
        let work = queue.next().await.expect("open");
        assert_eq!(operations(&work), ["settle"]);
    }

    #[tokio::test]
    async fn a_full_queue_refuses_steps_and_a_closed_one_serves_those_that_wait() {
        let queue = Queue::default();
        let waiting: Vec<_> = (0..QUEUED).map(|n| push(&queue, swap(n as u32))).collect();
        let (reply, _) = oneshot::channel();
        assert_eq!(queue.push(swap(0), reply), Err(Refused::Full));
        let _renewal_still_fits = push(&queue, Step::Renew(vec![]));
        assert!(queue.withdraw(waiting[5].0));
        assert!(!queue.withdraw(waiting[5].0));
        queue.close();
        let (reply, _) = oneshot::channel();
        assert_eq!(queue.push(swap(0), reply), Err(Refused::Closed));
        let mut served = 0;
        while let Some(work) = queue.next().await {
            served += work.group.len();
        }
        assert_eq!(served, QUEUED);
    }
}
