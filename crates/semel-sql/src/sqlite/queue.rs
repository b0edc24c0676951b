//! The queue of the one writer: which step is next, and how many may wait.
//!
//! Renewals come first (a late one costs a claim), then settles, then begins, a
//! transaction after them, a slice of sweeping and a task of the outbox with every group. Nothing is
//! executed here.

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

/// Steps that share a commit. Beyond this a group gains little and every step in it waits longer.
pub(super) const GROUP: usize = 64;

/// Steps that may wait in one priority. At a few thousand steps a second on a slow disk the last of
/// them still is served within its lease; more would only be refused later.
pub(super) const QUEUED: usize = 4096;

/// Why nothing begins while a lent transaction is overdue.
pub(super) const OVERDUE: &str = "a transaction has outlived its limit and still holds the database, so nothing was begun: its unit \
     was moved out of its work (into a spawned task?), or its thread is blocked; end it, and try again";

/// A step of the ledger.
#[derive(Debug)]
pub(super) enum Step {
    Renew(Vec<(Lease, Duration)>),
    Settle(Lease, Settlement),
    Open(Draft),
    Swap(Key, Version, Change),
    Sweep(u32),
    Outbox(Task),
    /// Writes something, to see whether that can be done, or takes it away.
    Probe {
        write: bool,
    },
}

impl Step {
    /// The name of the SPI's method, for errors.
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

    /// Whether it is still worth doing once no caller waits for its answer. An outcome is; a claim
    /// without a holder is not.
    const fn outlives_its_caller(&self) -> bool {
        matches!(self, Step::Settle(..) | Step::Outbox(Task::Mark(_)))
    }
}

/// What came of a [`Step`]; the variant is the step's.
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

/// A step with its ticket and the caller that waits for it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) step: Step,
    pub(super) reply: oneshot::Sender<Result<Answer>>,
    ticket: Ticket,
}

/// Names a waiting request, to withdraw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// A caller that wants the writer for a transaction.
pub(super) type Borrower = oneshot::Sender<Result<SqliteTransaction>>;

/// The writer's next turn.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Steps to commit together.
    pub(super) group: Vec<Request>,
    /// The caller that has the writer after them.
    pub(super) borrower: Option<Borrower>,
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// [`QUEUED`] requests of its kind wait already.
    Full,
    /// The writer has ended.
    Closed,
    /// The writer waits for a transaction that has outlived its limit.
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
struct Lines {
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

/// The queue. Independent of any runtime: callers may live on several.
#[derive(Debug, Default)]
pub(super) struct Queue {
    lines: Mutex<Lines>,
    arrival: Notify,
}

impl Queue {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        // Every change below is one push, pop or flag: a panic cannot leave half of one behind.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a step.
    pub(super) fn push(
        &self,
        step: Step,
        reply: oneshot::Sender<Result<Answer>>,
    ) -> std::result::Result<Ticket, Refused> {
        let mut lines = self.lines();
        if lines.closed {
            return Err(Refused::Closed);
        }
        lines.tickets += 1;
        let ticket = Ticket(lines.tickets);
        let priority = step.priority();
        if lines.overdue && priority == Priority::Begin {
            return Err(Refused::Overdue);
        }
        let line = lines.of(priority);
        if line.len() >= QUEUED {
            return Err(Refused::Full);
        }
        line.push_back(Request { step, reply, ticket });
        drop(lines);
        self.arrival.notify_one();
        Ok(ticket)
    }

    /// Queues a transaction.
    pub(super) fn push_borrower(&self, borrower: Borrower) -> std::result::Result<(), Refused> {
        let mut lines = self.lines();
        if lines.closed {
            return Err(Refused::Closed);
        }
        if lines.overdue {
            return Err(Refused::Overdue);
        }
        if lines.transact.len() >= QUEUED {
            return Err(Refused::Full);
        }
        lines.transact.push_back(borrower);
        drop(lines);
        self.arrival.notify_one();
        Ok(())
    }

    /// Removes a step from the queue. `false` if the writer has it: its answer will come.
    pub(super) fn withdraw(&self, ticket: Ticket) -> bool {
        let lines = &mut *self.lines();
        let Lines { begin, settle, renew, sweep, outbox, .. } = lines;
        [begin, settle, renew, sweep, outbox].into_iter().any(|line| {
            let before = line.len();
            line.retain(|request| request.ticket != ticket);
            line.len() < before
        })
    }

    /// Refuses everything that would begin, until [`admit`](Self::admit), and hands out what waits to
    /// begin. Renewals, outcomes and the outbox keep their places: they belong to work that has begun.
    pub(super) fn refuse(&self) -> (VecDeque<Request>, VecDeque<Borrower>) {
        let mut lines = self.lines();
        lines.overdue = true;
        (mem::take(&mut lines.begin), mem::take(&mut lines.transact))
    }

    /// Takes the [refusal](Self::refuse) back.
    pub(super) fn admit(&self) {
        self.lines().overdue = false;
    }

    /// Whether what would begin is [refused](Self::refuse).
    pub(super) fn is_overdue(&self) -> bool {
        self.lines().overdue
    }

    /// Refuses further steps; those that wait are still served.
    pub(super) fn close(&self) {
        self.lines().closed = true;
        self.arrival.notify_one();
    }

    /// Drops the steps that still wait; `false` when there are none. For a writer that is gone.
    pub(super) fn abandon(&self) -> bool {
        let work = self.lines().work();
        !work.group.is_empty() || work.borrower.is_some()
    }

    /// Waits for the next turn; `None` when the queue is closed and empty.
    pub(super) async fn next(&self) -> Option<Work> {
        loop {
            {
                let mut lines = self.lines();
                let work = lines.work();
                if !work.group.is_empty() || work.borrower.is_some() {
                    return Some(work);
                }
                if lines.closed {
                    return None;
                }
            }
            self.arrival.notified().await;
        }
    }
}

impl Lines {
    fn of(&mut self, priority: Priority) -> &mut VecDeque<Request> {
        match priority {
            Priority::Renew => &mut self.renew,
            Priority::Settle => &mut self.settle,
            Priority::Begin => &mut self.begin,
            Priority::Sweep => &mut self.sweep,
            Priority::Outbox => &mut self.outbox,
        }
    }

    /// At most [`GROUP`] steps in order of priority, and then one transaction: neither can keep the
    /// other waiting for more than a turn. One slice of sweeping and one task of the outbox ride with
    /// every group, so that the busiest store still sweeps and still publishes.
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

/// Drops a step whose caller left before it was begun.
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
        (queue.push(step, reply).expect("room"), answer)
    }

    fn operations(work: &Work) -> Vec<&'static str> {
        work.group.iter().map(|request| request.step.operation()).collect()
    }

    #[tokio::test]
    async fn a_renewal_overtakes_every_begin_that_waits() {
        let queue = Queue::default();
        let begins: Vec<_> = (0..100).map(|n| push(&queue, swap(n))).collect();
        let _sweep = push(&queue, Step::Sweep(1));
        let _settle = push(&queue, Step::Settle(lease(), Settlement::Removed));
        let _renew = push(&queue, Step::Renew(vec![]));
        let first = queue.next().await.expect("open");
        assert_eq!(operations(&first)[..3], ["renew", "settle", "swap"]);
        assert_eq!(first.group.len(), GROUP + 1, "the slice of sweeping rides along");
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
        queue.push_borrower(left).expect("room");
        queue.push_borrower(one).expect("room");
        let work = queue.next().await.expect("open");
        assert!(work.borrower.is_some_and(|borrower| !borrower.is_closed()));
        assert!(queue.next().await.expect("open").borrower.is_none());
    }

    #[tokio::test]
    async fn a_claim_whose_caller_left_is_not_made_but_an_outcome_is_recorded() {
        let queue = Queue::default();
        drop(push(&queue, swap(1)));
        drop(push(&queue, Step::Renew(vec![])));
        drop(push(&queue, Step::Settle(lease(), Settlement::Removed)));
        let work = queue.next().await.expect("open");
        assert_eq!(operations(&work), ["settle"]);
    }

    #[tokio::test]
    async fn the_line_has_an_end_and_a_closed_one_serves_what_waits() {
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
