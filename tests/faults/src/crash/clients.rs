//! The clients: which keys they call, and the results that they got.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::Instant;

use semel_testkit::effects::{HistoryEntry, HistoryEvent};

use super::ExitCounts;
use crate::child::CallResult;
use crate::process::ChildHandle;

/// New keys per kill: enough to keep the clients busy, few enough to repeat all of them.
const KEYS_PER_KILL: usize = 20;
/// How many of the last keys are repeated.
const RECENT: usize = 40;
/// Concurrent calls after the faults.
const ABREAST: usize = 32;

/// The running children.
#[derive(Clone, Debug)]
pub(super) struct Slots(Arc<Mutex<Vec<Option<ChildHandle>>>>);

impl Slots {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(vec![None; super::CHILDREN])))
    }

    pub(super) fn put(&self, slot: usize, line: ChildHandle) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[slot] = Some(line);
    }

    fn any(&self) -> Option<ChildHandle> {
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots[fastrand::usize(..slots.len())].clone()
    }
}

/// The results of one key.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyHistory {
    /// Recorded results. A replayed one is kept once.
    done: Vec<HistoryEvent>,
    /// Whether a client got `Uncertain`.
    pub(super) uncertain: bool,
}

impl KeyHistory {
    /// Returns whether a client got a recorded result.
    pub(super) fn is_done(&self) -> bool {
        !self.done.is_empty()
    }
}

/// The results of all keys.
#[derive(Debug, Default)]
pub(super) struct CallLog {
    histories: Mutex<Vec<KeyHistory>>,
    calls: AtomicU64,
    panics: AtomicU64,
}

impl CallLog {
    fn lock(&self) -> MutexGuard<'_, Vec<KeyHistory>> {
        self.histories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the number of calls whose work panicked.
    pub(super) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Returns the number of keys for which `holds`.
    pub(super) fn count(&self, holds: impl Fn(&KeyHistory) -> bool) -> usize {
        self.lock().iter().filter(|history| holds(history)).count()
    }

    /// Returns the recorded results of all keys.
    pub(super) fn results(&self) -> Vec<HistoryEntry> {
        let histories = self.lock();
        let all = histories.iter().enumerate().map(|(at, history)| (id(at), history));
        all.flat_map(|(key, history)| {
            history.done.iter().map(move |event| entry(key.clone(), event.clone()))
        })
        .collect()
    }

    pub(super) fn unanswered(&self) -> Vec<usize> {
        let histories = self.lock();
        let open = |at: &usize| !histories[*at].is_done() && !histories[*at].uncertain;
        (0..histories.len()).filter(open).collect()
    }

    /// Adds a key.
    fn add(&self) -> usize {
        let mut histories = self.lock();
        histories.push(KeyHistory::default());
        histories.len() - 1
    }

    /// Chooses a new key, a recent one, or one without a result.
    fn pick(&self, kills: u32) -> Option<usize> {
        let mut histories = self.lock();
        let room = histories.len() < (kills as usize + 4) * KEYS_PER_KILL;
        if room && fastrand::u8(..10) < 6 {
            histories.push(KeyHistory::default());
            return Some(histories.len() - 1);
        }
        let recent = histories.len().saturating_sub(RECENT);
        let open = (0..histories.len()).rev().take(400).filter(|at| !histories[*at].is_done());
        let open: Vec<usize> = open.collect();
        match open.is_empty() || fastrand::bool() {
            true if histories.is_empty() => None,
            true => Some(fastrand::usize(recent..histories.len())),
            false => Some(open[fastrand::usize(..open.len())]),
        }
    }

    fn heard(&self, at: usize, answer: CallResult) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match &answer {
            CallResult::Failed(words) if words.contains("panicked by chance") => {
                self.panics.fetch_add(1, Ordering::Relaxed);
            }
            CallResult::Uncertain => self.lock()[at].uncertain = true,
            CallResult::Done { .. } | CallResult::InProgress | CallResult::Failed(_) => {}
        }
        // A result that the ledger did not record is marked as such and binds no later call.
        let CallResult::Done { value, replayed, recorded: true, .. } = answer else { return };
        let mut histories = self.lock();
        let (done, event) =
            (&mut histories[at].done, HistoryEvent::Done { outcome: value, replayed });
        if !replayed || !done.contains(&event) {
            done.push(event);
        }
    }
}

/// Returns an entry of the history of `key`; every call of a key is the same request.
pub(super) fn entry(key: String, event: HistoryEvent) -> HistoryEntry {
    HistoryEntry { client: String::new(), request: String::new(), key, event }
}

/// Returns the id of key number `at`.
pub(super) fn id(at: usize) -> String {
    format!("key-{at}")
}

/// Calls until the faults are over.
pub(super) async fn ask(
    log: Arc<CallLog>,
    slots: Slots,
    over: Arc<AtomicBool>,
    deaths: Arc<ExitCounts>,
) {
    while !over.load(Ordering::SeqCst) {
        let (Some(line), Some(at)) = (slots.any(), log.pick(deaths.kills())) else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let wait = if fastrand::bool() { Duration::ZERO } else { Duration::from_millis(60) };
        match line.ask(&id(at), wait).await {
            Ok(answer @ CallResult::Done { replayed: false, .. }) => log.heard(at, answer),
            // Replays without a pause would take the processors from the executions.
            Ok(other) => {
                log.heard(at, other);
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..10))).await;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(3)).await,
        }
    }
}

/// Calls with new keys until the work of one has panicked, in a child that is not killed: others may
/// not live long enough to return a panic.
pub(super) async fn ask_until_a_panic(log: &CallLog, line: &ChildHandle) {
    // One execution in 24 panics.
    for _ in 0..1_000 {
        if log.panics() > 0 {
            return;
        }
        let at = log.add();
        match line.ask(&id(at), Duration::ZERO).await {
            Ok(answer) => log.heard(at, answer),
            Err(_) => return,
        }
    }
}

/// Repeats every key without a result until it has one or the deadline has passed.
pub(super) async fn finish(log: &CallLog, line: &ChildHandle, deadline: Instant) {
    futures_util::stream::iter(log.unanswered())
        .for_each_concurrent(ABREAST, |at| async move {
            while Instant::now() < deadline {
                match line.ask(&id(at), Duration::ZERO).await {
                    Ok(answer @ (CallResult::Done { .. } | CallResult::Uncertain)) => {
                        return log.heard(at, answer);
                    }
                    Ok(other) => log.heard(at, other),
                    Err(_) => return,
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
}

/// Repeats every key once more.
pub(super) async fn ask_again(log: &CallLog, line: &ChildHandle) {
    futures_util::stream::iter(0..log.len())
        .for_each_concurrent(ABREAST, |at| async move {
            for _ in 0..50 {
                match line.ask(&id(at), Duration::from_secs(1)).await {
                    Ok(answer @ (CallResult::Done { .. } | CallResult::Uncertain)) => {
                        return log.heard(at, answer);
                    }
                    Ok(other) => log.heard(at, other),
                    Err(_) => return,
                }
            }
        })
        .await;
}
