//! Whoever tells about things: transactions that append events, some of which are rolled back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::executor::Unit;
use semel_core::{Command, Event, Executor, Key};
use tokio::sync::Mutex as Turn;
use tokio::task::JoinSet;

use super::table::{self, EventDatabase};
use crate::crash::Trouble;
use crate::stores::Backend;

/// Things that events are about.
const LANES: usize = 40;
/// Transactions at a time.
const AT_ONCE: usize = 8;
/// Events of one transaction.
const EACH: i64 = 4;
/// One transaction in so many is rolled back after it appended.
const ROLLED_BACK: u32 = 10;

/// What was told, and what was taken back.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// Event id to its lane and its number there.
    pub(super) committed: HashMap<String, (String, i64)>,
    /// Events whose transaction was rolled back.
    pub(super) rolled_back: Vec<String>,
}

/// Commits so many events, at least.
pub(super) async fn produce(backend: Backend, events: u64) -> Result<Book, Trouble> {
    Ok(table::visit(&backend, Produce(events)).await?)
}

struct Produce(u64);

/// The next number of each lane. Whoever appends holds its lane until the commit, as whoever
/// changes an aggregate holds its row.
type Lanes = Arc<Vec<Turn<i64>>>;

impl table::Visitor for Produce {
    type Output = Book;

    async fn visit<S: EventDatabase>(self, store: S) -> Book {
        let executor = Executor::new(store);
        let lanes: Lanes = Arc::new((0..LANES).map(|_| Turn::new(0)).collect());
        let (book, told) = (Arc::new(Mutex::new(Book::default())), Arc::new(AtomicU64::new(0)));
        let mut tellers = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (executor, lanes) = (executor.clone(), Arc::clone(&lanes));
            let (book, told) = (Arc::clone(&book), Arc::clone(&told));
            tellers.spawn(async move {
                while told.load(Ordering::SeqCst) < self.0 {
                    let count = tell(&executor, &lanes, &book).await;
                    told.fetch_add(count, Ordering::SeqCst);
                }
            });
        }
        while tellers.join_next().await.is_some() {}
        let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *book)
    }
}

/// One transaction; how many events it committed.
async fn tell<S: EventDatabase>(executor: &Executor<S>, lanes: &Lanes, book: &Mutex<Book>) -> u64 {
    let at = fastrand::usize(..LANES);
    let mut next = lanes[at].lock().await;
    let lane = format!("lane-{at}");
    let events: Vec<Event> = (1..=EACH).map(|n| event(&lane, *next + n)).collect();
    let takes_back = fastrand::u32(..ROLLED_BACK) == 0;
    let ids = || events.iter().map(|event| event.id().to_string());
    if takes_back {
        let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
        book.rolled_back.extend(ids());
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
            // The same command again, until it is known to have happened: once.
            Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
    for (id, number) in ids().zip(*next + 1..) {
        book.committed.insert(id, (lane.clone(), number));
    }
    *next += EACH;
    events.len() as u64
}

fn event(lane: &str, number: i64) -> Event {
    Event::builder("acme", "thing.moved", "/proof")
        .about("thing", lane)
        .json(&number)
        .build()
        .expect("a valid event")
}
