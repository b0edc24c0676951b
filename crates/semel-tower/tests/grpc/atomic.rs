//! Handlers that write to the ledger's own database: claim, rows and answer are one commit.

use std::marker::PhantomData;
use std::time::Duration;

use bytes::Bytes;
use semel_core::store::TransactionalStore;
use semel_tower::grpc::{Codes, GrpcLayer, GrpcRules};
use semel_tower::{PrincipalFrom, Tenant, Transaction};
use tonic::{Code, Response, Status};

use crate::backend::AtomicBackend;
use crate::bank::{Answer, Bank, CHARGE, Gate, Receipt, Visit};
use crate::desk::{Desk, is_replayed, keyed, refusal, refused, told, unkeyed};

/// Writes a row, then answers as told.
fn writing<G: AtomicBackend>(
    answer: impl Fn(&Visit) -> Answer + Clone + Send + Sync + 'static,
) -> Bank {
    let backend = PhantomData::<fn() -> G>;
    Bank::new(move |visit| {
        let answer = answer.clone();
        let _ = backend;
        async move {
            write::<G>(&visit).await;
            answer(&visit)
        }
    })
}

async fn write<G: AtomicBackend>(visit: &Visit) {
    let carried = visit.request.extensions().get::<Transaction<G::Store>>();
    let mut unit = carried.and_then(Transaction::take).expect("a transaction");
    G::insert(connection::<G>(&mut unit), &format!("run {}", visit.n)).await;
}

fn connection<G: AtomicBackend>(
    unit: &mut semel_core::executor::Unit<G::Store>,
) -> &mut <G::Store as TransactionalStore>::Connection {
    unit.conn()
}

async fn open<G: AtomicBackend>(backend: &G, rules: GrpcRules, bank: Bank) -> Desk {
    let executor = backend.executor().await;
    let layer = GrpcLayer::atomic(executor, Tenant::fixed("acme"), PrincipalFrom::global());
    Desk::with(layer.unary(CHARGE, rules.required()), bank).await
}

async fn rows_and_answer_are_committed_once<G: AtomicBackend>(backend: G) {
    let desk = open(&backend, GrpcRules::new(), writing::<G>(Visit::paid)).await;
    for replayed in [false, true, true] {
        let answer = desk.charge(keyed("k", 100)).await.expect("paid");
        assert_eq!(told(&answer), (1, replayed));
    }
    assert_eq!(backend.rows().await, ["run 1"]);
    let unkeyed = desk.charge(unkeyed(100)).await;
    assert_eq!(refused(unkeyed), refusal(Code::InvalidArgument, "KEY_MISSING"));
}

async fn what_a_failed_call_wrote_is_rolled_back<G: AtomicBackend>(backend: G) {
    let bank = writing::<G>(|visit| match visit.n {
        1 => Err(Status::unavailable("broken")),
        2 => Err(Status::invalid_argument("refused")),
        _ => visit.paid(),
    });
    let desk = open(&backend, GrpcRules::new(), bank).await;
    for code in [Code::Unavailable, Code::InvalidArgument] {
        assert_eq!(desk.charge(keyed("k", 100)).await.expect_err("not paid").code(), code);
        assert!(backend.rows().await.is_empty());
    }
    desk.charge(keyed("k", 100)).await.expect("paid");
    assert_eq!(backend.rows().await, ["run 3"]);
}

async fn a_kept_refusal_is_replayed_and_its_rows_are_not_there<G: AtomicBackend>(backend: G) {
    let bank = writing::<G>(|_| Err(Status::failed_precondition("no funds")));
    let desk = open(&backend, GrpcRules::new().codes(Codes::terminal()), bank).await;
    for replayed in [false, true] {
        let status = desk.charge(keyed("k", 100)).await.expect_err("no funds");
        assert_eq!((status.message(), is_replayed(status.metadata())), ("no funds", replayed));
    }
    assert!(backend.rows().await.is_empty());
    assert_eq!(desk.runs.count(), 1);
}

async fn an_answer_too_large_to_keep_commits_nothing<G: AtomicBackend>(backend: G) {
    let bank = writing::<G>(|visit| {
        let blob = Bytes::from(vec![b'x'; 10_000]);
        Ok(Response::new(Receipt { blob, ..visit.receipt() }))
    });
    let desk = open(&backend, GrpcRules::new().max_response(1_000), bank).await;
    let answer = desk.charge(keyed("k", 100)).await;
    assert_eq!(refused(answer), refusal(Code::ResourceExhausted, "RESULT_TOO_LARGE"));
    assert!(backend.rows().await.is_empty());
}

async fn a_caller_who_leaves_does_not_undo_it<G: AtomicBackend>(backend: G) {
    let gate = Gate::new();
    let bank = Bank::new({
        let gate = gate.clone();
        move |visit: Visit| {
            let gate = gate.clone();
            async move {
                write::<G>(&visit).await;
                gate.pass(&visit).await;
                visit.paid()
            }
        }
    });
    let wait = semel_core::Wait::UpTo(Duration::from_secs(60));
    let desk = open(&backend, GrpcRules::new().wait(wait), bank).await;
    let mut teller = desk.teller().await;
    {
        let mut leaving = std::pin::pin!(teller.charge(keyed("k", 100)));
        tokio::select! {
            _ = &mut leaving => panic!("the gate is shut"),
            () = gate.reached() => {}
        }
    }
    drop(teller);
    desk.departures.noticed("k").await;
    gate.open();
    let again = desk.charge(keyed("k", 100)).await.expect("paid");
    assert_eq!(told(&again), (1, true));
    assert_eq!(backend.rows().await, ["run 1"]);
}

crate::backend::on_every_database! {
    rows_and_answer_are_committed_once,
    what_a_failed_call_wrote_is_rolled_back,
    a_kept_refusal_is_replayed_and_its_rows_are_not_there,
    an_answer_too_large_to_keep_commits_nothing,
    a_caller_who_leaves_does_not_undo_it,
}
