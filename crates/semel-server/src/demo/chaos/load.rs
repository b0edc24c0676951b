//! Concurrent clients that retry, send duplicates at once, hang up, and ask for faults.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::caller::{Answer, Caller, Placed};
use super::responses::ResponseLog;
use crate::demo::fault::InjectedFault;
use crate::exit::ExitError;

/// Concurrent clients, each with its own keys.
const CALLERS: usize = 12;
/// How long a client waits for one response, which takes milliseconds.
const CALL: Duration = Duration::from_secs(20);
/// How long a client tries to get a response for a key.
const ANSWERED: Duration = Duration::from_secs(60);
/// The pause before a retry, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// A client hangs up within this many milliseconds.
const HANGS_UP: u64 = 8;

/// The load and its counts.
#[derive(Debug)]
pub(super) struct Load {
    caller: Caller,
    counts: Counts,
    responses: ResponseLog,
}

/// What a client does with a key before it retries until it has a response.
#[derive(Clone, Copy, Debug)]
enum Plan {
    /// Nothing.
    Once,
    /// Sends duplicates at once.
    AtOnce,
    /// Hangs up.
    HangUp,
    /// Asks for a failing handler.
    Fail,
    /// Asks for a slow handler, and sends duplicates meanwhile.
    Slow,
}

/// The plans of a client's keys, in turn. Clients start at different plans, so that all are under way at any
/// time.
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
    pub(super) fn new(url: &str, tenant: &str, responses: ResponseLog) -> Result<Self, ExitError> {
        Ok(Self { caller: Caller::new(url, tenant)?, counts: Counts::default(), responses })
    }

    /// Returns the responses by key.
    pub(super) fn responses(&self) -> &ResponseLog {
        &self.responses
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Starts the clients. After `over` no key is begun, and begun ones are finished; `stop` ends everything.
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

    /// Runs the plan of one key, and retries until it has a response.
    async fn one(&self, key: &str, plan: Plan) {
        self.responses.begun(key);
        let mut answers = Vec::new();
        match plan {
            Plan::Once => {}
            Plan::AtOnce => {
                let calls = (0..fastrand::u8(2..6)).map(|_| self.call(key, InjectedFault::None));
                answers.extend(join_all(calls).await);
            }
            Plan::HangUp => {
                let patience = Duration::from_millis(fastrand::u64(..HANGS_UP));
                let call = self.call(key, InjectedFault::None);
                match tokio::time::timeout(patience, call).await {
                    Ok(answer) => answers.push(answer),
                    Err(_) => self.counts.add(|counts| counts.hung_up += 1),
                }
            }
            Plan::Fail => answers.push(self.call(key, InjectedFault::Fail).await),
            Plan::Slow => {
                let calls = [InjectedFault::Slow, InjectedFault::None, InjectedFault::None];
                answers.extend(join_all(calls.map(|fault| self.call(key, fault))).await);
            }
        }
        let Some(answer) = self.until_answered(key).await else {
            self.counts.add(|counts| counts.unanswered += 1);
            return;
        };
        if let Some(order) = answer.id {
            self.responses.answered(key, order);
        }
        answers.push(Some(answer));
        // Once more, as a client that lost the response.
        answers.push(self.call(key, InjectedFault::None).await);
        let mut heard = answers.into_iter().flatten();
        let first = heard.next();
        let meant = first.as_ref().is_some_and(|first| first.id.is_some());
        if !meant || !heard.all(|answer| Some(&answer) == first.as_ref()) {
            self.counts.add(|counts| counts.differing += 1);
        }
        self.counts.add(|counts| counts.answered += 1);
    }

    /// Retries until there is an order; `None` after [`ANSWERED`].
    async fn until_answered(&self, key: &str) -> Option<Placed> {
        let (mut pause, end) = (RETRY.0, Instant::now() + ANSWERED);
        while Instant::now() < end {
            if let Some(answer) = self.call(key, InjectedFault::None).await {
                return Some(answer);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
        tracing::warn!(key, "no response within {ANSWERED:?}");
        None
    }

    /// Makes one call; returns the order, if the response has one.
    async fn call(&self, key: &str, fault: InjectedFault) -> Option<Placed> {
        self.counts.add(|counts| counts.requests += 1);
        let call = self.caller.place(key, fault);
        // A call that hangs must not block the end of the load.
        let Ok(answer) = tokio::time::timeout(CALL, call).await else {
            self.counts.add(|counts| counts.hung_up += 1);
            return None;
        };
        self.counts.add(|counts| match &answer {
            Answer::Executed(_) => counts.executed += 1,
            Answer::Replayed(_) => counts.replayed += 1,
            Answer::InProgress => counts.in_progress += 1,
            Answer::Failed => counts.failed += 1,
        });
        match answer {
            Answer::Executed(order) | Answer::Replayed(order) => Some(order),
            Answer::InProgress | Answer::Failed => None,
        }
    }
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Calls made.
    pub(super) requests: u64,
    /// Responses with an order that this call placed.
    pub(super) executed: u64,
    /// Responses with an order that was placed before.
    pub(super) replayed: u64,
    /// Responses that the operation is in progress.
    pub(super) in_progress: u64,
    /// Other responses, and failed calls.
    pub(super) failed: u64,
    /// Calls that the client dropped.
    pub(super) hung_up: u64,
    /// Events that were published again.
    pub(super) resent: u64,
    /// Keys with a response.
    pub(super) answered: u64,
    /// Keys without a response.
    pub(super) unanswered: u64,
    /// Keys with differing responses, or one for another product.
    pub(super) differing: u64,
}

/// The counts so far.
#[derive(Debug, Default)]
pub(super) struct Counts(Mutex<Counted>);

impl Counts {
    pub(super) fn add(&self, change: impl FnOnce(&mut Counted)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn read(&self) -> Counted {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the URL of a server that accepts connections and never answers.
    async fn silent() -> (String, tokio_util::task::AbortOnDropHandle<()>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let taking = tokio::spawn(async move {
            let mut taken = Vec::new();
            while let Ok(connection) = listener.accept().await {
                taken.push(connection);
            }
        });
        (url, tokio_util::task::AbortOnDropHandle::new(taking))
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_never_answers_ends_the_load_with_keys_that_have_no_answer() {
        let (url, _taking) = silent().await;
        let load = Arc::new(Load::new(&url, "t", ResponseLog::kept()).unwrap());
        let (over, stop) = (CancellationToken::new(), CancellationToken::new());
        let working = load.start(&over, &stop);
        tokio::time::sleep(CALL / 2).await;
        over.cancel();
        // The slowest: a call of its plan, those that ask until it is answered, and no more.
        tokio::time::timeout(ANSWERED + 3 * CALL, working.wait()).await.expect("it ends");
        let counted = load.counts().read();
        assert_eq!((counted.answered, counted.unanswered), (0, CALLERS as u64));
        assert_eq!(counted.requests, counted.hung_up, "{counted:?}");
    }
}
