//! Tests of handlers and ledgers that fail: what the caller and a repeat get.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{Draft, Opened};
use semel_core::{
    AttemptId, Command, Executor, Fingerprint, OnCrash, OnFailure, OperationId, Outcome, Recorded,
    Store,
};
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
use semel_tower::grpc::GrpcRules;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::bank::{Bank, Gate, HandlerCall, paid};
use crate::bank_server::{
    BankServer, charge_key, keyed, layer, pushback, refusal, refused, run_and_replayed, unkeyed,
};

async fn a_handler_that_panics_fails_and_the_repeat_runs<G: Backend>(backend: G) {
    let bank = Bank::new(|call: HandlerCall| async move {
        assert_ne!(call.n, 1, "the first run breaks");
        call.paid()
    });
    let server = BankServer::open(&backend, GrpcRules::new(), bank).await;
    let first = server.charge(keyed("k", 100)).await;
    assert_eq!(refused(first), refusal(Code::Internal, "WORK_FAILED"));
    assert_eq!(run_and_replayed(&server.charge(keyed("k", 100)).await.expect("paid")), (2, false));
}

async fn a_handler_that_panics_under_hold_is_not_run_again<G: Backend>(backend: G) {
    let bank = Bank::new(|call: HandlerCall| async move {
        assert_ne!(call.n, 1, "the first run breaks, after its effect");
        call.paid()
    });
    let rules = GrpcRules::new().command(|command| command.on_crash(OnCrash::Hold));
    let server = BankServer::open(&backend, rules, bank).await;
    let first = server.charge(keyed("k", 100)).await;
    assert_eq!(refused(first), refusal(Code::Internal, "WORK_FAILED"));
    for _ in 0..2 {
        let repeat = server.charge(keyed("k", 100)).await;
        assert_eq!(refused(repeat), refusal(Code::FailedPrecondition, "UNCERTAIN"));
    }
    assert_eq!(server.runs.count(), 1, "one effect");
}

async fn a_handler_that_takes_too_long_is_stopped_and_the_repeat_runs<G: Backend>(backend: G) {
    let bank = Bank::new(|call: HandlerCall| async move {
        if call.n == 1 {
            std::future::pending::<()>().await;
        }
        call.paid()
    });
    let limit = Duration::from_millis(50);
    let rules = GrpcRules::new().command(move |command| command.work_timeout(limit));
    let server = BankServer::open(&backend, rules, bank).await;
    let first = server.charge(keyed("k", 100)).await;
    assert_eq!(refused(first), refusal(Code::DeadlineExceeded, "WORK_TIMEOUT"));
    // Without the limit, which a busy machine may reach.
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let again = server.charge(keyed("k", 100)).await.expect("paid");
    assert_eq!(run_and_replayed(&again), (1, false));
}

async fn a_call_is_refused_before_it_runs_while_the_store_is_down<G: Backend>(backend: G) {
    let store = FaultyStore::new(backend.store().await);
    let faults = store.faults().clone();
    let server =
        BankServer::with(layer(Executor::new(store), GrpcRules::new()), Bank::new(paid)).await;
    faults.always(StoreCall::Open, Fault::Refuse);
    for _ in 0..3 {
        let status = server.charge(keyed("k", 100)).await.expect_err("the store is down");
        assert_eq!(pushback(&status), Some(1_000));
        assert_eq!(refused(Err(status)), refusal(Code::Unavailable, "STORE_UNAVAILABLE"));
    }
    assert_eq!(server.runs.count(), 0);
    assert_ne!(faults.happened(StoreCall::Open), 0);
    server.charge(unkeyed(100)).await.expect("a call without a key needs no store");
    faults.heal();
    assert_eq!(run_and_replayed(&server.charge(keyed("k", 100)).await.expect("paid")), (2, false));
}

async fn a_call_runs_without_the_store_if_a_rule_allows_it<G: Backend>(backend: G) {
    let store = FaultyStore::new(backend.store().await);
    store.faults().always(StoreCall::Open, Fault::Refuse);
    let layer = layer(Executor::new(store), GrpcRules::new().fail_open());
    let server = BankServer::with(layer, Bank::new(paid)).await;
    let answer = server.charge(keyed("k", 100)).await.expect("paid without a claim");
    assert_eq!((run_and_replayed(&answer), &*answer.get_ref().operation), ((1, false), ""));
}

async fn a_claim_or_an_outcome_whose_reply_was_lost_is_found_again<G: Backend>(backend: G) {
    for verb in [StoreCall::Open, StoreCall::Settle] {
        let store = FaultyStore::new(backend.store().await);
        let faults = store.faults().clone();
        faults.next(verb, Fault::LoseReply);
        let server =
            BankServer::with(layer(Executor::new(store), GrpcRules::new()), Bank::new(paid)).await;
        let key = format!("{verb:?}");
        assert_eq!(
            run_and_replayed(&server.charge(keyed(&key, 100)).await.expect("paid")),
            (1, false)
        );
        assert_eq!(faults.happened(verb), 1);
        // In another process, which has no local copy of the outcome.
        let there = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
        assert_eq!(
            run_and_replayed(&there.charge(keyed(&key, 100)).await.expect("paid before")),
            (1, true)
        );
    }
}

async fn a_failure_that_is_kept_stays<G: Backend>(backend: G) {
    let bank = Bank::new(|_| async { Err(Status::internal("broken")) });
    let rules = GrpcRules::new().command(|command| command.on_failure(OnFailure::Keep));
    let server = BankServer::open(&backend, rules, bank).await;
    assert_eq!(server.charge(keyed("k", 100)).await.expect_err("broken").message(), "broken");
    let again = server.charge(keyed("k", 100)).await;
    assert_eq!(refused(again), refusal(Code::FailedPrecondition, "FAILED"));
    assert_eq!(server.runs.count(), 1);
}

async fn a_call_whose_attempts_are_used_up_is_given_up<G: Backend>(backend: G) {
    let bank = Bank::new(|_| async { Err(Status::unavailable("broken")) });
    let rules = GrpcRules::new().command(|command| command.max_attempts(2));
    let server = BankServer::open(&backend, rules, bank).await;
    for _ in 0..2 {
        assert_eq!(server.charge(keyed("k", 100)).await.expect_err("broken").message(), "broken");
    }
    let again = server.charge(keyed("k", 100)).await;
    assert_eq!(refused(again), refusal(Code::FailedPrecondition, "DEAD"));
    assert_eq!(server.runs.count(), 2);
}

/// Claims a key like a process that then dies: the claim is never renewed or settled.
async fn abandon<S: Store>(store: &S, id: &str, on_crash: OnCrash) -> OperationId {
    let draft = Draft {
        key: charge_key(id),
        fingerprint: Fingerprint::none(),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: Arc::from("gone:1:1"),
        lease: Duration::from_secs(30),
        on_crash,
        keep: Duration::from_secs(3_600),
        retry_payload: None,
    };
    let opened = store.open(&draft).await.expect("the store answers");
    assert!(matches!(opened, Opened::Inserted { .. }), "{id} is not free");
    draft.operation_id
}

async fn a_call_whose_process_died_is_taken_over_under_its_operation<G: Backend>(backend: G) {
    let operation = abandon(&backend.store().await, "k", OnCrash::Rerun).await;
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let running = server.charge(keyed("k", 100)).await;
    assert_eq!(refused(running), refusal(Code::Aborted, "IN_PROGRESS"));
    backend.advance(Duration::from_secs(31)).await;
    let answer = server.charge(keyed("k", 100)).await.expect("paid");
    assert_eq!(answer.get_ref().operation, operation.to_string());
}

async fn a_call_that_may_have_happened_is_held<G: Backend>(backend: G) {
    abandon(&backend.store().await, "k", OnCrash::Hold).await;
    backend.advance(Duration::from_secs(31)).await;
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    for _ in 0..2 {
        let answer = server.charge(keyed("k", 100)).await;
        assert_eq!(refused(answer), refusal(Code::FailedPrecondition, "UNCERTAIN"));
    }
    assert_eq!(server.runs.count(), 0);
}

async fn a_stored_response_that_cannot_be_read_does_not_run_again<G: Backend>(backend: G) {
    let executor = backend.executor().await;
    let stored = [
        ("text", Outcome::new("text/plain", "hello")),
        ("cut", Outcome::new("application/vnd.semel.grpc.v1", &b"\x01\x00"[..])),
        ("http", Outcome::new("application/vnd.semel.http.v1", &b"\x01\x00\xc8"[..])),
    ];
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    for (id, outcome) in stored {
        let written = executor.serve(Command::new(charge_key(id)), |context| async move {
            context.complete((), Recorded::Whole(outcome))
        });
        let _ = written.await.expect("written");
        let answer = server.charge(keyed(id, 100)).await;
        let unavailable = refusal(Code::FailedPrecondition, "RESULT_UNAVAILABLE");
        assert_eq!(refused(answer), unavailable, "{id}");
    }
    assert_eq!(server.runs.count(), 0);
}

async fn a_service_that_shuts_down_refuses_new_calls<G: Backend>(backend: G) {
    let gate = Gate::new();
    let executor = backend.executor().await;
    let server = BankServer::with(layer(executor.clone(), GrpcRules::new()), gate.bank()).await;
    let stopping = async {
        gate.reached().await;
        let closing = executor.shutdown(Duration::from_secs(60));
        let late = async {
            // Calls are refused as soon as the executor has begun to close.
            let refusal = loop {
                let answer = server.charge(keyed("late", 100)).await;
                let status = answer.expect_err("the gate is shut");
                if status.code() == Code::Unavailable {
                    break status;
                }
            };
            gate.open();
            refusal
        };
        tokio::join!(closing, late).1
    };
    let (first, late) = tokio::join!(server.charge(keyed("k", 100)), stopping);
    assert_eq!(run_and_replayed(&first.expect("what runs is finished")), (1, false));
    assert_eq!(refused(Err(late)), refusal(Code::Unavailable, "SHUTTING_DOWN"));
}

on_every_store! {
    a_handler_that_panics_fails_and_the_repeat_runs,
    a_handler_that_panics_under_hold_is_not_run_again,
    a_handler_that_takes_too_long_is_stopped_and_the_repeat_runs,
    a_call_is_refused_before_it_runs_while_the_store_is_down,
    a_claim_or_an_outcome_whose_reply_was_lost_is_found_again,
    a_call_whose_process_died_is_taken_over_under_its_operation,
    a_call_that_may_have_happened_is_held,
}

in_memory! {
    a_call_runs_without_the_store_if_a_rule_allows_it,
    a_failure_that_is_kept_stays,
    a_call_whose_attempts_are_used_up_is_given_up,
    a_stored_response_that_cannot_be_read_does_not_run_again,
    a_service_that_shuts_down_refuses_new_calls,
}
