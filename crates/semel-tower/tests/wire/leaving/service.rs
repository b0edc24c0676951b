//! The service whose callers leave. Its effects are recorded in a ledger without unique keys.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::post;
use semel_core::{Context, Executor, Store, Wait};
use semel_testkit::effects::{Effect, EffectLedger, History, HistoryEntry, HistoryEvent};
use semel_tower::axum::{OperationContext, Tx};
use semel_tower::http::{IdempotencyLayer, Rules};
use semel_tower::{PrincipalFrom, Tenant};

use super::request_state::{Moment, RequestState, Stage};
use crate::backend::AtomicBackend;

/// The length of a response that is larger than a client's receive window.
const LONG: usize = 80 << 10;

pub(super) struct LeavingService {
    pub(super) seed: u64,
    pub(super) history: History,
    ledger: EffectLedger,
    directory: PathBuf,
    states: Mutex<HashMap<String, Arc<RequestState>>>,
    /// The number of requests whose connection or stream was closed before their response.
    pub(super) noticed: AtomicU64,
    pub(super) while_running: AtomicU64,
    pub(super) left: Mutex<BTreeMap<Moment, u64>>,
    pub(super) stuck: AtomicU64,
}

impl LeavingService {
    pub(super) fn open(seed: u64) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let directory = std::env::temp_dir().join(format!("semel-wire-{unique}"));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a directory below the temporary one");
        Self {
            seed,
            history: History::open(&directory.join("history"), false).expect("a file of ours"),
            ledger: EffectLedger::open(&directory.join("effects"), false).expect("a file of ours"),
            directory,
            states: Mutex::default(),
            noticed: AtomicU64::new(0),
            while_running: AtomicU64::new(0),
            left: Mutex::default(),
            stuck: AtomicU64::new(0),
        }
    }

    pub(super) fn effects(&self) -> Vec<Effect> {
        self.ledger.effects().expect("our file")
    }

    pub(super) fn note(&self, key: &str, event: HistoryEvent) {
        let (client, request) = (key.to_owned(), key.to_owned());
        let answer = HistoryEntry { client, key: key.to_owned(), request, event };
        self.history.note(&answer).expect("our file");
    }

    /// Registers the state of a request.
    pub(super) fn expect(&self, key: &str, state: RequestState) -> Arc<RequestState> {
        let state = Arc::new(state);
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.insert(key.to_owned(), Arc::clone(&state));
        state
    }

    fn state(&self, key: &str) -> Arc<RequestState> {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(states.get(key).expect("requests have a state"))
    }

    /// Records that a caller has left, and whether the handler was running at that time.
    pub(super) fn leave(&self, state: &RequestState, at_work: bool) {
        self.while_running.fetch_add(u64::from(at_work), Ordering::SeqCst);
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left.entry(state.moment).or_default() += 1;
    }

    /// Returns a router with a fenced layer, whose effects are outside of the store.
    pub(super) fn fenced<S: Store>(service: &Arc<Self>, executor: Executor<S>) -> Router {
        let layer =
            IdempotencyLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global());
        let handler = async |State(service): State<Arc<Self>>,
                             OperationContext(claim): OperationContext| {
            // The response is created after the effect.
            let effect = Effect { value: String::new(), ..Effect::of(&claim) };
            let record = async || service.ledger.record(&effect).expect("our file");
            service.work(&claim, record).await
        };
        let routes = Router::new().route("/orders", post(handler));
        let layered = routes.layer(layer.rules(Self::rules()));
        layered
            .layer(middleware::from_fn_with_state(Arc::clone(service), watch))
            .with_state(Arc::clone(service))
    }

    /// Returns a router with an atomic layer, whose effects are in the same commit.
    pub(super) fn atomic<G: AtomicBackend>(
        service: &Arc<Self>,
        executor: Executor<G::Store>,
    ) -> Router {
        let layer =
            IdempotencyLayer::atomic(executor, Tenant::fixed("acme"), PrincipalFrom::global());
        let handler = async |State(service): State<Arc<Self>>,
                             OperationContext(claim): OperationContext,
                             tx: Tx<G::Store>| {
            let Tx(mut unit) = tx;
            let key = claim.key().id().to_owned();
            service.work(&claim, async || G::insert(unit.conn(), &key).await).await
        };
        let routes = Router::new().route("/orders", post(handler));
        let layered = routes.layer(layer.rules(Self::rules().required()));
        layered
            .layer(middleware::from_fn_with_state(Arc::clone(service), watch))
            .with_state(Arc::clone(service))
    }

    fn rules() -> Rules {
        Rules::new().wait(Wait::UpTo(super::patience()))
    }

    /// Runs the work of a request.
    async fn work(&self, claim: &Context, effect: impl AsyncFnOnce()) -> Vec<u8> {
        let key = claim.key().id();
        let state = self.state(key);
        self.note(key, HistoryEvent::Granted { attempt: claim.attempt(), fence: claim.fence().0 });
        state.reach(Stage::Running);
        state.await_leaving(Moment::BeforeTheEffect).await;
        tokio::time::sleep(state.takes[0]).await;
        effect().await;
        state.reach(Stage::Done);
        state.await_leaving(Moment::AfterTheEffect).await;
        tokio::time::sleep(state.takes[1]).await;
        // The response is different in every attempt, so that a second run would show.
        let length =
            if state.moment == Moment::InTheAnswer { LONG } else { fastrand::usize(8..300) };
        state.reach(Stage::Answered);
        fastrand::u64(..).to_be_bytes().repeat(length / 8)
    }
}

impl Drop for LeavingService {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Records requests that are dropped before they are answered, because the server saw that the
/// caller left.
async fn watch(
    State(service): State<Arc<LeavingService>>,
    request: Request,
    next: Next,
) -> Response {
    let key = request.headers().get("idempotency-key").and_then(|key| key.to_str().ok());
    let state = service.state(key.expect("requests have keys"));
    let mut dropped = Dropped(Some((service, state)));
    let response = next.run(request).await;
    dropped.0 = None;
    response
}

struct Dropped(Option<(Arc<LeavingService>, Arc<RequestState>)>);

impl Drop for Dropped {
    fn drop(&mut self) {
        if let Some((service, state)) = &self.0 {
            service.noticed.fetch_add(1, Ordering::SeqCst);
            state.notice();
        }
    }
}
