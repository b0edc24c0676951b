//! Tests what a repeat gets: the first response, a refusal while the call runs, or the response
//! after a wait.

use std::time::Duration;

use futures_util::future::join_all;
use semel_core::{OnFailure, Wait};
use semel_tower::grpc::GrpcRules;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::bank::{Bank, CHARGE, Gate, REFUND, paid};
use crate::bank_server::{
    BankServer, is_replayed, keyed, pushback, raw_charge, refusal, refused, run_and_replayed,
    unkeyed,
};

async fn a_call_runs_once_and_its_repeats_get_its_answer<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let mut client = server.client().await;
    let first = client.charge(keyed("k", 100)).await.expect("paid");
    assert_eq!(run_and_replayed(&first), (1, false));
    for _ in 0..3 {
        let again = client.charge(keyed("k", 100)).await.expect("paid before");
        assert_eq!((again.get_ref(), run_and_replayed(&again)), (first.get_ref(), (1, true)));
    }
    assert_eq!(server.runs.count(), 1);
    let other = client.charge(keyed("another", 100)).await.expect("paid");
    assert_eq!(run_and_replayed(&other), (2, false));
}

async fn the_mark_is_in_the_trailers_and_all_else_is_the_same_bytes<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let first = server.send(raw_charge("k", 100)).await;
    let mut again = server.send(raw_charge("k", 100)).await;
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.header("content-type"), first.header("content-type"));
    assert_eq!(again.header("idempotent-replayed"), None, "initial metadata ends retries");
    assert_eq!(again.trailers.remove("idempotent-replayed").expect("a mark"), "true");
    assert_eq!(again.trailers, first.trailers);
    assert_eq!(again.trailers["grpc-status"], "0");
}

async fn a_call_without_a_key_runs_every_time<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    for run in 1..=3 {
        let answer = server.charge(unkeyed(100)).await.expect("paid");
        assert_eq!(run_and_replayed(&answer), (run, false));
        assert_eq!(answer.get_ref().operation, "", "there is no claim");
    }
}

async fn a_repeat_at_another_process_gets_the_first_answer<G: Backend>(backend: G) {
    let here = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let first = here.charge(keyed("k", 100)).await.expect("paid");
    let there = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let again = there.charge(keyed("k", 100)).await.expect("paid before");
    assert_eq!((again.get_ref(), run_and_replayed(&again)), (first.get_ref(), (1, true)));
    assert_eq!(there.runs.count(), 0);
}

async fn a_response_is_forgotten_when_its_keep_is_over<G: Backend>(backend: G) {
    let rules = GrpcRules::new().keep(Duration::from_secs(60));
    let server = BankServer::open(&backend, rules.clone(), Bank::new(paid)).await;
    let first = server.charge(keyed("k", 100)).await.expect("paid");
    backend.advance(Duration::from_secs(61)).await;
    // In another process, which has no local copy of the outcome.
    let server = BankServer::open(&backend, rules, Bank::new(paid)).await;
    let fresh = server.charge(keyed("k", 900)).await.expect("another charge altogether");
    assert_eq!(run_and_replayed(&fresh), (1, false));
    assert_ne!(fresh.get_ref().operation, first.get_ref().operation);
}

async fn sixty_four_at_once_run_once<G: Backend>(backend: G) {
    let gate = Gate::new();
    let rules = GrpcRules::new().wait(Wait::UpTo(Duration::from_secs(60)));
    let server = BankServer::open(&backend, rules, gate.bank()).await;
    let calls = (0..64).map(|_| async {
        let mut client = server.client().await;
        let answer = client.charge(keyed("k", 100)).await.expect("paid");
        (answer.get_ref().clone(), is_replayed(answer.metadata()))
    });
    let calling = join_all(calls);
    let opening = async {
        gate.reached().await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(calling, opening);
    assert_eq!(server.runs.count(), 1);
    assert!(answers.iter().all(|(receipt, _)| *receipt == answers[0].0));
    assert_eq!(answers.iter().filter(|(_, replayed)| !replayed).count(), 1);
}

async fn a_repeat_of_a_running_call_gets_the_delay_before_a_retry<G: Backend>(backend: G) {
    let gate = Gate::new();
    let rules = GrpcRules::new().retry_after(Duration::from_millis(250));
    let server = BankServer::open(&backend, rules, gate.bank()).await;
    let mut client = server.client().await;
    let first = {
        let mut client = client.clone();
        tokio::spawn(async move { client.charge(keyed("k", 100)).await })
    };
    gate.reached().await;
    let running = client.charge(keyed("k", 100)).await.expect_err("it is running");
    assert_eq!(pushback(&running), Some(250));
    assert_eq!(refused(Err(running)), refusal(Code::Aborted, "IN_PROGRESS"));
    // Another message under the same key is refused at once.
    let other = client.charge(keyed("k", 900)).await;
    assert_eq!(refused(other), refusal(Code::FailedPrecondition, "KEY_REUSED"));
    gate.open();
    let first = first.await.expect("ends").expect("paid");
    let again = client.charge(keyed("k", 100)).await.expect("paid before");
    assert_eq!((run_and_replayed(&first), run_and_replayed(&again)), ((1, false), (1, true)));
}

async fn a_refusal_has_trailers_only<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    server.charge(keyed("k", 100)).await.expect("paid");
    let answer = server.send(raw_charge("k", 900)).await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 0));
    assert_eq!(answer.header("content-type"), Some("application/grpc"));
    assert_eq!(answer.header("grpc-status"), Some("9"));
    assert!(answer.trailers.is_empty());
}

async fn a_repeat_that_waits_gets_the_response_when_it_is_recorded<G: Backend>(backend: G) {
    let gate = Gate::new();
    let rules = GrpcRules::new().wait(Wait::UpTo(Duration::from_secs(60)));
    let here = BankServer::open(&backend, rules.clone(), gate.bank()).await;
    let there = BankServer::open(&backend, rules, gate.bank()).await;
    let waiting = async {
        gate.reached().await;
        let second = there.charge(keyed("k", 100));
        let opening = async { gate.open() };
        tokio::join!(second, opening).0
    };
    let (first, second) = tokio::join!(here.charge(keyed("k", 100)), waiting);
    assert_eq!(run_and_replayed(&first.expect("paid")), (1, false));
    assert_eq!(run_and_replayed(&second.expect("paid before")), (1, true));
    assert_eq!(there.runs.count(), 0);
}

async fn a_repeat_whose_wait_is_over_gets_the_code_of_its_wait<G: Backend>(backend: G) {
    let gate = Gate::new();
    let short = Duration::from_millis(20);
    let up_to =
        BankServer::open(&backend, GrpcRules::new().wait(Wait::UpTo(short)), gate.bank()).await;
    let deadline =
        BankServer::open(&backend, GrpcRules::new().wait(Wait::Deadline(short)), gate.bank()).await;
    let waiting = async {
        gate.reached().await;
        let answers = (up_to.charge(keyed("k", 100)).await, deadline.charge(keyed("k", 100)).await);
        gate.open();
        answers
    };
    let (first, (aborted, exceeded)) = tokio::join!(up_to.charge(keyed("k", 100)), waiting);
    first.expect("paid");
    assert_eq!(refused(aborted), refusal(Code::Aborted, "IN_PROGRESS"));
    assert_eq!(refused(exceeded), refusal(Code::DeadlineExceeded, "IN_PROGRESS"));
    assert_eq!((up_to.runs.count(), deadline.runs.count()), (1, 0));
}

async fn a_waiter_whose_holder_fails_runs_it_itself<G: Backend>(backend: G) {
    let gate = Gate::new();
    let bank = Bank::new({
        let gate = gate.clone();
        move |call| {
            let gate = gate.clone();
            async move {
                gate.pass(&call).await;
                if call.n == 1 { Err(Status::unavailable("not yet")) } else { call.paid() }
            }
        }
    });
    let rules = GrpcRules::new().wait(Wait::UpTo(Duration::from_secs(60)));
    let server = BankServer::open(&backend, rules, bank).await;
    let waiting = async {
        gate.reached().await;
        let second = server.charge(keyed("k", 100));
        let opening = async {
            gate.open();
            gate.reached().await;
            gate.open();
        };
        tokio::join!(second, opening).0
    };
    let (first, second) = tokio::join!(server.charge(keyed("k", 100)), waiting);
    assert_eq!(first.expect_err("failed").code(), Code::Unavailable);
    assert_eq!(run_and_replayed(&second.expect("paid")), (2, false));
}

async fn a_failed_call_that_is_not_due_gets_the_delay_until_it_is<G: Backend>(backend: G) {
    let bank = Bank::new(|call| async move {
        if call.n == 1 { Err(Status::internal("broken")) } else { call.paid() }
    });
    let rules = GrpcRules::new().command(|command| {
        let base = Duration::from_secs(60);
        command.on_failure(OnFailure::Backoff { base, cap: base })
    });
    let server = BankServer::open(&backend, rules, bank).await;
    assert_eq!(server.charge(keyed("k", 100)).await.expect_err("broken").code(), Code::Internal);
    let early = server.charge(keyed("k", 100)).await.expect_err("it is not due");
    let due = pushback(&early).expect("when to come again");
    assert!((1..=60_000).contains(&due), "{due}");
    assert_eq!(refused(Err(early)), refusal(Code::Aborted, "BACKING_OFF"));
    backend.advance(Duration::from_secs(61)).await;
    assert_eq!(run_and_replayed(&server.charge(keyed("k", 100)).await.expect("paid")), (2, false));
}

async fn each_method_has_keys_of_its_own<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let mut client = server.client().await;
    for (run, path) in [(1, CHARGE), (2, REFUND)] {
        for replayed in [false, true] {
            let answer = client.call(path, keyed("k", 100)).await.expect("paid");
            assert_eq!(run_and_replayed(&answer), (run, replayed), "{path}");
        }
    }
}

on_every_store! {
    a_call_runs_once_and_its_repeats_get_its_answer,
    the_mark_is_in_the_trailers_and_all_else_is_the_same_bytes,
    a_call_without_a_key_runs_every_time,
    a_repeat_at_another_process_gets_the_first_answer,
    a_response_is_forgotten_when_its_keep_is_over,
    sixty_four_at_once_run_once,
    a_repeat_of_a_running_call_gets_the_delay_before_a_retry,
    a_repeat_that_waits_gets_the_response_when_it_is_recorded,
    a_repeat_whose_wait_is_over_gets_the_code_of_its_wait,
    a_waiter_whose_holder_fails_runs_it_itself,
    a_failed_call_that_is_not_due_gets_the_delay_until_it_is,
    each_method_has_keys_of_its_own,
}

in_memory! {
    a_refusal_has_trailers_only,
}
