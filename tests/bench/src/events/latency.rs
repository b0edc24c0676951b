//! The latency of an event on an idle system: from the append to the commit of the group's
//! transaction.
//!
//! One event at a time, with pauses in which relay and consumer become idle. The measurement ends
//! when the bus reports the event as handled, or just before the message is acknowledged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use semel_core::bus::Bus;
use semel_core::event::{Event, EventId, Unreadable};
use semel_core::executor::Unit;
use semel_core::inbox::{BrokerReply, Consumer, Group, Inbox, Message, Source, SourceError};
use semel_core::outbox::{PublishError, Publisher, Relay};
use semel_core::{Command, Execution, Executor, Key};
use semel_nats::NatsSource;
use semel_sql::postgres::PgStore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::tables::{EventStore, EventTables};
use super::wire::{Nats, Wire as _};
use super::{KIND, event};
use crate::BoxError;
use crate::arguments::Arguments;
use crate::ours;
use crate::report::{Report, RowLabel, Target};
use semel_bench::turns::percentile;

/// A handled event and the time of its handling.
type Note = (EventId, Instant);

/// A publisher that records the time of each confirm.
struct TimedPublisher<P>(P, UnboundedSender<Note>);

impl<P: Publisher> Publisher for TimedPublisher<P> {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        let answers = self.0.publish(events).await;
        let now = Instant::now();
        for (event, _) in events.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()) {
            let _ = self.1.send((event.id(), now));
        }
        answers
    }
}

/// A source that records the time of each ack.
struct TimedSource<B>(B, UnboundedSender<Note>);

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl<B: Source> Source for TimedSource<B> {
    type Message = TimedSource<B::Message>;

    async fn next(&self) -> Result<Self::Message, SourceError> {
        Ok(TimedSource(self.0.next().await?, self.1.clone()))
    }

    fn is_ordered(&self) -> bool {
        self.0.is_ordered()
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl<M: Message> Message for TimedSource<M> {
    fn envelope(&self) -> Result<Event, Unreadable> {
        self.0.envelope()
    }

    fn raw(&self) -> Bytes {
        self.0.raw()
    }

    fn redelivered(&self) -> bool {
        self.0.redelivered()
    }

    fn keep_every(&self) -> Option<Duration> {
        self.0.keep_every()
    }

    async fn keep(&self) -> Result<(), SourceError> {
        self.0.keep().await
    }

    async fn answer(&self, answer: BrokerReply) -> Result<(), SourceError> {
        if let (BrokerReply::Ack, Ok(event)) = (answer, self.0.envelope()) {
            let _ = self.1.send((event.id(), Instant::now()));
        }
        self.0.answer(answer).await
    }
}

/// Returns a group that inserts an order per event, in the transaction that records the event.
fn group<S: EventStore>(executor: &Executor<S>) -> Group<S> {
    Inbox::new(executor.clone()).group("BENCH").on_atomic(
        KIND,
        |event: Arc<Event>, mut unit: Unit<S>| async move {
            let about = event.aggregate().ok_or("an order was expected")?;
            let number: u64 = about.id.parse().map_err(|_| "a number was expected")?;
            S::place(unit.conn(), number).await.map_err(|_| "the order could not be placed")
        },
    )
}

pub(super) async fn in_process<S: EventStore>(
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    let tables = EventTables::<S>::new().await?;
    let executor = ours::executor(tables.store.clone())?;
    let (notes, noted) = unbounded_channel();
    let bus = Bus::new();
    bus.register(group(&executor))?;
    let relaying = Relay::new(tables.store.clone(), TimedPublisher(bus, notes)).start();
    let took = sample(&executor, noted, arguments.pace.waits).await;
    relaying.stop().await;
    let names = ("handled, bus p50", "handled, bus p99");
    report_on(report, S::STORE_NAME.name(), names, took?, 10.0);
    finish(tables, arguments.pace.waits).await
}

pub(super) async fn through_nats(
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    let tables = EventTables::<PgStore>::new().await?;
    let wire = Nats::connect().await?;
    let executor = ours::executor(tables.store.clone())?;
    let (notes, noted) = unbounded_channel();
    let source =
        NatsSource::builder(wire.client.clone(), wire.topology.clone(), "BENCH").build()?;
    let consuming = Consumer::new(group(&executor), TimedSource(source, notes))?.start();
    let relaying = Relay::new(tables.store.clone(), wire.publisher()).start();
    let took = sample(&executor, noted, arguments.pace.waits).await;
    relaying.stop().await;
    consuming.stop().await;
    wire.remove().await?;
    let names = ("handled, NATS p50", "handled, NATS p99");
    report_on(report, "postgres", names, took?, 25.0);
    finish(tables, arguments.pace.waits).await
}

fn report_on(
    report: &mut Report,
    store: &'static str,
    (middle, late): (&'static str, &'static str),
    took: Vec<u32>,
    most: f64,
) {
    let label = |bench| RowLabel { bench, store, concurrency: 1 };
    let (p50, p99) = (percentile(took.clone(), 0.5), percentile(took, 0.99));
    report.figure(label(middle), "ms", p50 / 1e6, Some(Target::AtMost(most)));
    report.figure(label(late), "ms", p99 / 1e6, None);
}

/// Checks that there is one effect per sample, and one for the warm-up.
async fn finish<S: EventStore>(tables: EventTables<S>, samples: usize) -> Result<(), BoxError> {
    let (orders, events) = (tables.orders().await?, tables.published().await?);
    let expected = samples as u64 + 1;
    tables.remove().await;
    if (orders, events) != (expected, expected) {
        let text = format!("{expected} events had {orders} effects, {events} are published");
        return Err(text.into());
    }
    Ok(())
}

/// Measures latencies in nanoseconds, after one event that opens connections.
async fn sample<S: EventStore>(
    executor: &Executor<S>,
    mut noted: UnboundedReceiver<Note>,
    samples: usize,
) -> Result<Vec<u32>, BoxError> {
    let mut took = Vec::with_capacity(samples);
    for number in 0..=samples as u64 {
        // Longer than the relay's first polls, and not a multiple of their interval.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(80..180))).await;
        let event = event(number);
        let (id, since) = (event.id(), append(executor, event).await?);
        let note = tokio::time::timeout(Duration::from_secs(30), noted.recv()).await;
        let Ok(Some((handled, at))) = note else {
            return Err("an event was not handled within 30 s".into());
        };
        if handled != id {
            return Err(format!("{handled} was handled instead of {id}").into());
        }
        if number > 0 {
            took.push(u32::try_from((at - since).as_nanos()).unwrap_or(u32::MAX));
        }
    }
    Ok(took)
}

/// Appends an event in the transaction of a command; returns the time at which the append began.
async fn append<S: EventStore>(executor: &Executor<S>, event: Event) -> Result<Instant, BoxError> {
    let command = Command::new(Key::command("bench", "TELL", &event.id().to_string())?);
    let (begun, began) = tokio::sync::oneshot::channel();
    let work = move |mut unit: Unit<S>| async move {
        let _ = begun.send(Instant::now());
        unit.append([event]).await
    };
    match executor.transact(command, work).await? {
        Execution::Executed { .. } => Ok(began.await?),
        Execution::Replayed { .. } | Execution::InProgress { .. } => {
            Err("a first execution was expected".into())
        }
    }
}
