//! Tests which responses are stored, and how the claims of the others are settled.

use bytes::Bytes;
use prost::Message as _;
use semel_tower::grpc::{self, Codes, GrpcRules, SettleAs};
use tonic::{Code, Response, Status};

use crate::backend::Backend;
use crate::bank::{Bank, HandlerCall, Receipt};
use crate::bank_server::{BankServer, is_replayed, keyed, refusal, refused, run_and_replayed};

/// A handler that refuses its first run with the code that the cents of the request select.
async fn first_refused(call: HandlerCall) -> crate::bank::Answer {
    let code = Code::from_i32(i32::try_from(call.request.get_ref().cents).expect("a code") % 100);
    match call.claim().attempt() {
        1 if call.n == 1 => Err(Status::new(code, "first")),
        _ => call.paid(),
    }
}

/// Returns how a first response with `code` is settled, as far as a caller can observe it.
async fn settled_as<G: Backend>(backend: &G, codes: &Codes, code: i32) -> SettleAs {
    let server = || {
        BankServer::open(backend, GrpcRules::new().codes(codes.clone()), Bank::new(first_refused))
    };
    let key = |what: &str| format!("{codes:?}-{code}-{what}");
    let (repeated, corrected) = (server().await, server().await);
    let first = repeated.charge(keyed(&key("repeated"), code.into())).await;
    assert_eq!(first.expect_err("refused").code(), Code::from_i32(code));
    let again = repeated.charge(keyed(&key("repeated"), code.into())).await;
    if repeated.runs.count() == 1 {
        let status = again.expect_err("kept");
        assert!(is_replayed(status.metadata()), "{status:?}");
        assert_eq!((status.code(), status.message()), (Code::from_i32(code), "first"));
        return SettleAs::Keep;
    }
    assert_eq!(run_and_replayed(&again.expect("paid")), (2, false));
    // Another message under the same key shows whether the key was released.
    let _ = corrected.charge(keyed(&key("corrected"), code.into())).await;
    match corrected.charge(keyed(&key("corrected"), (code + 100).into())).await {
        Ok(answer) => {
            assert_eq!(run_and_replayed(&answer), (2, false));
            SettleAs::Release
        }
        status => {
            assert_eq!(refused(status), refusal(Code::FailedPrecondition, "KEY_REUSED"));
            SettleAs::Fail
        }
    }
}

async fn every_code_is_settled_as_documented_under_every_choice<G: Backend>(backend: G) {
    use SettleAs::{Fail, Keep, Release};
    let ok_only = [
        Fail, Fail, Release, Fail, Fail, Fail, Fail, Fail, Fail, Fail, Fail, Release, Fail, Fail,
        Fail, Fail,
    ];
    let mut terminal = ok_only;
    for kept in [3, 6, 9, 11, 12] {
        terminal[kept - 1] = Keep;
    }
    for (codes, fates) in [
        (Codes::ok_only(), ok_only),
        (Codes::terminal(), terminal),
        (Codes::everything(), [Keep; 16]),
    ] {
        for (code, expected) in (1..).zip(fates) {
            assert_eq!(settled_as(&backend, &codes, code).await, expected, "{codes:?} {code}");
        }
    }
}

async fn an_error_is_not_kept_and_the_repeat_keeps_its_operation<G: Backend>(backend: G) {
    let bank = Bank::new(|call: HandlerCall| async move {
        match call.n {
            1 | 2 => Err(Status::unavailable(call.claim().operation_id().to_string())),
            _ => call.paid(),
        }
    });
    let server = BankServer::open(&backend, GrpcRules::new(), bank).await;
    let mut operations = Vec::new();
    for _ in 0..2 {
        let status = server.charge(keyed("k", 100)).await.expect_err("unavailable");
        assert!(!is_replayed(status.metadata()));
        operations.push(status.message().to_owned());
    }
    let paid = server.charge(keyed("k", 100)).await.expect("paid");
    operations.push(paid.get_ref().operation.clone());
    assert_eq!(operations, vec![operations[0].clone(); 3]);
    assert!(run_and_replayed(&server.charge(keyed("k", 100)).await.expect("paid before")).1);
}

async fn a_custom_choice_decides_by_the_message<G: Backend>(backend: G) {
    let codes = Codes::by(|answer| {
        let receipt = answer.message().and_then(|message| Receipt::decode(message).ok());
        match receipt {
            Some(receipt) if receipt.blob == "final" => SettleAs::Keep,
            _ => SettleAs::Fail,
        }
    });
    let bank = Bank::new(|call: HandlerCall| async move {
        let blob = Bytes::from_static(if call.n < 3 { b"pending" } else { b"final" });
        Ok(Response::new(Receipt { blob, ..call.receipt() }))
    });
    let server = BankServer::open(&backend, GrpcRules::new().codes(codes), bank).await;
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(run_and_replayed(&server.charge(keyed("k", 100)).await.expect("answered")));
    }
    assert_eq!(seen, [(1, false), (2, false), (3, false), (3, true), (3, true)]);
}

async fn a_handler_may_choose_the_settlement<G: Backend>(backend: G) {
    let bank = Bank::new(|call: HandlerCall| async move {
        let mut response = Response::new(call.receipt());
        let fates = [SettleAs::Release, SettleAs::Fail, SettleAs::Keep];
        response.extensions_mut().insert(fates[call.n as usize - 1]);
        Ok(response)
    });
    let server = BankServer::open(&backend, GrpcRules::new(), bank).await;
    let mut seen = Vec::new();
    // A released key accepts another message; a failed one does not.
    for cents in [100, 200, 200, 200] {
        seen.push(run_and_replayed(&server.charge(keyed("k", cents)).await.expect("answered")));
    }
    assert_eq!(seen, [(1, false), (2, false), (3, false), (3, true)]);
}

/// A service behind the handler answers `NOT_FOUND` after the handler's own effect: the retry is
/// the same operation, and the provider recognises it. A handler without an effect so far may
/// release the claim.
async fn a_refusal_that_may_follow_an_effect_keeps_its_operation<G: Backend>(backend: G) {
    for code in [Code::NotFound, Code::PermissionDenied, Code::Unauthenticated] {
        for early in [false, true] {
            let bank = Bank::new(move |call: HandlerCall| async move {
                if call.n > 1 {
                    return call.paid();
                }
                let status = Status::new(code, call.claim().operation_id().to_string());
                Err(if early { grpc::released(status) } else { status })
            });
            let server = BankServer::open(&backend, GrpcRules::new(), bank).await;
            let key = format!("{code:?}-{early}");
            let refused = server.charge(keyed(&key, 100)).await.expect_err("refused");
            assert_eq!(refused.code(), code);
            assert!(
                refused.metadata().get("semel-released").is_none(),
                "the mark is only for the layer"
            );
            let paid = server.charge(keyed(&key, 100)).await.expect("paid");
            let same = paid.get_ref().operation == refused.message();
            assert_eq!(same, !early, "{code:?}, nothing done: {early}");
        }
    }
}

on_every_store! {
    a_refusal_that_may_follow_an_effect_keeps_its_operation,
    an_error_is_not_kept_and_the_repeat_keeps_its_operation,
    a_custom_choice_decides_by_the_message,
}

in_memory! {
    every_code_is_settled_as_documented_under_every_choice,
    a_handler_may_choose_the_settlement,
}
