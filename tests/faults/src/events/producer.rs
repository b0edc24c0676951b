//! The producers: transactions that append events, some of which are rolled back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::executor::Unit;
use semel_core::{Command, Event, Executor, Key};
use tokio::sync::Mutex as Turn;
use tokio::task::JoinSet;

use super::table::{self, EventStore};
use crate::BoxError;
use semel_stores::Backend;

/// Number of aggregates.
const AGGREGATES: usize = 40;
/// Transactions at a time.
const AT_ONCE: usize = 8;
/// Events of one transaction.
const EACH: i64 = 4;
/// One transaction in this many is rolled back after its append.
const ROLLED_BACK: u32 = 10;

/// The events of all transactions.
#[derive(Debug, Default)]
pub(super) struct Produced {
    /// Event id to its aggregate and its number there.
    pub(super) committed: HashMap<String, (String, i64)>,
    /// Events whose transaction was rolled back.
    pub(super) rolled_back: Vec<String>,
}

/// Commits at least this many events.
pub(super) async fn produce(backend: Backend, events: u64) -> Result<Produced, BoxError> {
    Ok(table::visit(&backend, Produce(events)).await?)
}

struct Produce(u64);

/// The next number of each aggregate. A producer holds its aggregate until the commit, as a transaction
/// that changes an aggregate holds its row.
type Aggregates = Arc<Vec<Turn<i64>>>;

impl table::Visitor for Produce {
    type Output = Produced;

    async fn visit<S: EventStore>(self, store: S) -> Produced {
        let executor = Executor::new(store);
        let aggregates: Aggregates = Arc::new((0..AGGREGATES).map(|_| Turn::new(0)).collect());
        let (produced, told) =
            (Arc::new(Mutex::new(Produced::default())), Arc::new(AtomicU64::new(0)));
        let mut tellers = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (executor, aggregates) = (executor.clone(), Arc::clone(&aggregates));
            let (produced, told) = (Arc::clone(&produced), Arc::clone(&told));
            tellers.spawn(async move {
                while told.load(Ordering::SeqCst) < self.0 {
                    let count = tell(&executor, &aggregates, &produced).await;
                    told.fetch_add(count, Ordering::SeqCst);
                }
            });
        }
        while tellers.join_next().await.is_some() {}
        let mut produced = produced.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *produced)
    }
}

/// Runs one transaction; returns the number of committed events.
async fn tell<S: EventStore>(
    executor: &Executor<S>,
    aggregates: &Aggregates,
    produced: &Mutex<Produced>,
) -> u64 {
    let at = fastrand::usize(..AGGREGATES);
    let mut next = aggregates[at].lock().await;
    let aggregate = format!("aggregate-{at}");
    let events: Vec<Event> = (1..=EACH).map(|n| event(&aggregate, *next + n)).collect();
    let takes_back = fastrand::u32(..ROLLED_BACK) == 0;
    let ids = || events.iter().map(|event| event.id().to_string());
    if takes_back {
        let mut produced = produced.lock().unwrap_or_else(PoisonError::into_inner);
        produced.rolled_back.extend(ids());
    }
    let key = Key::command("acme", "TELL", &events[0].id().to_string()).expect("a key");
    loop {
        let told = events.clone();
        let work = move |mut unit: Unit<S>| async move {
            unit.append(told).await.map_err(|error| error.to_string())?;
            if takes_back { Err(String::from("taken back")) } else { Ok(()) }
        };
        match executor.transact(Command::new(key.clone()), work).await {
            Ok(done) if done.value().is_some() => break,
            Err(semel_core::Error::Work(text)) if takes_back && text == "taken back" => return 0,
            // Repeats the same command until its outcome is known.
            Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    let mut produced = produced.lock().unwrap_or_else(PoisonError::into_inner);
    for (id, number) in ids().zip(*next + 1..) {
        produced.committed.insert(id, (aggregate.clone(), number));
    }
    *next += EACH;
    events.len() as u64
}

fn event(aggregate: &str, number: i64) -> Event {
    Event::builder("acme", "thing.moved", "/proof")
        .about("thing", aggregate)
        .json(&number)
        .build()
        .expect("a valid event")
}
