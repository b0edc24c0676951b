//! Which answers are kept, and what becomes of the others.

use bytes::Bytes;
use prost::Message as _;
use semel_tower::grpc::{self, Codes, GrpcRules, SettleAs};
use tonic::{Code, Response, Status};

use crate::backend::Backend;
use crate::bank::{Bank, Receipt, Visit};
use crate::desk::{Desk, is_replayed, keyed, refusal, refused, told};

/// Refuses its first run with the code that the caller asks for by its cents.
async fn first_refused(visit: Visit) -> crate::bank::Answer {
    let code = Code::from_i32(i32::try_from(visit.request.get_ref().cents).expect("a code") % 100);
    match visit.claim().attempt() {
        1 if visit.n == 1 => Err(Status::new(code, "first")),
        _ => visit.paid(),
    }
}

/// What becomes of a first answer with `code`, as a caller can see it.
async fn fate<G: Backend>(backend: &G, codes: &Codes, code: i32) -> SettleAs {
    let desk =
        || Desk::open(backend, GrpcRules::new().codes(codes.clone()), Bank::new(first_refused));
    let key = |what: &str| format!("{codes:?}-{code}-{what}");
    let (repeated, corrected) = (desk().await, desk().await);
    let first = repeated.charge(keyed(&key("repeated"), code.into())).await;
    assert_eq!(first.expect_err("refused").code(), Code::from_i32(code));
    let again = repeated.charge(keyed(&key("repeated"), code.into())).await;
    if repeated.runs.count() == 1 {
        let status = again.expect_err("kept");
        assert!(is_replayed(status.metadata()), "{status:?}");
        assert_eq!((status.code(), status.message()), (Code::from_i32(code), "first"));
        return SettleAs::Keep;
    }
    assert_eq!(told(&again.expect("paid")), (2, false));
    // Whether the key was given back shows in what another message under it gets.
    let _ = corrected.charge(keyed(&key("corrected"), code.into())).await;
    match corrected.charge(keyed(&key("corrected"), (code + 100).into())).await {
        Ok(answer) => {
            assert_eq!(told(&answer), (2, false));
            SettleAs::Release
        }
        status => {
            assert_eq!(refused(status), refusal(Code::FailedPrecondition, "KEY_REUSED"));
            SettleAs::Fail
        }
    }
}

async fn every_code_meets_its_fate_under_every_choice<G: Backend>(backend: G) {
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
            assert_eq!(fate(&backend, &codes, code).await, expected, "{codes:?} {code}");
        }
    }
}

async fn an_error_is_not_kept_and_the_repeat_keeps_its_operation<G: Backend>(backend: G) {
    let bank = Bank::new(|visit: Visit| async move {
        match visit.n {
            1 | 2 => Err(Status::unavailable(visit.claim().operation_id().to_string())),
            _ => visit.paid(),
        }
    });
    let desk = Desk::open(&backend, GrpcRules::new(), bank).await;
    let mut operations = Vec::new();
    for _ in 0..2 {
        let status = desk.charge(keyed("k", 100)).await.expect_err("unavailable");
        assert!(!is_replayed(status.metadata()));
        operations.push(status.message().to_owned());
    }
    let paid = desk.charge(keyed("k", 100)).await.expect("paid");
    operations.push(paid.get_ref().operation.clone());
    assert_eq!(operations, vec![operations[0].clone(); 3]);
    assert!(told(&desk.charge(keyed("k", 100)).await.expect("paid before")).1);
}

async fn a_strategy_of_ones_own_decides_by_the_message<G: Backend>(backend: G) {
    let codes = Codes::by(|answer| {
        let receipt = answer.message().and_then(|message| Receipt::decode(message).ok());
        match receipt {
            Some(receipt) if receipt.blob == "final" => SettleAs::Keep,
            _ => SettleAs::Fail,
        }
    });
    let bank = Bank::new(|visit: Visit| async move {
        let blob = Bytes::from_static(if visit.n < 3 { b"pending" } else { b"final" });
        Ok(Response::new(Receipt { blob, ..visit.receipt() }))
    });
    let desk = Desk::open(&backend, GrpcRules::new().codes(codes), bank).await;
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(told(&desk.charge(keyed("k", 100)).await.expect("answered")));
    }
    assert_eq!(seen, [(1, false), (2, false), (3, false), (3, true), (3, true)]);
}

async fn a_handler_may_say_itself_what_becomes_of_its_answer<G: Backend>(backend: G) {
    let bank = Bank::new(|visit: Visit| async move {
        let mut response = Response::new(visit.receipt());
        let fates = [SettleAs::Release, SettleAs::Fail, SettleAs::Keep];
        response.extensions_mut().insert(fates[visit.n as usize - 1]);
        Ok(response)
    });
    let desk = Desk::open(&backend, GrpcRules::new(), bank).await;
    let mut seen = Vec::new();
    // What was released may be asked for anew; what failed may not.
    for cents in [100, 200, 200, 200] {
        seen.push(told(&desk.charge(keyed("k", cents)).await.expect("answered")));
    }
    assert_eq!(seen, [(1, false), (2, false), (3, false), (3, true)]);
}

/// A service behind the handler says `NOT_FOUND` after the handler's own effect: the retry is the same
/// operation, and its provider recognises it. A handler that did nothing yet may say so.
async fn a_refusal_that_may_follow_an_effect_keeps_its_operation<G: Backend>(backend: G) {
    for code in [Code::NotFound, Code::PermissionDenied, Code::Unauthenticated] {
        for early in [false, true] {
            let bank = Bank::new(move |visit: Visit| async move {
                if visit.n > 1 {
                    return visit.paid();
                }
                let status = Status::new(code, visit.claim().operation_id().to_string());
                Err(if early { grpc::released(status) } else { status })
            });
            let desk = Desk::open(&backend, GrpcRules::new(), bank).await;
            let key = format!("{code:?}-{early}");
            let refused = desk.charge(keyed(&key, 100)).await.expect_err("refused");
            assert_eq!(refused.code(), code);
            assert!(refused.metadata().get("semel-released").is_none(), "said to the layer alone");
            let paid = desk.charge(keyed(&key, 100)).await.expect("paid");
            let same = paid.get_ref().operation == refused.message();
            assert_eq!(same, !early, "{code:?}, nothing done: {early}");
        }
    }
}

on_every_store! {
    a_refusal_that_may_follow_an_effect_keeps_its_operation,
    an_error_is_not_kept_and_the_repeat_keeps_its_operation,
    a_strategy_of_ones_own_decides_by_the_message,
}

in_memory! {
    every_code_meets_its_fate_under_every_choice,
    a_handler_may_say_itself_what_becomes_of_its_answer,
}
