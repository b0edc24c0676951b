//! What the tests of this crate share: a runtime, a place, and work that can be watched.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::store::Draft;
use semel_core::{
    AttemptId, Command, Context, Executor, Fingerprint, Key, OnCrash, OperationId, Policy, Store,
};
use tokio::sync::oneshot;

use crate::place::Place;

/// Runs `test` in a fresh place on the store of that name.
///
/// # Panics
/// If the place cannot be had, in one line that says why.
pub fn on<Fut: Future<Output = ()>>(store: &str, test: impl FnOnce(Arc<Place>) -> Fut) {
    semel_testkit::fixture::run(async {
        let place = Place::named(&store.replace('_', "-")).await;
        let place = Arc::new(place.unwrap_or_else(|error| panic!("{error}")));
        test(Arc::clone(&place)).await;
        if let Some(place) = Arc::into_inner(place) {
            place.remove().await;
        }
    });
}

/// Makes one test per store, in a module with the name of the test.
#[macro_export]
macro_rules! on_stores {
    ($test:ident: $($store:ident)+) => {
        mod $test {
            $(#[test]
            fn $store() {
                $crate::scene::on(stringify!($store), super::$test);
            })+
        }
    };
}

/// A key of this id.
///
/// # Panics
/// If the id cannot be one.
pub fn key(id: &str) -> Key {
    Key::command("acme", "PROVE", id).expect("a valid id")
}

/// A command with this id.
pub fn command(id: &str) -> Command {
    Command::new(key(id))
}

/// An executor with this lease.
///
/// # Panics
/// If the lease is too short.
pub fn executor<S: Store>(store: S, lease: Duration) -> Executor<S> {
    let policy = Policy { lease, ..Policy::default() };
    Executor::builder(store).policy(policy).build().expect("the lease is long enough")
}

/// A claim of a process that died right after it was granted.
pub fn orphan(id: &str, lease: Duration) -> Draft {
    Draft {
        key: key(id),
        fingerprint: Fingerprint::none(),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: Arc::from("nobody:0:0"),
        lease,
        on_crash: OnCrash::Rerun,
        keep: Duration::from_secs(3_600),
        retry_payload: None,
    }
}

/// Effects in this process: a list that only grows.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<Mutex<Vec<(String, u64)>>>);

impl Seen {
    /// The work of `context` happened.
    pub fn note(&self, context: &Context) {
        let seen = (context.key().id().to_owned(), context.fence().0);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    }

    /// How often the work of `id` happened.
    pub fn times(&self, id: &str) -> usize {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|(key, _)| key == id).count()
    }
}

/// Work that says when it has begun and ends when it is told, with what it is told.
#[derive(Debug)]
pub struct Slow {
    begun: oneshot::Sender<()>,
    end: oneshot::Receiver<String>,
}

impl Slow {
    /// The work, a way to wait for its beginning, and a way to end it.
    pub fn new() -> (Self, oneshot::Receiver<()>, oneshot::Sender<String>) {
        let ((begun, has_begun), (end_sender, end)) = (oneshot::channel(), oneshot::channel());
        (Self { begun, end }, has_begun, end_sender)
    }

    /// The work itself.
    ///
    /// # Errors
    /// Whoever was to end it is gone.
    pub async fn work(self) -> Result<String, String> {
        let _ = self.begun.send(());
        self.end.await.map_err(|_| "nobody ended the work".to_owned())
    }
}
