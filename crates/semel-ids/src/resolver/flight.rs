//! One load per id at a time: who comes while one is under way waits for it.
//!
//! A load is a task of its own. Whoever asked first may leave; the load goes on for the others.

use std::collections::{HashMap, HashSet};
use std::future::Future;
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
    /// By a load.
    Aboard(Landing<T>),
    /// It is here by now.
    Arrived(A),
}

type Entries<T> = HashMap<Name, (u64, Landing<T>), RandomState>;

/// The loads under way.
#[derive(Debug)]
pub(super) struct Flights<T>(Arc<Mutex<Board<T>>>);

#[derive(Debug)]
struct Board<T> {
    entries: Entries<T>,
    number: u64,
}

impl<T: Send + Sync + 'static> Flights<T> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Board { entries: HashMap::default(), number: 0 })))
    }

    /// How each of these names gets its answer, in order: loads under way are joined, the others
    /// start as one.
    ///
    /// `arrived` looks once more, now that nobody can finish in between, whether the answer is here.
    pub(super) fn board<A, F: Future<Output = T> + Send + 'static>(
        &self,
        runtime: &Handle,
        names: &[Name],
        arrived: impl Fn(&Name) -> Option<A>,
        load: impl FnOnce(Vec<usize>) -> F,
    ) -> Vec<Seat<T, A>> {
        let mut board = lock(&self.0);
        let mut seats: Vec<Option<Seat<T, A>>> = Vec::with_capacity(names.len());
        let (mut own, mut mine) = (Vec::new(), HashSet::with_hasher(RandomState::default()));
        for (at, name) in names.iter().enumerate() {
            let joined = board.entries.get(name).map(|(_, landing)| landing.clone());
            let seat = joined.map(Seat::Aboard).or_else(|| arrived(name).map(Seat::Arrived));
            if seat.is_none() && mine.insert(name) {
                own.push(at);
            }
            seats.push(seat);
        }
        if own.is_empty() {
            return seats.into_iter().flatten().collect();
        }
        board.number += 1;
        let number = board.number;
        let mine: Vec<Name> = own.iter().map(|at| names[*at].clone()).collect();
        let (landed, landing) = oneshot::channel();
        let landing = landing.map(Result::ok).boxed().shared();
        board.entries.extend(mine.iter().map(|name| (name.clone(), (number, landing.clone()))));
        drop(board);
        // After the lock: a runtime that is going down drops the task, and with it `done`, at once.
        let done = Done { board: Arc::clone(&self.0), names: mine, number };
        let loading = load(own);
        runtime.spawn(async move {
            let loaded = loading.await;
            drop(done);
            let _ = landed.send(Arc::new(loaded));
        });
        let seats = seats.into_iter();
        seats.map(|seat| seat.unwrap_or_else(|| Seat::Aboard(landing.clone()))).collect()
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
    board: Arc<Mutex<Board<T>>>,
    names: Vec<Name>,
    number: u64,
}

impl<T> Drop for Done<T> {
    fn drop(&mut self) {
        let mut board = lock(&self.board);
        for name in &self.names {
            // A forgotten load may have a successor under the same name.
            if board.entries.get(name).is_some_and(|(number, _)| *number == self.number) {
                board.entries.remove(name);
            }
        }
    }
}

fn lock<T>(board: &Mutex<Board<T>>) -> MutexGuard<'_, Board<T>> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}
