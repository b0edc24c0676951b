//! The rate of a relay from an outbox in PostgreSQL to a broker, beside a relay by hand and publishing alone.
//!
//! All contenders publish the same kind of events with the same concurrency and wait for confirms;
//! afterwards the broker's messages are counted. Every turn has new events, because a broker may
//! remove duplicates.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use semel_core::Event;
use semel_core::outbox::{Publisher, Relay};
use semel_sql::postgres::PgStore;
use tokio::task::JoinSet;

use super::bare_loop::{self, SIZES};
use super::event;
use super::tables::EventTables;
use super::wire::{Nats, RabbitMq, RedisStreams, Wire};
use crate::BoxError;
use crate::arguments::Arguments;
use crate::report::{Report, RowLabel, Target};

/// The number of aggregates.
const AGGREGATES: u64 = 1_000;
/// The number of events per batch; `AT_ONCE` batches are published at a time. Both are the relay's
/// defaults.
const BATCH: usize = 100;
const AT_ONCE: usize = 2;
/// The limit of a turn: one that takes longer is stuck.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contender {
    Relay,
    /// A relay by hand, with batches of this size.
    Loop(i64),
    Publisher,
    Client,
}

pub(super) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    broker::<Nats>(arguments, report).await?;
    broker::<RabbitMq>(arguments, report).await?;
    broker::<RedisStreams>(arguments, report).await
}

async fn broker<W: Wire>(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let wire = Arc::new(W::connect().await?);
    let tables = EventTables::<PgStore>::new().await?;
    let done = measure(&wire, &tables, arguments, report).await;
    tables.remove().await;
    if let Some(wire) = Arc::into_inner(wire) {
        wire.remove().await?;
    }
    done.map_err(|error| format!("{}: {error}", W::BENCH).into())
}

async fn measure<W: Wire>(
    wire: &Arc<W>,
    tables: &EventTables<PgStore>,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    let count = if arguments.quick { 4_000 } else { 20_000 };
    let batch = best_batch(wire, tables, count).await?;
    let all = [Contender::Relay, Contender::Loop(batch), Contender::Publisher, Contender::Client];
    for contender in all {
        turn(wire, tables, contender, count / 4).await?;
    }
    let mut rates: [Vec<f64>; 4] = Default::default();
    for round in 0..arguments.pace.rounds {
        for offset in 0..all.len() {
            let at = (round + offset) % all.len();
            let took = turn(wire, tables, all[at], count).await?;
            rates[at].push(count as f64 / took.as_secs_f64());
        }
    }
    let label = RowLabel { bench: W::BENCH, store: "postgres", concurrency: AT_ONCE };
    let [relay, by_hand, publisher, client] = &rates;
    let bare = format!("a bare loop: claim, publish, mark, {AT_ONCE} batches of {batch} at once");
    report.compare(label, "ev/s", relay, (&bare, by_hand), Some(Target::AtLeast(0.7)));
    let bare = format!("the publisher alone, {AT_ONCE} batches of {BATCH} at once");
    report.compare(label, "ev/s", relay, (&bare, publisher), None);
    report.compare(label, "ev/s", relay, (W::RAW, client), None);
    Ok(())
}

/// Returns the size of a batch with which the relay by hand is fastest.
async fn best_batch<W: Wire>(
    wire: &Arc<W>,
    tables: &EventTables<PgStore>,
    count: u64,
) -> Result<i64, BoxError> {
    let mut best = (Duration::MAX, SIZES[0]);
    for _ in 0..2 {
        for size in SIZES {
            let took = turn(wire, tables, Contender::Loop(size), count).await?;
            best = best.min((took, size));
        }
    }
    Ok(best.1)
}

/// Publishes `count` new events; returns how long that took.
async fn turn<W: Wire>(
    wire: &Arc<W>,
    tables: &EventTables<PgStore>,
    contender: Contender,
    count: u64,
) -> Result<Duration, BoxError> {
    let events: Vec<Event> = (0..count).map(|number| event(number % AGGREGATES)).collect();
    let took = match contender {
        Contender::Relay => relayed(tables, wire.publisher(), &events).await?,
        Contender::Loop(batch) => by_hand(tables, wire, batch, &events).await?,
        Contender::Publisher => at_once(events, Ours(wire.publisher())).await?,
        Contender::Client => at_once(events, Client(Arc::clone(wire))).await?,
    };
    arrived(&**wire, count).await?;
    wire.clear().await?;
    Ok(took)
}

/// Publishes through the outbox: from the start of a relay with default settings until all rows are
/// marked.
async fn relayed(
    tables: &EventTables<PgStore>,
    publisher: impl Publisher,
    events: &[Event],
) -> Result<Duration, BoxError> {
    let before = tables.published().await?;
    tables.append(events).await?;
    let relay = Relay::new(tables.store.clone(), publisher);
    let (count, since) = (events.len() as u64, Instant::now());
    let relaying = relay.start();
    while relaying.status().published < count && since.elapsed() < LIMIT {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = since.elapsed();
    let status = relaying.stop().await;
    let published = tables.published().await? - before;
    if published != count || status.published != count || status.failed + status.dead > 0 {
        let text = format!("{published} of {count} rows are published; the relay: {status:?}");
        return Err(text.into());
    }
    Ok(took)
}

/// Through the outbox, by hand.
async fn by_hand<W: Wire>(
    tables: &EventTables<PgStore>,
    wire: &Arc<W>,
    batch: i64,
    events: &[Event],
) -> Result<Duration, BoxError> {
    let before = tables.published().await?;
    tables.append(events).await?;
    let count = events.len() as u64;
    let took = bare_loop::run(tables.backend(), wire, batch, AT_ONCE, count).await?;
    match tables.published().await? - before {
        published if published == count => Ok(took),
        published => Err(format!("{published} of {count} rows are published").into()),
    }
}

/// Publishes a batch and waits for its confirms, without an outbox.
trait Bare: Clone + Send + Sync + 'static {
    fn publish_batch(&self, batch: &[Event]) -> impl Future<Output = Result<(), BoxError>> + Send;
}

#[derive(Clone)]
struct Ours<P>(P);

impl<P: Publisher + Clone> Bare for Ours<P> {
    async fn publish_batch(&self, batch: &[Event]) -> Result<(), BoxError> {
        self.0.publish(batch).await.into_iter().collect::<Result<(), _>>()?;
        Ok(())
    }
}

struct Client<W>(Arc<W>);

impl<W> Clone for Client<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Wire> Bare for Client<W> {
    async fn publish_batch(&self, batch: &[Event]) -> Result<(), BoxError> {
        self.0.raw(batch).await
    }
}

/// Publishes events without an outbox, as many batches at a time as a relay does.
async fn at_once(events: Vec<Event>, bare: impl Bare) -> Result<Duration, BoxError> {
    let (events, next) = (Arc::new(events), Arc::new(AtomicUsize::new(0)));
    let since = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (events, next, bare) = (Arc::clone(&events), Arc::clone(&next), bare.clone());
        tasks.spawn(async move {
            while let Some(batch) = events.chunks(BATCH).nth(next.fetch_add(1, Ordering::Relaxed)) {
                bare.publish_batch(batch).await?;
            }
            Ok::<_, BoxError>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(since.elapsed())
}

/// Waits until the broker has every message once.
async fn arrived<W: Wire>(wire: &W, count: u64) -> Result<(), BoxError> {
    let since = Instant::now();
    loop {
        let held = wire.held().await?;
        // Some brokers count confirmed messages late.
        if held == count {
            return Ok(());
        }
        if since.elapsed() > Duration::from_secs(10) {
            return Err(format!("the broker has {held} messages, not {count}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
