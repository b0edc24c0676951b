//! A broker in memory, sound or with one flaw.

#![allow(
    dead_code,
    clippy::wildcard_enum_match_arm,
    reason = "the sound one has no flaws, and each place knows only its own"
)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use semel_core::event::{Event, Unreadable};
use semel_core::inbox::{BrokerReply, Message, Source, SourceError};
use semel_core::outbox::{PublishError, Publisher, partition};
use semel_testkit::BrokerFixture;
use tokio::sync::Notify;
use tokio::time::Instant;

const PARTITIONS: u16 = 16;
const PATIENCE: Duration = Duration::from_secs(3);

/// The flaw of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    Nothing,
    LosesTheTrace,
    TrimsValues,
    CutsAtAZero,
    AnswersOncePerBatch,
    LosesTheHundredth,
    OneQueueForAllGroups,
    BringsToEverySource,
    ForgetsWhatNobodyTook,
    LosesWithADroppedNext,
    IgnoresAcks,
    NeverBringsAgain,
    BringsAgainOnlyToTheSameSource,
    PutsOffForNothing,
    HoldsUpBehindWhatIsPutOff,
    IgnoresKeeping,
    OvertakesInAnAggregate,
    OvertakesWhatIsPutOff,
    HoldsUpEveryAggregate,
    DropsWhatIsNoEvent,
    ForgetsInARestart,
    CallsItsAbsenceAFailure,
    ConfirmsWhileItIsAway,
}

/// A message in the queue of one group.
#[derive(Clone)]
struct Entry {
    body: Bytes,
    partition: u16,
    /// The message is not delivered before this.
    due: Instant,
    put_off: bool,
    /// The latest delivery, which alone may be answered; `holder` is the source that has it.
    delivery: u64,
    holder: u64,
    done: bool,
}

#[derive(Default)]
struct State {
    groups: BTreeMap<String, Vec<Entry>>,
    deliveries: u64,
    sources: u64,
    published: u64,
    /// Whether the broker is killed and not restarted.
    away: bool,
}

struct Broker {
    flaw: Flaw,
    state: Mutex<State>,
    news: Notify,
}

impl Broker {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, body: Bytes, partition: u16) {
        let mut state = self.state();
        state.published += 1;
        if self.flaw == Flaw::LosesTheHundredth && state.published.is_multiple_of(100) {
            return;
        }
        for entries in state.groups.values_mut() {
            let (due, body) = (Instant::now(), body.clone());
            let entry =
                Entry { body, partition, due, put_off: false, delivery: 0, holder: 0, done: false };
            entries.push(entry);
        }
        drop(state);
        self.news.notify_waiters();
    }
}

/// The fixture of the broker.
pub(crate) struct Memory(Arc<Broker>);

impl Memory {
    pub(crate) async fn new(flaw: Flaw) -> Self {
        Self(Arc::new(Broker { flaw, state: Mutex::default(), news: Notify::new() }))
    }
}

impl BrokerFixture for Memory {
    type Publisher = MemoryPublisher;
    type Source = MemorySource;

    async fn publisher(&self) -> MemoryPublisher {
        MemoryPublisher(Arc::clone(&self.0))
    }

    async fn source(&self, group: &str, ordered: bool) -> MemorySource {
        let mut state = self.0.state();
        state.sources += 1;
        let id = state.sources;
        let group = match self.0.flaw {
            Flaw::OneQueueForAllGroups => "all".to_owned(),
            Flaw::BringsToEverySource => id.to_string(),
            _ => group.to_owned(),
        };
        let entries = state.groups.entry(group.clone()).or_default();
        if self.0.flaw == Flaw::ForgetsWhatNobodyTook {
            entries.retain(|entry| entry.delivery > 0);
        }
        MemorySource { broker: Arc::clone(&self.0), group, ordered, id }
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn partitions(&self) -> u16 {
        PARTITIONS
    }

    async fn put_raw(&self, bytes: Bytes) {
        if self.0.flaw != Flaw::DropsWhatIsNoEvent {
            self.0.put(bytes, 0);
        }
    }

    async fn kill(&self) {
        self.0.state().away = true;
        self.0.news.notify_waiters();
    }

    async fn revive(&self) {
        let mut state = self.0.state();
        if self.0.flaw == Flaw::ForgetsInARestart {
            state.groups.values_mut().for_each(Vec::clear);
        }
        // Every client was disconnected, so unanswered messages are redelivered.
        let now = Instant::now();
        for entry in state.groups.values_mut().flatten() {
            if !entry.put_off {
                entry.due = now;
            }
        }
        state.away = false;
        drop(state);
        self.0.news.notify_waiters();
    }
}

pub(crate) struct MemoryPublisher(Arc<Broker>);

impl Publisher for MemoryPublisher {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        if self.0.state().away {
            let text = "it is away".to_owned();
            let answer = match self.0.flaw {
                Flaw::CallsItsAbsenceAFailure => Err(PublishError::Failed(text)),
                Flaw::ConfirmsWhileItIsAway => Ok(()),
                _ => Err(PublishError::Unavailable(text)),
            };
            return vec![answer; events.len()];
        }
        for event in events {
            let mut body = event.to_json();
            let text = String::from_utf8_lossy(&body).into_owned();
            match self.0.flaw {
                Flaw::LosesTheTrace => body = text.replace("tracestate", "other").into(),
                Flaw::TrimsValues => body = text.replace("\" padded \"", "\"padded\"").into(),
                Flaw::CutsAtAZero => body = text.replace("AAEC", "AA==").into(),
                _ => {}
            }
            self.0.put(body.into(), partition(event, PARTITIONS));
            tokio::task::yield_now().await;
        }
        match self.0.flaw {
            Flaw::AnswersOncePerBatch => vec![Ok(())],
            _ => vec![Ok(()); events.len()],
        }
    }
}

pub(crate) struct MemorySource {
    broker: Arc<Broker>,
    group: String,
    ordered: bool,
    id: u64,
}

impl MemorySource {
    /// Returns the next message, or the time at which to look again.
    fn look(&self) -> Result<MemoryMessage, Instant> {
        let (now, flaw) = (Instant::now(), self.broker.flaw);
        let mut state = self.broker.state();
        state.deliveries += 1;
        let delivery = state.deliveries;
        let entries = state.groups.entry(self.group.clone()).or_default();
        let mut wait = now + Duration::from_millis(100);
        let mut held = Vec::new();
        let every = if flaw == Flaw::HoldsUpEveryAggregate { Some(0) } else { None };
        for (at, entry) in entries.iter_mut().enumerate().filter(|(_, entry)| !entry.done) {
            let aggregate = every.unwrap_or(entry.partition);
            if self.ordered && held.contains(&aggregate) {
                continue;
            }
            let overtaken = flaw == Flaw::OvertakesInAnAggregate
                || flaw == Flaw::OvertakesWhatIsPutOff && entry.put_off;
            if !overtaken || self.ordered && every.is_some() {
                held.push(aggregate);
            }
            let lost = flaw == Flaw::NeverBringsAgain && entry.delivery > 0 && !entry.put_off
                || flaw == Flaw::BringsAgainOnlyToTheSameSource
                    && ![0, self.id].contains(&entry.holder);
            if entry.due > now || lost {
                wait = wait.min(entry.due.max(now + Duration::from_millis(1)));
                if entry.put_off && flaw == Flaw::HoldsUpBehindWhatIsPutOff {
                    break;
                }
                continue;
            }
            (entry.due, entry.put_off) = (now + PATIENCE, false);
            (entry.delivery, entry.holder) = (delivery, self.id);
            let (broker, group) = (Arc::clone(&self.broker), self.group.clone());
            return Ok(MemoryMessage { broker, group, at, delivery, body: entry.body.clone() });
        }
        Err(wait)
    }
}

impl Source for MemorySource {
    type Message = MemoryMessage;

    fn is_ordered(&self) -> bool {
        self.ordered
    }

    async fn next(&self) -> Result<MemoryMessage, SourceError> {
        loop {
            let news = self.broker.news.notified();
            if self.broker.state().away {
                return Err(SourceError("it is away".into()));
            }
            match self.look() {
                Ok(brought) => {
                    if self.broker.flaw == Flaw::LosesWithADroppedNext {
                        let _ = brought.answer(BrokerReply::Ack).await;
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    return Ok(brought);
                }
                Err(wait) => {
                    tokio::select! {
                        () = news => {}
                        () = tokio::time::sleep_until(wait) => {}
                    }
                }
            }
        }
    }
}

pub(crate) struct MemoryMessage {
    broker: Arc<Broker>,
    group: String,
    at: usize,
    delivery: u64,
    body: Bytes,
}

impl MemoryMessage {
    fn change(&self, change: impl FnOnce(&mut Entry)) -> Result<(), SourceError> {
        let mut state = self.broker.state();
        if state.away {
            return Err(SourceError("it is away".into()));
        }
        let entries = state.groups.get_mut(&self.group).expect("the group is there");
        let entry = entries.get_mut(self.at).filter(|entry| entry.delivery == self.delivery);
        change(entry.ok_or(SourceError("it was redelivered to another source".into()))?);
        drop(state);
        self.broker.news.notify_waiters();
        Ok(())
    }
}

impl Message for MemoryMessage {
    fn envelope(&self) -> Result<Event, Unreadable> {
        Event::from_json(&self.body, None)
    }

    fn raw(&self) -> Bytes {
        self.body.clone()
    }

    fn redelivered(&self) -> bool {
        false
    }

    fn keep_every(&self) -> Option<Duration> {
        Some(PATIENCE / 4)
    }

    async fn keep(&self) -> Result<(), SourceError> {
        match self.broker.flaw {
            Flaw::IgnoresKeeping => Ok(()),
            _ => self.change(|entry| entry.due = Instant::now() + PATIENCE),
        }
    }

    async fn answer(&self, answer: BrokerReply) -> Result<(), SourceError> {
        match answer {
            BrokerReply::Ack if self.broker.flaw == Flaw::IgnoresAcks => Ok(()),
            BrokerReply::Ack => self.change(|entry| entry.done = true),
            BrokerReply::Later(span) => {
                let span = match self.broker.flaw {
                    Flaw::PutsOffForNothing => Duration::ZERO,
                    _ => span,
                };
                self.change(|entry| (entry.due, entry.put_off) = (Instant::now() + span, true))
            }
            BrokerReply::Nothing => Ok(()),
        }
    }
}
