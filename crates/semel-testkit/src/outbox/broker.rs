//! A scripted broker that records every publish. It has no network and no subscribers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::event::{Event, EventId};
use semel_core::outbox::{Partition, PublishError, Publisher};
use tokio::sync::{oneshot, watch};

/// How long a wait may take before it fails: much longer than a loaded machine needs.
const SOON: Duration = Duration::from_secs(120);

/// The reply of the broker to one publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The broker confirms the event.
    Confirm,
    /// The broker fails to accept the event this time.
    Fail,
    /// The broker asks for the event again after a hundred seconds.
    Later,
    /// The broker has no route for the event yet.
    Unrouted,
    /// The broker refuses the event for good.
    Refuse,
    /// The broker is unreachable, for the event's whole batch.
    Away,
    /// The publish never returns.
    Hang,
    /// The publisher panics.
    Panic,
}

/// The scripted broker; clones share its state. Events without a script are confirmed.
#[derive(Clone, Debug)]
pub struct Broker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    confirmed: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    next: HashMap<EventId, VecDeque<Reply>>,
    always: HashMap<EventId, Reply>,
    held: HashMap<EventId, Hold>,
    away: bool,
    chance: Option<(fastrand::Rng, f64)>,
    answers: Option<usize>,
    calls: Vec<Vec<EventId>>,
    confirmed: Vec<Event>,
}

#[derive(Debug)]
struct Hold {
    reached: oneshot::Sender<()>,
    released: oneshot::Receiver<()>,
}

/// A publish that waits until the test releases it.
#[derive(Debug)]
pub struct HeldPublish {
    reached: Option<oneshot::Receiver<()>>,
    release: Option<oneshot::Sender<()>>,
}

impl HeldPublish {
    /// Waits until the broker has received the event.
    pub async fn reached(&mut self) {
        let reached = self.reached.take().expect("`reached` is called once");
        tokio::time::timeout(SOON, reached).await.expect("in time").expect("the broker exists");
    }

    /// Lets the broker reply.
    pub fn release(mut self) {
        let _ = self.release.take().map(|release| release.send(()));
    }
}

impl Default for Broker {
    fn default() -> Self {
        Self::new()
    }
}

impl Broker {
    /// Creates a broker that confirms everything.
    pub fn new() -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), confirmed: watch::channel(0).0 }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the replies to the next publishes of an event.
    pub fn next(&self, event: EventId, replies: impl IntoIterator<Item = Reply>) {
        self.state().next.entry(event).or_default().extend(replies);
    }

    /// Sets the reply to every publish of an event after the replies of [`next`](Self::next).
    pub fn always(&self, event: EventId, reply: Reply) {
        self.state().always.insert(event, reply);
    }

    /// Holds the next publish of an event, with its whole batch.
    pub fn hold(&self, event: EventId) -> HeldPublish {
        let (reached, reaching) = oneshot::channel();
        let (release, released) = oneshot::channel();
        self.state().held.insert(event, Hold { reached, released });
        HeldPublish { reached: Some(reaching), release: Some(release) }
    }

    /// Sets whether the broker is unreachable.
    pub fn set_away(&self, away: bool) {
        self.state().away = away;
    }

    /// Makes unscripted publishes fail at random; the same seed and order give the same failures.
    pub fn fail_by_chance(&self, seed: u64, chance: f64) {
        self.state().chance = Some((fastrand::Rng::with_seed(seed), chance));
    }

    /// Sets how many results each publish returns, to imitate a publisher that miscounts.
    pub fn miscount(&self, answers: Option<usize>) {
        self.state().answers = answers;
    }

    /// Returns the confirmed events in order, repeats included.
    pub fn confirmed(&self) -> Vec<Event> {
        self.state().confirmed.clone()
    }

    /// Returns the ids of the confirmed events.
    pub fn confirmed_ids(&self) -> Vec<EventId> {
        self.state().confirmed.iter().map(Event::id).collect()
    }

    /// Returns the event ids of each published batch.
    pub fn calls(&self) -> Vec<Vec<EventId>> {
        self.state().calls.clone()
    }

    /// Returns how often an event was published.
    pub fn tries(&self, event: EventId) -> usize {
        self.state().calls.iter().flatten().filter(|id| **id == event).count()
    }

    /// Waits until this many events were confirmed, repeats included.
    ///
    /// # Panics
    /// If that takes longer than two minutes.
    pub async fn wait_for(&self, confirmations: usize) {
        let mut count = self.0.confirmed.subscribe();
        let enough = count.wait_for(|count| *count >= confirmations);
        let met = tokio::time::timeout(SOON, enough).await.is_ok();
        assert!(met, "{} of {confirmations} confirmed in time", self.state().confirmed.len());
    }

    /// Checks that the first confirmations within every partition are in the order of `appended`.
    ///
    /// # Panics
    /// If they are not.
    pub fn assert_partitions_in_order(&self, appended: &[Event]) {
        let (mut seen, mut partitions) =
            (HashSet::new(), HashMap::<Partition, Vec<EventId>>::new());
        for event in &self.state().confirmed {
            if let Some(partition) = Partition::of(event)
                && seen.insert(event.id())
            {
                partitions.entry(partition).or_default().push(event.id());
            }
        }
        let mut expected: HashMap<Partition, Vec<EventId>> = HashMap::new();
        for event in appended.iter().filter(|event| seen.contains(&event.id())) {
            expected.entry(Partition::of(event).expect("seen")).or_default().push(event.id());
        }
        assert_eq!(partitions, expected);
    }
}

impl State {
    fn reply(&mut self, event: EventId) -> Reply {
        let next = self.next.get_mut(&event).and_then(VecDeque::pop_front);
        let always = || self.always.get(&event).cloned();
        let by_chance = self.chance.as_mut().is_some_and(|(rng, chance)| rng.f64() < *chance);
        let otherwise = if by_chance { Reply::Fail } else { Reply::Confirm };
        let reply = next.or_else(always).unwrap_or(otherwise);
        if self.away { Reply::Away } else { reply }
    }
}

impl Publisher for Broker {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        let holds: Vec<Hold> = {
            let mut state = self.state();
            state.calls.push(events.iter().map(Event::id).collect());
            events.iter().filter_map(|event| state.held.remove(&event.id())).collect()
        };
        for hold in holds {
            let _ = hold.reached.send(());
            // An error means that the test dropped the `HeldPublish`, which releases the publish
            // too.
            let _ = hold.released.await;
        }
        let replies: Vec<Reply> = {
            let mut state = self.state();
            events.iter().map(|event| state.reply(event.id())).collect()
        };
        assert!(!replies.contains(&Reply::Panic), "a scripted panic");
        if replies.contains(&Reply::Hang) {
            std::future::pending::<()>().await;
        }
        let mut state = self.state();
        let away = replies.contains(&Reply::Away);
        let mut answers = Vec::with_capacity(events.len());
        for (event, reply) in events.iter().zip(replies) {
            answers.push(match reply {
                _ if away => Err(PublishError::Unavailable("closed for today".to_owned())),
                Reply::Fail => Err(PublishError::Failed("not now".to_owned())),
                Reply::Later => {
                    let (after, reason) = (Duration::from_secs(100), "at work".to_owned());
                    Err(PublishError::Later { after, reason })
                }
                Reply::Unrouted => Err(PublishError::Unrouted("no queue".to_owned())),
                Reply::Refuse => Err(PublishError::Refused("not like this".to_owned())),
                Reply::Confirm | Reply::Away | Reply::Hang | Reply::Panic => {
                    state.confirmed.push(event.clone());
                    Ok(())
                }
            });
        }
        self.0.confirmed.send_replace(state.confirmed.len());
        if let Some(count) = state.answers {
            answers.resize(count, Ok(()));
        }
        answers
    }
}
