//! The service that is left: what it does is written down where nothing is unique.

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
use semel_testkit::effects::{Effect, EffectLedger, History, HistoryEntry as Answer, Told};
use semel_tower::axum::{OperationContext, Tx};
use semel_tower::http::{IdempotencyLayer, Rules};
use semel_tower::{PrincipalFrom, Tenant};

use super::desk::{Desk, Moment, Stage};
use crate::backend::AtomicBackend;

/// An answer that does not fit into what a client is willing to take at once.
const LONG: usize = 80 << 10;

pub(super) struct Office {
    pub(super) seed: u64,
    pub(super) history: History,
    ledger: EffectLedger,
    directory: PathBuf,
    desks: Mutex<HashMap<String, Arc<Desk>>>,
    /// Requests whose connection or stream was gone before their answer.
    pub(super) noticed: AtomicU64,
    pub(super) while_running: AtomicU64,
    pub(super) left: Mutex<BTreeMap<Moment, u64>>,
    pub(super) stuck: AtomicU64,
}

impl Office {
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
            desks: Mutex::default(),
            noticed: AtomicU64::new(0),
            while_running: AtomicU64::new(0),
            left: Mutex::default(),
            stuck: AtomicU64::new(0),
        }
    }

    pub(super) fn effects(&self) -> Vec<Effect> {
        self.ledger.effects().expect("our file")
    }

    pub(super) fn note(&self, key: &str, told: Told) {
        let (client, request) = (key.to_owned(), key.to_owned());
        let answer = Answer { client, key: key.to_owned(), request, told };
        self.history.note(&answer).expect("our file");
    }

    /// Keeps a desk ready for a request.
    pub(super) fn expect(&self, key: &str, desk: Desk) -> Arc<Desk> {
        let desk = Arc::new(desk);
        let mut desks = self.desks.lock().unwrap_or_else(PoisonError::into_inner);
        desks.insert(key.to_owned(), Arc::clone(&desk));
        desk
    }

    fn desk(&self, key: &str) -> Arc<Desk> {
        let desks = self.desks.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(desks.get(key).expect("requests have desks"))
    }

    /// A caller has left; whether the handler was at work then.
    pub(super) fn leave(&self, desk: &Desk, at_work: bool) {
        self.while_running.fetch_add(u64::from(at_work), Ordering::SeqCst);
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left.entry(desk.moment).or_default() += 1;
    }

    /// Behind a layer whose effects are elsewhere.
    pub(super) fn fenced<S: Store>(office: &Arc<Self>, executor: Executor<S>) -> Router {
        let layer =
            IdempotencyLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global());
        let handler = async |State(office): State<Arc<Self>>,
                             OperationContext(claim): OperationContext| {
            // The answer is made after the effect.
            let effect = Effect { value: String::new(), ..Effect::of(&claim) };
            let record = async || office.ledger.record(&effect).expect("our file");
            office.work(&claim, record).await
        };
        let routes = Router::new().route("/orders", post(handler));
        let layered = routes.layer(layer.rules(Self::rules()));
        layered
            .layer(middleware::from_fn_with_state(Arc::clone(office), watch))
            .with_state(Arc::clone(office))
    }

    /// Behind a layer whose effects are in the same commit.
    pub(super) fn atomic<G: AtomicBackend>(
        office: &Arc<Self>,
        executor: Executor<G::Store>,
    ) -> Router {
        let layer =
            IdempotencyLayer::atomic(executor, Tenant::fixed("acme"), PrincipalFrom::global());
        let handler = async |State(office): State<Arc<Self>>,
                             OperationContext(claim): OperationContext,
                             tx: Tx<G::Store>| {
            let Tx(mut unit) = tx;
            let key = claim.key().id().to_owned();
            office.work(&claim, async || G::insert(unit.conn(), &key).await).await
        };
        let routes = Router::new().route("/orders", post(handler));
        let layered = routes.layer(layer.rules(Self::rules().required()));
        layered
            .layer(middleware::from_fn_with_state(Arc::clone(office), watch))
            .with_state(Arc::clone(office))
    }

    fn rules() -> Rules {
        Rules::new().wait(Wait::UpTo(super::patience()))
    }

    /// What a request is for.
    async fn work(&self, claim: &Context, effect: impl AsyncFnOnce()) -> Vec<u8> {
        let key = claim.key().id();
        let desk = self.desk(key);
        self.note(key, Told::Granted { attempt: claim.attempt(), fence: claim.fence().0 });
        desk.reach(Stage::Running);
        desk.await_leaving(Moment::BeforeTheEffect).await;
        tokio::time::sleep(desk.takes[0]).await;
        effect().await;
        desk.reach(Stage::Done);
        desk.await_leaving(Moment::AfterTheEffect).await;
        tokio::time::sleep(desk.takes[1]).await;
        // Of no other attempt: an answer that was made twice would show.
        let length =
            if desk.moment == Moment::InTheAnswer { LONG } else { fastrand::usize(8..300) };
        desk.reach(Stage::Answered);
        fastrand::u64(..).to_be_bytes().repeat(length / 8)
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Notes requests that are dropped before they are answered: the server saw that somebody left.
async fn watch(State(office): State<Arc<Office>>, request: Request, next: Next) -> Response {
    let key = request.headers().get("idempotency-key").and_then(|key| key.to_str().ok());
    let desk = office.desk(key.expect("requests have keys"));
    let mut dropped = Dropped(Some((office, desk)));
    let response = next.run(request).await;
    dropped.0 = None;
    response
}

struct Dropped(Option<(Arc<Office>, Arc<Desk>)>);

impl Drop for Dropped {
    fn drop(&mut self) {
        if let Some((office, desk)) = &self.0 {
            office.noticed.fetch_add(1, Ordering::SeqCst);
            desk.notice();
        }
    }
}
