//! One load per id at a time: who comes while one is under way waits for it.
//!
//! A load is a task of its own. Whoever asked first may leave; the load goes on for the others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::near::Name;

/// What a load brings, for all who wait for a part of it.
pub(super) type Landing<T> = Shared<BoxFuture<'static, Option<Arc<T>>>>;

/// How a name gets its answer.
#[derive(Clone)]
pub(super) enum Seat<T, A> {
    /// By a load, as its answer at this place.
    Aboard(Landing<T>, usize),
    /// It is here by now.
    Arrived(A),
}

/// What is known of a name's load: its number, its landing, and the name's place in it.
type Flight<T> = (u64, Landing<T>, usize);

/// The loads under way.
#[derive(Debug)]
pub(super) struct Flights<T>(Arc<Port<T>>);

#[derive(Debug)]
struct Port<T> {
    board: Mutex<Board<T>>,
    ended: AtomicU64,
}

/// How many loads had ended at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended(u64);

#[derive(Debug)]
struct Board<T> {
    entries: HashMap<Name, Flight<T>, RandomState>,
    number: u64,
}

impl<T: Send + Sync + 'static> Flights<T> {
    pub(super) fn new() -> Self {
        let board = Mutex::new(Board { entries: HashMap::default(), number: 0 });
        Self(Arc::new(Port { board, ended: AtomicU64::new(0) }))
    }

    /// To be asked before anybody looks whether an answer is here.
    pub(super) fn ended(&self) -> Ended {
        Ended(self.0.ended.load(Ordering::Acquire))
    }

    /// How each of these names gets its answer, in order: loads under way are joined, the others
    /// start as one.
    ///
    /// `arrived` looks once more, now that nobody can finish in between, whether the answer is here;
    /// it is not asked where nobody has finished since it was looked for.
    pub(super) fn board<A, F: Future<Output = T> + Send + 'static>(
        &self,
        runtime: &Handle,
        names: &[Name],
        looked: Ended,
        arrived: impl Fn(&Name) -> Option<A>,
        load: impl FnOnce(Vec<usize>) -> F,
    ) -> Vec<Seat<T, A>> {
        let (landed, landing) = oneshot::channel();
        let landing: Landing<T> = landing.map(Result::ok).boxed().shared();
        let (mut own, mut mine) = (Vec::new(), Vec::new());
        let mut board = lock(&self.0);
        let nobody_ended = self.ended() == looked;
        board.number += 1;
        let number = board.number;
        let mut seats = Vec::with_capacity(names.len());
        for (at, name) in names.iter().enumerate() {
            let seat = match board.entries.entry(name.clone()) {
                Entry::Occupied(flight) => {
                    let (_, landing, place) = flight.get();
                    Seat::Aboard(landing.clone(), *place)
                }
                Entry::Vacant(free) => {
                    let answer = if nobody_ended { None } else { arrived(name) };
                    answer.map(Seat::Arrived).unwrap_or_else(|| {
                        let place = own.len();
                        free.insert((number, landing.clone(), place));
                        own.push(at);
                        mine.push(name.clone());
                        Seat::Aboard(landing.clone(), place)
                    })
                }
            };
            seats.push(seat);
        }
        drop(board);
        if own.is_empty() {
            return seats;
        }
        // After the lock: a runtime that is going down drops the task, and with it `done`, at once.
        let done = Done { port: Arc::clone(&self.0), names: mine, number };
        let loading = load(own);
        runtime.spawn(async move {
            let loaded = loading.await;
            drop(done);
            let _ = landed.send(Arc::new(loaded));
        });
        seats
    }

    /// Nobody joins the load of this name any more: it began before something changed.
    pub(super) fn forget(&self, name: &Name) {
        lock(&self.0).entries.remove(name);
    }

    /// Nobody joins any of the loads under way.
    pub(super) fn forget_all(&self) {
        lock(&self.0).entries.clear();
    }
}

/// Takes a load off the board when it ends, however it does.
struct Done<T> {
    port: Arc<Port<T>>,
    names: Vec<Name>,
    number: u64,
}

impl<T> Drop for Done<T> {
    fn drop(&mut self) {
        let mut board = lock(&self.port);
        self.port.ended.fetch_add(1, Ordering::Release);
        for name in &self.names {
            // A forgotten load may have a successor under the same name.
            if board.entries.get(name).is_some_and(|(number, ..)| *number == self.number) {
                board.entries.remove(name);
            }
        }
    }
}

fn lock<T>(port: &Port<T>) -> MutexGuard<'_, Board<T>> {
    port.board.lock().unwrap_or_else(PoisonError::into_inner)
}
