//! Tests of the spans in which a handler logs, and of the span of a request with a key.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post as on_post;
use semel_core::store::memory::MemoryStore;
use semel_testkit::faulty::{Fault, StoreCall};
use semel_tower::http::Rules;
use tracing::Instrument as _;

use crate::backend::post;
use crate::recorder::{Fields, Recorder};
use crate::support::{faulty, layer, order, send};

/// The target of the handler's events.
const HANDLER: &str = "handler";
/// The span of a request with a key.
const SPAN: &str = "semel.request";

fn logging() -> Router {
    let handler = on_post(async || {
        tracing::info!(target: HANDLER, "here");
        tokio::task::yield_now().await;
        tracing::info!(target: HANDLER, "and here");
    });
    Router::new().route("/orders", handler)
}

fn handler_spans(recorder: &Recorder) -> Vec<Vec<&'static str>> {
    recorder.events(HANDLER).into_iter().map(|event| event.spans).collect()
}

/// On one thread, so that the test's subscriber gets the events of every task.
#[tokio::test]
async fn a_handler_under_a_claim_logs_in_the_span_of_its_request() {
    let (recorder, _subscribed) = Recorder::subscribe();
    let app = logging().layer(layer(MemoryStore::new()));
    let answer = send(&app, order()).instrument(tracing::info_span!("the request")).await;
    assert_eq!(answer.status, 200);
    let spans = handler_spans(&recorder);
    assert_eq!(spans.len(), 2);
    // The second event is logged in a separate task, which enters only the span of its request.
    assert!(spans.iter().all(|spans| spans.last() == Some(&SPAN)), "{spans:?}");
    assert_eq!(spans[0].first(), Some(&"the request"));
}

#[tokio::test]
async fn a_handler_without_a_claim_logs_in_the_span_of_its_request() {
    let (recorder, _subscribed) = Recorder::subscribe();
    let (store, faults) = faulty(MemoryStore::new());
    faults.always(StoreCall::Open, Fault::Refuse);
    let app = logging().layer(layer(store).rules(Rules::new().fail_open()));
    let answer = send(&app, order()).instrument(tracing::info_span!("the request")).await;
    assert_eq!(answer.status, 200);
    let spans = handler_spans(&recorder);
    assert!(spans.len() == 2 && spans.iter().all(|spans| spans.last() == Some(&SPAN)), "{spans:?}");
    let [span] = &recorder.spans(SPAN)[..] else { panic!("one span a request") };
    assert_eq!(span.fields["semel.outcome"], "unprotected");
}

fn shown<'f>(fields: &'f Fields, names: &[&'static str]) -> Vec<&'f str> {
    names.iter().map(|name| fields.get(name).map_or("", String::as_str)).collect()
}

#[tokio::test]
async fn a_request_with_a_key_has_one_span_with_its_outcome() {
    let (recorder, _subscribed) = Recorder::subscribe();
    let created = on_post(async || StatusCode::CREATED);
    let app = Router::new().route("/orders/{id}", created).layer(layer(MemoryStore::new()));
    let secret = "the-clients-own-key";
    assert_eq!(send(&app, post("/orders/7", secret, "{}")).await.status, 201);
    assert!(send(&app, post("/orders/7", secret, "{}")).await.replayed());
    assert_eq!(send(&app, post("/orders/7", secret, "{\"other\":1}")).await.status, 422);

    let spans = recorder.spans(SPAN);
    assert_eq!(spans.len(), 3);
    let outcomes: Vec<Vec<&str>> = spans
        .iter()
        .map(|span| {
            let names = [
                "semel.outcome",
                "semel.replayed",
                "semel.attempt",
                "http.response.status_code",
                "error.type",
            ];
            shown(&span.fields, &names)
        })
        .collect();
    let expected = [
        vec!["executed", "false", "1", "201", ""],
        vec!["replayed", "true", "1", "201", ""],
        vec!["refused", "false", "", "422", "key-reused"],
    ];
    assert_eq!(outcomes, expected);
    let [first, again, _] = &spans[..] else { unreachable!("there are three") };
    let request = shown(&first.fields, &["http.request.method", "semel.kind", "semel.operation"]);
    assert_eq!(request, ["POST", "http", "POST /orders/{id}"]);
    assert_eq!(first.fields["semel.operation_id"], again.fields["semel.operation_id"]);
    assert_eq!(first.fields["semel.key"], again.fields["semel.key"]);
    for span in &spans {
        let texts = format!("{:?}", span.fields);
        assert!(!texts.contains(secret) && !texts.contains("acme"), "{texts}");
    }
}
