//! Shared by the tests: a runtime, a private store, and work under the test's control.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::store::Draft;
use semel_core::{
    AttemptId, Command, Context, Executor, Fingerprint, OnCrash, OperationId, Policy, Store,
};
use semel_stores::PrivateStore;
use tokio::sync::oneshot;

pub use crate::child::key;
use crate::effects;

/// Runs `test` on a new private store of that name, with a table of effects.
///
/// # Panics
/// If the store cannot be created, with its reason.
pub fn on<Fut: Future<Output = ()>>(store: &str, test: impl FnOnce(Arc<PrivateStore>) -> Fut) {
    semel_testkit::fixture::run(async {
        let private = PrivateStore::named(&store.replace('_', "-")).await;
        let private = Arc::new(private.unwrap_or_else(|error| panic!("{error}")));
        effects::create(private.backend()).await.unwrap_or_else(|error| panic!("{error}"));
        test(Arc::clone(&private)).await;
        if let Some(private) = Arc::into_inner(private) {
            private.remove().await;
        }
    });
}

/// Defines one test per store, in a module with the name of the test.
#[macro_export]
macro_rules! on_stores {
    ($test:ident: $($store:ident)+) => {
        mod $test {
            $(#[test]
            fn $store() {
                $crate::harness::on(stringify!($store), super::$test);
            })+
        }
    };
}

/// Returns a command with this id.
pub fn command(id: &str) -> Command {
    Command::new(key(id))
}

/// Returns an executor with this lease.
///
/// # Panics
/// If the lease is too short.
pub fn executor<S: Store>(store: S, lease: Duration) -> Executor<S> {
    let policy = Policy { lease, ..Policy::default() };
    Executor::builder(store).policy(policy).build().expect("the lease is long enough")
}

/// Returns the claim of a process that died right after it was granted.
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

/// Effects in this process.
#[derive(Clone, Debug, Default)]
pub struct EffectLog(Arc<Mutex<Vec<(String, u64)>>>);

impl EffectLog {
    /// Records the effect of `context`.
    pub fn note(&self, context: &Context) {
        let seen = (context.key().id().to_owned(), context.fence().0);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    }

    /// Returns how often the work of `id` ran.
    pub fn times(&self, id: &str) -> usize {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|(key, _)| key == id).count()
    }
}

/// Work that signals its beginning and ends with the value that the test sends.
#[derive(Debug)]
pub struct ControlledWork {
    begun: oneshot::Sender<()>,
    end: oneshot::Receiver<String>,
}

impl ControlledWork {
    /// Returns the work, its beginning, and the sender that ends it.
    pub fn new() -> (Self, oneshot::Receiver<()>, oneshot::Sender<String>) {
        let ((begun, has_begun), (end_sender, end)) = (oneshot::channel(), oneshot::channel());
        (Self { begun, end }, has_begun, end_sender)
    }

    /// Runs the work.
    ///
    /// # Errors
    /// The sender was dropped.
    pub async fn work(self) -> Result<String, String> {
        let _ = self.begun.send(());
        self.end.await.map_err(|_| "nobody ended the work".to_owned())
    }
}
