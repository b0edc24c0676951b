//! The clients: what they asked, what they were told, and what they ask next.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::Deaths;
use crate::child::Answer;
use crate::subject::Line;

/// New keys per kill: enough to keep the clients busy, few enough to ask for all of them again.
const KEYS_PER_KILL: usize = 20;
/// How far back old keys are asked for.
const RECENT: usize = 40;
/// Calls at a time once the faults are over.
const ABREAST: usize = 32;

/// The children that can be asked.
#[derive(Clone, Debug)]
pub(super) struct Slots(Arc<Mutex<Vec<Option<Line>>>>);

impl Slots {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(vec![None; super::CHILDREN])))
    }

    pub(super) fn put(&self, slot: usize, line: Line) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[slot] = Some(line);
    }

    fn any(&self) -> Option<Line> {
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots[fastrand::usize(..slots.len())].clone()
    }
}

/// One key's history, as its clients saw it.
#[derive(Clone, Debug, Default)]
pub(super) struct Story {
    /// The first recorded answer.
    pub(super) answer: Option<String>,
    /// Recorded answers that are not the first.
    pub(super) others: Vec<String>,
    /// Values of executions that the ledger took.
    pub(super) recorded: HashSet<String>,
    /// Whether a client was told that the outcome is not known.
    pub(super) uncertain: bool,
}

/// What all clients know together.
#[derive(Debug, Default)]
pub(super) struct Book {
    stories: Mutex<Vec<Story>>,
    calls: AtomicU64,
    panics: AtomicU64,
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Vec<Story>> {
        self.stories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Calls whose work panicked.
    pub(super) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    pub(super) fn stories(&self) -> Vec<Story> {
        self.lock().clone()
    }

    pub(super) fn unanswered(&self) -> Vec<usize> {
        let stories = self.lock();
        let open = |at: &usize| stories[*at].answer.is_none() && !stories[*at].uncertain;
        (0..stories.len()).filter(open).collect()
    }

    /// A new key.
    fn add(&self) -> usize {
        let mut stories = self.lock();
        stories.push(Story::default());
        stories.len() - 1
    }

    /// A new key, a recent one, or one that still has no answer.
    fn pick(&self, kills: u32) -> Option<usize> {
        let mut stories = self.lock();
        let room = stories.len() < (kills as usize + 4) * KEYS_PER_KILL;
        if room && fastrand::u8(..10) < 6 {
            stories.push(Story::default());
            return Some(stories.len() - 1);
        }
        let recent = stories.len().saturating_sub(RECENT);
        let open = (0..stories.len()).rev().take(400).filter(|at| stories[*at].answer.is_none());
        let open: Vec<usize> = open.collect();
        match open.is_empty() || fastrand::bool() {
            true if stories.is_empty() => None,
            true => Some(fastrand::usize(recent..stories.len())),
            false => Some(open[fastrand::usize(..open.len())]),
        }
    }

    fn heard(&self, at: usize, answer: Answer) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match &answer {
            Answer::Failed(words) if words.contains("panicked by chance") => {
                self.panics.fetch_add(1, Ordering::Relaxed);
            }
            Answer::Uncertain => self.lock()[at].uncertain = true,
            Answer::Done { .. } | Answer::InProgress | Answer::Failed(_) => {}
        }
        // An answer that the ledger does not have binds nobody: its caller was told so.
        let Answer::Done { value, replayed, recorded: true, .. } = answer else { return };
        let mut stories = self.lock();
        let story = &mut stories[at];
        if !replayed {
            story.recorded.insert(value.clone());
        }
        match &story.answer {
            None => story.answer = Some(value),
            Some(first) if *first == value => {}
            Some(_) => story.others.push(value),
        }
    }
}

/// The id of the key number `at`.
pub(super) fn id(at: usize) -> String {
    format!("key-{at}")
}

/// One client: asks until the faults are over.
pub(super) async fn ask(book: Arc<Book>, slots: Slots, over: Arc<AtomicBool>, deaths: Arc<Deaths>) {
    while !over.load(Ordering::SeqCst) {
        let (Some(line), Some(at)) = (slots.any(), book.pick(deaths.kills())) else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let wait = if fastrand::bool() { Duration::ZERO } else { Duration::from_millis(60) };
        match line.ask(&id(at), wait).await {
            Ok(answer @ Answer::Done { replayed: false, .. }) => book.heard(at, answer),
            // Replays cost the children nothing; asking for them without a pause would only keep
            // the processors from what is to be tested.
            Ok(other) => {
                book.heard(at, other);
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..10))).await;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(3)).await,
        }
    }
}

/// Asks for new keys until the work of one has panicked. Children that are killed may not live long
/// enough to answer such a call, so the one that is asked here lives.
pub(super) async fn ask_until_a_panic(book: &Book, line: &Line) {
    // One execution in 24 panics: a run that gets so far without one has none.
    for _ in 0..1_000 {
        if book.panics() > 0 {
            return;
        }
        let at = book.add();
        match line.ask(&id(at), Duration::ZERO).await {
            Ok(answer) => book.heard(at, answer),
            Err(_) => return,
        }
    }
}

/// Asks for every key that has no answer, until it has one or time is up.
pub(super) async fn finish(book: &Book, line: &Line, deadline: Instant) {
    futures_util::stream::iter(book.unanswered())
        .for_each_concurrent(ABREAST, |at| async move {
            while Instant::now() < deadline {
                match line.ask(&id(at), Duration::ZERO).await {
                    Ok(answer @ (Answer::Done { .. } | Answer::Uncertain)) => {
                        return book.heard(at, answer);
                    }
                    Ok(other) => book.heard(at, other),
                    Err(_) => return,
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
}

/// Asks for every key that has an answer once more.
pub(super) async fn ask_again(book: &Book, line: &Line) {
    futures_util::stream::iter(0..book.len())
        .for_each_concurrent(ABREAST, |at| async move {
            for _ in 0..50 {
                match line.ask(&id(at), Duration::from_secs(1)).await {
                    Ok(answer @ (Answer::Done { .. } | Answer::Uncertain)) => {
                        return book.heard(at, answer);
                    }
                    Ok(other) => book.heard(at, other),
                    Err(_) => return,
                }
            }
        })
        .await;
}
