//! Whose log a handler writes to: its request's, although it runs in a task of its own.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::post as on_post;
use semel_core::store::memory::MemoryStore;
use semel_testkit::faulty::{Fault, StoreCall as Verb};
use semel_tower::http::Rules;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Instrument as _, Metadata, Subscriber};
use tracing_core::span::Current;

use crate::stage::{faulty, layer, order, send};

/// What the handler logs to.
const HANDLER: &str = "handler";

thread_local! {
    /// The spans that are entered on this thread, innermost last.
    static ENTERED: RefCell<Vec<Id>> = const { RefCell::new(Vec::new()) };
}

/// Notes in which span the handler's events fall.
#[derive(Clone, Default)]
struct Log {
    spans: Arc<Mutex<Vec<&'static Metadata<'static>>>>,
    heard: Arc<Mutex<Vec<&'static str>>>,
}

impl Log {
    fn metadata(&self, span: &Id) -> &'static Metadata<'static> {
        let at = usize::try_from(span.into_u64()).expect("a number of ours") - 1;
        self.spans.lock().expect("not poisoned")[at]
    }

    fn heard(&self) -> Vec<&'static str> {
        self.heard.lock().expect("not poisoned").clone()
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut spans = self.spans.lock().expect("not poisoned");
        spans.push(span.metadata());
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if event.metadata().target() == HANDLER {
            let span = ENTERED.with_borrow(|entered| entered.last().cloned());
            let name = span.map_or("no span", |span| self.metadata(&span).name());
            self.heard.lock().expect("not poisoned").push(name);
        }
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.clone()));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(Vec::pop);
    }

    fn current_span(&self) -> Current {
        let innermost = ENTERED.with_borrow(|entered| entered.last().cloned());
        innermost.map_or_else(Current::none, |span| {
            let metadata = self.metadata(&span);
            Current::new(span, metadata)
        })
    }
}

fn telling() -> Router {
    let handler = on_post(async || {
        tracing::info!(target: HANDLER, "here");
        tokio::task::yield_now().await;
        tracing::info!(target: HANDLER, "and here");
    });
    Router::new().route("/orders", handler)
}

/// On one thread, where what a test subscribes to is heard of every task.
#[tokio::test]
async fn a_handler_under_a_claim_writes_to_its_requests_log() {
    let log = Log::default();
    let _subscribed = tracing::subscriber::set_default(log.clone());
    let app = telling().layer(layer(MemoryStore::new()));
    let answer = send(&app, order()).instrument(tracing::info_span!("the request")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(log.heard(), ["the request"; 2]);
}

#[tokio::test]
async fn a_handler_without_a_claim_writes_to_its_requests_log() {
    let log = Log::default();
    let _subscribed = tracing::subscriber::set_default(log.clone());
    let (store, faults) = faulty(MemoryStore::new());
    faults.always(Verb::Open, Fault::Refuse);
    let app = telling().layer(layer(store).rules(Rules::new().fail_open()));
    let answer = send(&app, order()).instrument(tracing::info_span!("the request")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(log.heard(), ["the request"; 2]);
}
