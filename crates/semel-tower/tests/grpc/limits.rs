//! Messages that are too large, answers that are too large, and a ledger that is full.

use std::time::Duration;

use bytes::Bytes;
use semel_core::Wait;
use semel_testkit::Fixture as _;
use semel_tower::grpc::GrpcRules;
use tonic::{Code, Request, Response};

use crate::backend::{Backend, Memory};
use crate::bank::{Bank, Charge, Gate, Receipt, Visit, paid};
use crate::desk::{Desk, keyed, layer, pushback, refusal, refused, told};

/// A charge under `key` whose message has this many bytes.
fn sized(key: Option<&str>, bytes: usize) -> Request<Charge> {
    use prost::Message as _;
    let with = |note: usize| Charge { note: vec![b'x'; note].into(), ..Charge::default() };
    // A field's head grows with its length, so the right size is one of a few.
    let note = (bytes.saturating_sub(8)..=bytes).find(|note| with(*note).encoded_len() == bytes);
    let mut request = Request::new(with(note.expect("a message of this size")));
    if let Some(key) = key {
        request.metadata_mut().insert("idempotency-key", key.parse().expect("ASCII"));
    }
    request
}

async fn a_message_at_the_limit_is_taken_and_a_byte_more_is_not<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new().max_request(1_000), Bank::new(paid)).await;
    desk.charge(sized(Some("fits"), 1_000)).await.expect("paid");
    let answer = desk.charge(sized(Some("k"), 1_001)).await;
    assert_eq!(refused(answer), refusal(Code::ResourceExhausted, "BODY_TOO_LARGE"));
    assert_eq!(desk.runs.count(), 1);
    // The key is free for a message that fits.
    desk.charge(sized(Some("k"), 1_000)).await.expect("paid");
}

async fn a_message_far_too_large_is_refused_and_the_connection_lives_on<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let mut teller = desk.teller().await;
    for _ in 0..5 {
        let answer = teller.charge(sized(Some("k"), 3 << 20)).await;
        assert_eq!(refused(answer), refusal(Code::ResourceExhausted, "BODY_TOO_LARGE"));
    }
    assert_eq!(desk.runs.count(), 0);
    teller.charge(keyed("k", 100)).await.expect("paid");
}

async fn a_message_without_a_key_has_no_limit_of_ours<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new().max_request(10), Bank::new(paid)).await;
    desk.charge(sized(None, 2 << 20)).await.expect("paid");
}

fn with_blob(bytes: usize) -> Bank {
    Bank::new(move |visit: Visit| async move {
        let blob = Bytes::from(vec![b'x'; bytes]);
        Ok(Response::new(Receipt { blob, ..visit.receipt() }))
    })
}

async fn an_answer_too_large_to_keep_is_delivered_once_and_never_made_again<G: Backend>(
    backend: G,
) {
    let desk =
        Desk::open(&backend, GrpcRules::new().max_response(100_000), with_blob(100_000)).await;
    let first = desk.charge(keyed("k", 100)).await.expect("paid");
    assert_eq!((told(&first), first.get_ref().blob.len()), ((1, false), 100_000));
    // Here, and in a process that has not seen it.
    let there = Desk::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    for desk in [&desk, &there] {
        let again = desk.charge(keyed("k", 100)).await;
        assert_eq!(refused(again), refusal(Code::FailedPrecondition, "RESULT_UNAVAILABLE"));
    }
    assert_eq!((desk.runs.count(), there.runs.count()), (1, 0));
}

async fn an_answer_at_the_limit_is_kept<G: Backend>(backend: G) {
    use prost::Message as _;
    let bank = with_blob(50_000);
    let desk = Desk::open(&backend, GrpcRules::new(), bank.clone()).await;
    let size = desk.charge(keyed("measure", 100)).await.expect("paid").get_ref().encoded_len();
    for (max, kept) in [(size, true), (size - 1, false)] {
        let desk = Desk::open(&backend, GrpcRules::new().max_response(max), bank.clone()).await;
        let key = max.to_string();
        desk.charge(keyed(&key, 100)).await.expect("paid");
        assert_eq!(desk.charge(keyed(&key, 100)).await.is_ok(), kept, "{max}");
    }
}

async fn an_answer_that_tonic_will_not_send_is_not_made_again<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new(), with_blob(5_000).sends_at_most(1_000)).await;
    let first = desk.charge(keyed("k", 100)).await.expect_err("too large to send");
    assert_eq!(first.code(), Code::OutOfRange);
    let again = desk.charge(keyed("k", 100)).await;
    assert_eq!(refused(again), refusal(Code::FailedPrecondition, "RESULT_UNAVAILABLE"));
    assert_eq!(desk.runs.count(), 1);
}

async fn a_full_ledger_is_told_before_anything_runs<G: Backend>(_: G) {
    let backend = Memory::for_keys(2);
    let rules = GrpcRules::new().keep(Duration::from_secs(60));
    let desk = Desk::open(&backend, rules, Bank::new(paid)).await;
    for key in ["a", "b"] {
        desk.charge(keyed(key, 100)).await.expect("paid");
    }
    let status = desk.charge(keyed("c", 100)).await.expect_err("full");
    assert!(pushback(&status).is_some());
    assert_eq!(refused(Err(status)), refusal(Code::ResourceExhausted, "STORE_FULL"));
    assert_eq!(desk.runs.count(), 2);
    // Repeats need no room.
    assert!(told(&desk.charge(keyed("a", 100)).await.expect("paid before")).1);
    backend.advance(Duration::from_secs(61)).await;
    desk.charge(keyed("c", 100)).await.expect("there is room again");
}

async fn at_most_as_many_run_at_once_as_the_ledger_has_room_for<G: Backend>(_: G) {
    let desk = Desk::open(&Memory::for_keys(5), GrpcRules::new(), Bank::new(paid)).await;
    let calls = (0..32).map(|n| {
        let desk = &desk;
        async move { desk.charge(keyed(&format!("k-{n}"), 100)).await }
    });
    let answers = futures_util::future::join_all(calls).await;
    let (paid, full): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((paid.len(), desk.runs.count()), (5, 5));
    for answer in full {
        assert_eq!(refused(answer), refusal(Code::ResourceExhausted, "STORE_FULL"));
    }
}

async fn a_repeat_that_waits_is_not_refused_for_want_of_room<G: Backend>(_: G) {
    let gate = Gate::new();
    let rules = GrpcRules::new().wait(Wait::UpTo(Duration::from_secs(60)));
    let desk = Desk::open(&Memory::for_keys(1), rules, gate.bank()).await;
    let waiting = async {
        gate.reached().await;
        let second = desk.charge(keyed("k", 100));
        tokio::join!(second, async { gate.open() }).0
    };
    let (first, second) = tokio::join!(desk.charge(keyed("k", 100)), waiting);
    assert_eq!(told(&first.expect("paid")), (1, false));
    assert_eq!(told(&second.expect("paid before")), (1, true));
}

async fn a_full_ledger_is_passed_by_where_a_rule_says_so<G: Backend>(_: G) {
    let executor = Memory::for_keys(1).executor().await;
    let desk = Desk::with(layer(executor, GrpcRules::new().fail_open()), Bank::new(paid)).await;
    desk.charge(keyed("a", 100)).await.expect("paid");
    for run in 2..=3 {
        let answer = desk.charge(keyed("b", 100)).await.expect("paid without a claim");
        assert_eq!((told(&answer), &*answer.get_ref().operation), ((run, false), ""));
    }
}

on_every_store! {
    an_answer_too_large_to_keep_is_delivered_once_and_never_made_again,
}

in_memory! {
    a_message_at_the_limit_is_taken_and_a_byte_more_is_not,
    a_message_far_too_large_is_refused_and_the_connection_lives_on,
    a_message_without_a_key_has_no_limit_of_ours,
    an_answer_at_the_limit_is_kept,
    an_answer_that_tonic_will_not_send_is_not_made_again,
    a_full_ledger_is_told_before_anything_runs,
    at_most_as_many_run_at_once_as_the_ledger_has_room_for,
    a_repeat_that_waits_is_not_refused_for_want_of_room,
    a_full_ledger_is_passed_by_where_a_rule_says_so,
}
