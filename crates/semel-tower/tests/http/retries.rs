//! Tests of retries after an attempt whose response was not stored.

use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use semel_core::OperationId;
use semel_tower::http::{Preset, Rules};

use crate::backend::{Backend, Server, on_every_store, post};
use crate::support::{Runs, serve};

/// The calls of handlers to a provider, in order.
type ProviderCalls = Arc<Mutex<Vec<(u32, OperationId, String)>>>;

fn provider_calls(book: &ProviderCalls) -> Vec<(u32, OperationId, String)> {
    book.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Serves a handler that records its call to a provider and answers its runs with these statuses.
async fn recording<G: Backend>(
    backend: &G,
    book: &ProviderCalls,
    statuses: &'static [u16],
) -> (Server, Runs) {
    let book = Arc::clone(book);
    serve(backend, Rules::new(), move |call| {
        book.lock().unwrap_or_else(PoisonError::into_inner).push(call.provider_call());
        let status = statuses[call.n as usize - 1];
        std::future::ready((StatusCode::from_u16(status).expect("a status"), call.body))
    })
    .await
}

async fn a_retry_after_a_failure_is_the_same_operation<G: Backend>(backend: G) {
    let book = ProviderCalls::default();
    let (server, runs) = recording(&backend, &book, &[503, 500, 201]).await;
    let statuses = [
        server.send(post("/orders", "k", "{}")).await.status.as_u16(),
        server.send(post("/orders", "k", "{}")).await.status.as_u16(),
        server.send(post("/orders", "k", "{}")).await.status.as_u16(),
    ];
    assert_eq!(statuses, [503, 500, 201]);
    let provider_calls = provider_calls(&book);
    assert_eq!(
        provider_calls.iter().map(|provider_calls| provider_calls.0).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert!(
        provider_calls
            .iter()
            .all(|(_, id, key)| (id, key) == (&provider_calls[0].1, &provider_calls[0].2)),
        "{provider_calls:?}"
    );
    assert!(server.send(post("/orders", "k", "{}")).await.replayed());
    assert_eq!(runs.count(), 3);
}

async fn a_retry_in_another_process_is_the_same_operation<G: Backend>(backend: G) {
    let book = ProviderCalls::default();
    let (here, _) = recording(&backend, &book, &[502]).await;
    let (there, _) = recording(&backend, &book, &[201]).await;
    assert_eq!(here.send(post("/orders", "k", "{}")).await.status, 502);
    assert_eq!(there.send(post("/orders", "k", "{}")).await.status, 201);
    let provider_calls = provider_calls(&book);
    assert_eq!((provider_calls[0].0, provider_calls[1].0), (1, 2));
    assert_eq!(
        (&provider_calls[0].1, &provider_calls[0].2),
        (&provider_calls[1].1, &provider_calls[1].2)
    );
    assert!(here.send(post("/orders", "k", "{}")).await.replayed());
}

async fn a_failed_key_is_not_for_another_request<G: Backend>(backend: G) {
    let book = ProviderCalls::default();
    let (server, runs) = recording(&backend, &book, &[500, 200]).await;
    assert_eq!(server.send(post("/orders", "k", "[1]")).await.status, 500);
    let other = server.send(post("/orders", "k", "[2]")).await;
    assert_eq!(other.problem().as_deref(), Some("key-reused"));
    assert_eq!(runs.count(), 1);
    assert_eq!(server.send(post("/orders", "k", "[1]")).await.status, 200);
}

async fn a_refused_key_is_for_a_corrected_request<G: Backend>(backend: G) {
    let book: Arc<Mutex<Vec<_>>> = Arc::default();
    let noting = Arc::clone(&book);
    let (server, runs) = serve(&backend, Rules::new(), move |call| {
        noting.lock().unwrap_or_else(PoisonError::into_inner).push(call.operation());
        let status = if call.n == 1 { 422 } else { 201 };
        std::future::ready((StatusCode::from_u16(status).expect("a status"), call.body))
    })
    .await;
    let refused = server.send(post("/orders", "k", r#"{"amount":-1}"#)).await;
    assert_eq!((refused.status.as_u16(), refused.problem()), (422, None), "the handler's own");
    assert_eq!(refused.text(), r#"{"amount":-1}"#);
    let corrected = server.send(post("/orders", "k", r#"{"amount":1}"#)).await;
    assert_eq!((corrected.status.as_u16(), corrected.replayed()), (201, false));
    assert!(server.send(post("/orders", "k", r#"{"amount":1}"#)).await.replayed());
    let noted = book.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!((noted[0].0, noted[1].0), (1, 1));
    assert_ne!(noted[0].1, noted[1].1, "a refused operation leaves nothing behind");
    assert_eq!(runs.count(), 2);
}

async fn a_refusal_after_a_call_to_a_provider_keeps_the_operation<G: Backend>(backend: G) {
    let book = ProviderCalls::default();
    let (server, _) = recording(&backend, &book, &[404, 201]).await;
    assert_eq!(server.send(post("/orders", "k", "[1]")).await.status, 404);
    // The provider may have made the charge: another request under this key would be a second
    // charge.
    let other = server.send(post("/orders", "k", "[2]")).await;
    assert_eq!(other.problem().as_deref(), Some("key-reused"));
    assert_eq!(server.send(post("/orders", "k", "[1]")).await.status, 201);
    let provider_calls = provider_calls(&book);
    assert_eq!(
        (&provider_calls[0].1, &provider_calls[0].2),
        (&provider_calls[1].1, &provider_calls[1].2)
    );
}

async fn a_refusal_after_a_failure_is_not_kept<G: Backend>(backend: G) {
    let rules = Rules::new().preset(Preset::below_500());
    let (server, runs) = serve(&backend, rules, |call| async move {
        // A 409 because of the effect of the first attempt.
        StatusCode::from_u16([500, 409, 201][call.n as usize - 1]).expect("a status")
    })
    .await;
    for status in [500, 409, 201] {
        let answer = server.send(post("/orders", "k", "{}")).await;
        assert_eq!((answer.status.as_u16(), answer.replayed()), (status, false));
    }
    assert!(server.send(post("/orders", "k", "{}")).await.replayed());
    assert_eq!(runs.count(), 3);
}

async fn a_refusal_after_a_failure_keeps_the_operation<G: Backend>(backend: G) {
    let book = ProviderCalls::default();
    let (server, _) = recording(&backend, &book, &[500, 429, 201]).await;
    for status in [500, 429, 201] {
        assert_eq!(server.send(post("/orders", "k", "{}")).await.status, status);
    }
    let provider_calls = provider_calls(&book);
    assert!(
        provider_calls
            .iter()
            .all(|(_, id, key)| (id, key) == (&provider_calls[0].1, &provider_calls[0].2)),
        "{provider_calls:?}"
    );
    assert!(provider_calls[2].0 > provider_calls[0].0);
}

on_every_store! {
    a_retry_after_a_failure_is_the_same_operation,
    a_retry_in_another_process_is_the_same_operation,
    a_failed_key_is_not_for_another_request,
    a_refused_key_is_for_a_corrected_request,
    a_refusal_after_a_failure_keeps_the_operation,
    a_refusal_after_a_call_to_a_provider_keeps_the_operation,
    a_refusal_after_a_failure_is_not_kept,
}
