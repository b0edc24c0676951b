//! Tests of messages and responses that are too large, and of a ledger that is full.

use std::time::Duration;

use bytes::Bytes;
use semel_core::Wait;
use semel_testkit::Fixture as _;
use semel_tower::grpc::GrpcRules;
use tonic::{Code, Request, Response};

use crate::backend::{Backend, Memory};
use crate::bank::{Bank, Charge, Gate, HandlerCall, Receipt, paid};
use crate::bank_server::{BankServer, keyed, layer, pushback, refusal, refused, run_and_replayed};

/// Creates a charge under `key` whose message has this many bytes.
fn sized(key: Option<&str>, bytes: usize) -> Request<Charge> {
    use prost::Message as _;
    let with = |note: usize| Charge { note: vec![b'x'; note].into(), ..Charge::default() };
    // The header of a field grows with its length, so several lengths are tried.
    let note = (bytes.saturating_sub(8)..=bytes).find(|note| with(*note).encoded_len() == bytes);
    let mut request = Request::new(with(note.expect("a message of this size")));
    if let Some(key) = key {
        request.metadata_mut().insert("idempotency-key", key.parse().expect("ASCII"));
    }
    request
}

async fn a_message_at_the_limit_is_taken_and_a_byte_more_is_not<G: Backend>(backend: G) {
    let server =
        BankServer::open(&backend, GrpcRules::new().max_request(1_000), Bank::new(paid)).await;
    server.charge(sized(Some("fits"), 1_000)).await.expect("paid");
    let answer = server.charge(sized(Some("k"), 1_001)).await;
    assert_eq!(refused(answer), refusal(Code::ResourceExhausted, "BODY_TOO_LARGE"));
    assert_eq!(server.runs.count(), 1);
    // The key is free for a message that fits.
    server.charge(sized(Some("k"), 1_000)).await.expect("paid");
}

async fn a_message_far_too_large_is_refused_and_the_connection_lives_on<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let mut client = server.client().await;
    for _ in 0..5 {
        let answer = client.charge(sized(Some("k"), 3 << 20)).await;
        assert_eq!(refused(answer), refusal(Code::ResourceExhausted, "BODY_TOO_LARGE"));
    }
    assert_eq!(server.runs.count(), 0);
    client.charge(keyed("k", 100)).await.expect("paid");
}

async fn a_message_without_a_key_is_not_limited_by_the_layer<G: Backend>(backend: G) {
    let server =
        BankServer::open(&backend, GrpcRules::new().max_request(10), Bank::new(paid)).await;
    server.charge(sized(None, 2 << 20)).await.expect("paid");
}

fn with_blob(bytes: usize) -> Bank {
    Bank::new(move |call: HandlerCall| async move {
        let blob = Bytes::from(vec![b'x'; bytes]);
        Ok(Response::new(Receipt { blob, ..call.receipt() }))
    })
}

async fn a_response_too_large_to_store_is_delivered_once_and_never_runs_again<G: Backend>(
    backend: G,
) {
    let server =
        BankServer::open(&backend, GrpcRules::new().max_response(100_000), with_blob(100_000))
            .await;
    let first = server.charge(keyed("k", 100)).await.expect("paid");
    assert_eq!((run_and_replayed(&first), first.get_ref().blob.len()), ((1, false), 100_000));
    // In this process, and in another one, which has no local copy of the outcome.
    let there = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    for server in [&server, &there] {
        let again = server.charge(keyed("k", 100)).await;
        assert_eq!(refused(again), refusal(Code::FailedPrecondition, "RESULT_UNAVAILABLE"));
    }
    assert_eq!((server.runs.count(), there.runs.count()), (1, 0));
}

async fn an_answer_at_the_limit_is_kept<G: Backend>(backend: G) {
    use prost::Message as _;
    let bank = with_blob(50_000);
    let server = BankServer::open(&backend, GrpcRules::new(), bank.clone()).await;
    let size = server.charge(keyed("measure", 100)).await.expect("paid").get_ref().encoded_len();
    for (max, kept) in [(size, true), (size - 1, false)] {
        let server =
            BankServer::open(&backend, GrpcRules::new().max_response(max), bank.clone()).await;
        let key = max.to_string();
        server.charge(keyed(&key, 100)).await.expect("paid");
        assert_eq!(server.charge(keyed(&key, 100)).await.is_ok(), kept, "{max}");
    }
}

async fn a_response_that_tonic_will_not_send_does_not_run_again<G: Backend>(backend: G) {
    let server =
        BankServer::open(&backend, GrpcRules::new(), with_blob(5_000).sends_at_most(1_000)).await;
    let first = server.charge(keyed("k", 100)).await.expect_err("too large to send");
    assert_eq!(first.code(), Code::OutOfRange);
    let again = server.charge(keyed("k", 100)).await;
    assert_eq!(refused(again), refusal(Code::FailedPrecondition, "RESULT_UNAVAILABLE"));
    assert_eq!(server.runs.count(), 1);
}

async fn a_call_is_refused_before_it_runs_while_the_ledger_is_full<G: Backend>(_: G) {
    let backend = Memory::for_keys(2);
    let rules = GrpcRules::new().keep(Duration::from_secs(60));
    let server = BankServer::open(&backend, rules, Bank::new(paid)).await;
    for key in ["a", "b"] {
        server.charge(keyed(key, 100)).await.expect("paid");
    }
    let status = server.charge(keyed("c", 100)).await.expect_err("full");
    assert!(pushback(&status).is_some());
    assert_eq!(refused(Err(status)), refusal(Code::ResourceExhausted, "STORE_FULL"));
    assert_eq!(server.runs.count(), 2);
    // Repeats need no capacity.
    assert!(run_and_replayed(&server.charge(keyed("a", 100)).await.expect("paid before")).1);
    backend.advance(Duration::from_secs(61)).await;
    server.charge(keyed("c", 100)).await.expect("there is room again");
}

async fn at_most_as_many_calls_run_as_the_ledger_has_capacity_for<G: Backend>(_: G) {
    let server = BankServer::open(&Memory::for_keys(5), GrpcRules::new(), Bank::new(paid)).await;
    let calls = (0..32).map(|n| {
        let server = &server;
        async move { server.charge(keyed(&format!("k-{n}"), 100)).await }
    });
    let answers = futures_util::future::join_all(calls).await;
    let (paid, full): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((paid.len(), server.runs.count()), (5, 5));
    for answer in full {
        assert_eq!(refused(answer), refusal(Code::ResourceExhausted, "STORE_FULL"));
    }
}

async fn a_repeat_that_waits_needs_no_capacity<G: Backend>(_: G) {
    let gate = Gate::new();
    let rules = GrpcRules::new().wait(Wait::UpTo(Duration::from_secs(60)));
    let server = BankServer::open(&Memory::for_keys(1), rules, gate.bank()).await;
    let waiting = async {
        gate.reached().await;
        let second = server.charge(keyed("k", 100));
        tokio::join!(second, async { gate.open() }).0
    };
    let (first, second) = tokio::join!(server.charge(keyed("k", 100)), waiting);
    assert_eq!(run_and_replayed(&first.expect("paid")), (1, false));
    assert_eq!(run_and_replayed(&second.expect("paid before")), (1, true));
}

async fn a_call_runs_despite_a_full_ledger_if_a_rule_allows_it<G: Backend>(_: G) {
    let executor = Memory::for_keys(1).executor().await;
    let server =
        BankServer::with(layer(executor, GrpcRules::new().fail_open()), Bank::new(paid)).await;
    server.charge(keyed("a", 100)).await.expect("paid");
    for run in 2..=3 {
        let answer = server.charge(keyed("b", 100)).await.expect("paid without a claim");
        assert_eq!((run_and_replayed(&answer), &*answer.get_ref().operation), ((run, false), ""));
    }
}

on_every_store! {
    a_response_too_large_to_store_is_delivered_once_and_never_runs_again,
}

in_memory! {
    a_message_at_the_limit_is_taken_and_a_byte_more_is_not,
    a_message_far_too_large_is_refused_and_the_connection_lives_on,
    a_message_without_a_key_is_not_limited_by_the_layer,
    an_answer_at_the_limit_is_kept,
    a_response_that_tonic_will_not_send_does_not_run_again,
    a_call_is_refused_before_it_runs_while_the_ledger_is_full,
    at_most_as_many_calls_run_as_the_ledger_has_capacity_for,
    a_repeat_that_waits_needs_no_capacity,
    a_call_runs_despite_a_full_ledger_if_a_rule_allows_it,
}
