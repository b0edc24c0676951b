//! Tests of repeats that wait for the response of a running request.

use std::time::Duration;

use http::StatusCode;
use semel_core::Wait;
use semel_tower::http::Rules;

use crate::backend::{Backend, on_every_store, post};
use crate::support::{Gate, serve};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(30);

async fn a_repeat_waits_for_the_answer_and_gets_it<G: Backend>(backend: G) {
    let gate = Gate::new();
    let rules = Rules::new().wait(Wait::UpTo(LONG));
    let (server, runs) = serve(&backend, rules, gate.handler()).await;
    let first = server.sending(post("/orders", "k", "{}"));
    gate.reached().await;
    let mut second = server.sending(post("/orders", "k", "{}"));
    let early = tokio::time::timeout(SHORT, &mut second).await;
    assert!(early.is_err(), "answered while the first still runs: {early:?}");
    gate.open();
    let (first, second) = (first.await.expect("an answer"), second.await.expect("an answer"));
    assert!(!first.replayed() && second.replayed());
    assert_eq!((first.status, &first.body), (second.status, &second.body));
    assert_eq!(runs.count(), 1);
}

async fn a_repeat_in_another_process_waits_too<G: Backend>(backend: G) {
    let gate = Gate::new();
    let rules = Rules::new().wait(Wait::UpTo(LONG));
    let (here, runs) = serve(&backend, rules.clone(), gate.handler()).await;
    let (there, others) = serve(&backend, rules, gate.handler()).await;
    let first = here.sending(post("/orders", "k", "{}"));
    gate.reached().await;
    let mut second = there.sending(post("/orders", "k", "{}"));
    assert!(tokio::time::timeout(SHORT, &mut second).await.is_err());
    gate.open();
    let (first, second) = (first.await.expect("an answer"), second.await.expect("an answer"));
    assert!(second.replayed());
    assert_eq!(first.body, second.body);
    assert_eq!((runs.count(), others.count()), (1, 0));
}

async fn a_wait_that_is_over_ends_with_in_progress<G: Backend>(backend: G) {
    for wait in [Wait::UpTo(SHORT), Wait::Deadline(SHORT)] {
        let gate = Gate::new();
        let (server, runs) = serve(&backend, Rules::new().wait(wait), gate.handler()).await;
        let key = format!("{wait:?}");
        let quoted = format!("\"{}\"", key.replace(['(', ')'], "-"));
        let first = server.sending(post("/orders", &quoted, "{}"));
        gate.reached().await;
        let repeat = server.send(post("/orders", &quoted, "{}")).await;
        assert_eq!(
            (repeat.status.as_u16(), repeat.problem().as_deref()),
            (409, Some("in-progress"))
        );
        assert_eq!(repeat.header("retry-after"), Some("1"));
        gate.open();
        assert_eq!(first.await.expect("an answer").status, 201);
        assert_eq!(runs.count(), 1);
    }
}

async fn a_waiter_runs_the_request_itself_when_the_first_releases_the_key<G: Backend>(backend: G) {
    let gate = Gate::new();
    let here = gate.clone();
    let rules = Rules::new().wait(Wait::UpTo(LONG));
    let (server, runs) = serve(&backend, rules, move |call| {
        let gate = here.clone();
        async move {
            if call.n > 1 {
                return call.created();
            }
            gate.pass().await;
            (StatusCode::NOT_FOUND, "not yet".to_owned())
        }
    })
    .await;
    let first = server.sending(post("/orders", "k", "{}"));
    gate.reached().await;
    let mut second = server.sending(post("/orders", "k", "{}"));
    assert!(tokio::time::timeout(SHORT, &mut second).await.is_err());
    gate.open();
    assert_eq!(first.await.expect("an answer").status, 404);
    let second = second.await.expect("an answer");
    assert_eq!((second.status.as_u16(), second.text()), (201, "run 2"));
    assert!(!second.replayed());
    assert_eq!(runs.count(), 2);
}

on_every_store! {
    a_repeat_waits_for_the_answer_and_gets_it,
    a_repeat_in_another_process_waits_too,
    a_wait_that_is_over_ends_with_in_progress,
    a_waiter_runs_the_request_itself_when_the_first_releases_the_key,
}
