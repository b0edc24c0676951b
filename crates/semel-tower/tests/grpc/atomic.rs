//! Handlers that write to the ledger's own database: claim, rows and answer are one commit.

use std::marker::PhantomData;
use std::time::Duration;

use bytes::Bytes;
use semel_core::store::TransactionalStore;
use semel_tower::grpc::{Codes, GrpcLayer, GrpcRules};
use semel_tower::{PrincipalFrom, Tenant, Transaction};
use tonic::{Code, Response, Status};

use crate::bank::{Answer, Bank, CHARGE, Gate, Receipt, Visit};
use crate::desk::{Desk, is_replayed, keyed, refusal, refused, told, unkeyed};
use crate::ground::AtomicGround;

/// Writes a row, then answers as told.
fn writing<G: AtomicGround>(
    answer: impl Fn(&Visit) -> Answer + Clone + Send + Sync + 'static,
) -> Bank {
    let ground = PhantomData::<fn() -> G>;
    Bank::new(move |visit| {
        let answer = answer.clone();
        let _ = ground;
        async move {
            write::<G>(&visit).await;
            answer(&visit)
        }
    })
}

async fn write<G: AtomicGround>(visit: &Visit) {
    let carried = visit.request.extensions().get::<Transaction<G::Store>>();
    let mut unit = carried.and_then(Transaction::take).expect("a transaction");
    G::insert(connection::<G>(&mut unit), &format!("run {}", visit.n)).await;
}

fn connection<G: AtomicGround>(
    unit: &mut semel_core::executor::Unit<G::Store>,
) -> &mut <G::Store as TransactionalStore>::Connection {
    unit.conn()
}

async fn open<G: AtomicGround>(ground: &G, rules: GrpcRules, bank: Bank) -> Desk {
    let executor = ground.executor().await;
    let layer = GrpcLayer::atomic(executor, Tenant::fixed("acme"), PrincipalFrom::global());
    Desk::with(layer.unary(CHARGE, rules.required()), bank).await
}

async fn rows_and_answer_are_committed_once<G: AtomicGround>(ground: G) {
    let desk = open(&ground, GrpcRules::new(), writing::<G>(Visit::paid)).await;
    for replayed in [false, true, true] {
        let answer = desk.charge(keyed("k", 100)).await.expect("paid");
        assert_eq!(told(&answer), (1, replayed));
    }
    assert_eq!(ground.rows().await, ["run 1"]);
    let unkeyed = desk.charge(unkeyed(100)).await;
    assert_eq!(refused(unkeyed), refusal(Code::InvalidArgument, "KEY_MISSING"));
}

async fn what_a_failed_call_wrote_is_rolled_back<G: AtomicGround>(ground: G) {
    let bank = writing::<G>(|visit| match visit.n {
        1 => Err(Status::unavailable("broken")),
        2 => Err(Status::invalid_argument("refused")),
        _ => visit.paid(),
    });
    let desk = open(&ground, GrpcRules::new(), bank).await;
    for code in [Code::Unavailable, Code::InvalidArgument] {
        assert_eq!(desk.charge(keyed("k", 100)).await.expect_err("not paid").code(), code);
        assert!(ground.rows().await.is_empty());
    }
    desk.charge(keyed("k", 100)).await.expect("paid");
    assert_eq!(ground.rows().await, ["run 3"]);
}

async fn a_kept_refusal_is_replayed_and_its_rows_are_not_there<G: AtomicGround>(ground: G) {
    let bank = writing::<G>(|_| Err(Status::failed_precondition("no funds")));
    let desk = open(&ground, GrpcRules::new().codes(Codes::terminal()), bank).await;
    for replayed in [false, true] {
        let status = desk.charge(keyed("k", 100)).await.expect_err("no funds");
        assert_eq!((status.message(), is_replayed(status.metadata())), ("no funds", replayed));
    }
    assert!(ground.rows().await.is_empty());
    assert_eq!(desk.runs.count(), 1);
}

async fn an_answer_too_large_to_keep_commits_nothing<G: AtomicGround>(ground: G) {
    let bank = writing::<G>(|visit| {
        let blob = Bytes::from(vec![b'x'; 10_000]);
        Ok(Response::new(Receipt { blob, ..visit.receipt() }))
    });
    let desk = open(&ground, GrpcRules::new().max_response(1_000), bank).await;
    let answer = desk.charge(keyed("k", 100)).await;
    assert_eq!(refused(answer), refusal(Code::ResourceExhausted, "RESULT_TOO_LARGE"));
    assert!(ground.rows().await.is_empty());
}

async fn a_caller_who_leaves_does_not_undo_it<G: AtomicGround>(ground: G) {
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
    let desk = open(&ground, GrpcRules::new().wait(wait), bank).await;
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
    assert_eq!(ground.rows().await, ["run 1"]);
}

crate::ground::on_every_database! {
    rows_and_answer_are_committed_once,
    what_a_failed_call_wrote_is_rolled_back,
    a_kept_refusal_is_replayed_and_its_rows_are_not_there,
    an_answer_too_large_to_keep_commits_nothing,
    a_caller_who_leaves_does_not_undo_it,
}
