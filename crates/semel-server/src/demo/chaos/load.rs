//! Callers who retry, who call several times at once, who hang up, and whose calls are made to fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::caller::{Answer, Caller};
use crate::demo::mischief::Mischief;
use crate::failure::Failure;

/// Callers at once, each with its own keys.
const CALLERS: usize = 12;
/// How long a key may have no answer.
const ANSWERED: Duration = Duration::from_secs(60);
/// How long a caller waits before it tries again, at first and at most: it is impatient.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// Within this many milliseconds a caller hangs up.
const HANGS_UP: u64 = 8;

/// The load, and what it has seen.
#[derive(Debug)]
pub(super) struct Load {
    caller: Caller,
    counts: Counts,
}

/// What a caller does with one key before it asks until it is answered.
#[derive(Clone, Copy, Debug)]
enum Plan {
    /// Asks once.
    Once,
    /// Asks several times at once.
    AtOnce,
    /// Hangs up.
    HangUp,
    /// Asks for a handler that fails.
    Fail,
    /// Asks for one that is slow, and asks again meanwhile.
    Slow,
}

/// What a caller does with its keys, in turn: the harmless more often. Callers begin at different
/// places, so that all of it goes on at any time.
const PLANS: [Plan; 13] = [
    Plan::Once,
    Plan::AtOnce,
    Plan::HangUp,
    Plan::AtOnce,
    Plan::Fail,
    Plan::Once,
    Plan::AtOnce,
    Plan::Slow,
    Plan::Once,
    Plan::HangUp,
    Plan::AtOnce,
    Plan::Fail,
    Plan::Once,
];

impl Load {
    pub(super) fn new(url: &str, tenant: &str) -> Result<Self, Failure> {
        Ok(Self { caller: Caller::new(url, tenant)?, counts: Counts::default() })
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Calls in the background. After `over` no key is begun, and those begun are seen to their end;
    /// after `stop` nothing is.
    pub(super) fn start(
        self: &Arc<Self>,
        over: &CancellationToken,
        stop: &CancellationToken,
    ) -> TaskTracker {
        let tasks = TaskTracker::new();
        for caller in 0..CALLERS {
            let (load, over, stop) = (Arc::clone(self), over.clone(), stop.clone());
            let calling = async move {
                for (number, plan) in (0_u64..).zip(PLANS.iter().cycle().skip(caller)) {
                    if over.is_cancelled() {
                        return;
                    }
                    load.one(&format!("{caller}-{number}"), *plan).await;
                }
            };
            tasks.spawn(async move { stop.run_until_cancelled(calling).await });
        }
        tasks.close();
        tasks
    }

    /// The whole story of one key.
    async fn one(&self, key: &str, plan: Plan) {
        let mut answers = Vec::new();
        match plan {
            Plan::Once => {}
            Plan::AtOnce => {
                let calls = (0..fastrand::u8(2..6)).map(|_| self.call(key, Mischief::None));
                answers.extend(join_all(calls).await);
            }
            Plan::HangUp => {
                let patience = Duration::from_millis(fastrand::u64(..HANGS_UP));
                let call = self.call(key, Mischief::None);
                match tokio::time::timeout(patience, call).await {
                    Ok(answer) => answers.push(answer),
                    Err(_) => add(&self.counts.hung_up, 1),
                }
            }
            Plan::Fail => answers.push(self.call(key, Mischief::Fail).await),
            Plan::Slow => {
                let calls = [Mischief::Slow, Mischief::None, Mischief::None];
                answers.extend(join_all(calls.map(|mischief| self.call(key, mischief))).await);
            }
        }
        let Some(answer) = self.until_answered(key).await else { return };
        answers.push(Some(answer));
        // And once more, as a client would that lost the answer.
        answers.push(self.call(key, Mischief::None).await);
        let mut heard = answers.into_iter().flatten();
        let first = heard.next();
        if !heard.all(|answer| Some(&answer) == first.as_ref()) {
            add(&self.counts.differing, 1);
        }
        add(&self.counts.answered, 1);
    }

    /// The order, or nothing if there is no answer for so long that there will be none: its key then
    /// has no order of ours, and the verdict says so if the database has one.
    async fn until_answered(&self, key: &str) -> Option<Bytes> {
        let (mut pause, end) = (RETRY.0, Instant::now() + ANSWERED);
        while Instant::now() < end {
            if let Some(answer) = self.call(key, Mischief::None).await {
                return Some(answer);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
        tracing::warn!("a key had no answer within {ANSWERED:?}");
        None
    }

    /// One call; gives the order, if that was the answer.
    async fn call(&self, key: &str, mischief: Mischief) -> Option<Bytes> {
        add(&self.counts.requests, 1);
        let (count, order) = match self.caller.place(key, mischief).await {
            Answer::Executed(order) => (&self.counts.executed, Some(order)),
            Answer::Replayed(order) => (&self.counts.replayed, Some(order)),
            Answer::InProgress => (&self.counts.in_progress, None),
            Answer::Failed => (&self.counts.failed, None),
        };
        add(count, 1);
        order
    }
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    requests: AtomicU64,
    executed: AtomicU64,
    replayed: AtomicU64,
    in_progress: AtomicU64,
    failed: AtomicU64,
    hung_up: AtomicU64,
    resent: AtomicU64,
    answered: AtomicU64,
    differing: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Calls made.
    pub(super) requests: u64,
    /// Answered with an order that was placed by this call.
    pub(super) executed: u64,
    /// Answered with an order that was placed before.
    pub(super) replayed: u64,
    /// Told that somebody else is at it.
    pub(super) in_progress: u64,
    /// Told that it failed, or cut off.
    pub(super) failed: u64,
    /// Left by their callers.
    pub(super) hung_up: u64,
    /// Events that were published again.
    pub(super) resent: u64,
    /// Keys that have their answer.
    pub(super) answered: u64,
    /// Keys that had two answers.
    pub(super) differing: u64,
}

impl Counts {
    /// So many events were published again.
    pub(super) fn resent(&self, events: u32) {
        add(&self.resent, events.into());
    }

    pub(super) fn read(&self) -> Counted {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counted {
            requests: read(&self.requests),
            executed: read(&self.executed),
            replayed: read(&self.replayed),
            in_progress: read(&self.in_progress),
            failed: read(&self.failed),
            hung_up: read(&self.hung_up),
            resent: read(&self.resent),
            answered: read(&self.answered),
            differing: read(&self.differing),
        }
    }
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}
