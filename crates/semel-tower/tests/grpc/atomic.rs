//! Tests of handlers that write to the ledger's own database: claim, rows and response are one
//! commit.

use std::marker::PhantomData;
use std::time::Duration;

use bytes::Bytes;
use semel_core::store::TransactionalStore;
use semel_tower::grpc::{Codes, GrpcLayer, GrpcRules};
use semel_tower::{PrincipalFrom, Tenant, Transaction};
use tonic::{Code, Response, Status};

use crate::backend::AtomicBackend;
use crate::bank::{Answer, Bank, CHARGE, Gate, HandlerCall, Receipt};
use crate::bank_server::{
    BankServer, is_replayed, keyed, refusal, refused, run_and_replayed, unkeyed,
};

/// Creates a bank whose handler writes a row and then returns the result of `answer`.
fn writing<G: AtomicBackend>(
    answer: impl Fn(&HandlerCall) -> Answer + Clone + Send + Sync + 'static,
) -> Bank {
    let backend = PhantomData::<fn() -> G>;
    Bank::new(move |call| {
        let answer = answer.clone();
        let _ = backend;
        async move {
            write::<G>(&call).await;
            answer(&call)
        }
    })
}

async fn write<G: AtomicBackend>(call: &HandlerCall) {
    let extension = call.request.extensions().get::<Transaction<G::Store>>();
    let mut unit = extension.and_then(Transaction::take).expect("a transaction");
    G::insert(connection::<G>(&mut unit), &format!("run {}", call.n)).await;
}

fn connection<G: AtomicBackend>(
    unit: &mut semel_core::executor::Unit<G::Store>,
) -> &mut <G::Store as TransactionalStore>::Connection {
    unit.conn()
}

async fn open<G: AtomicBackend>(backend: &G, rules: GrpcRules, bank: Bank) -> BankServer {
    let executor = backend.executor().await;
    let layer = GrpcLayer::atomic(executor, Tenant::fixed("acme"), PrincipalFrom::global());
    BankServer::with(layer.unary(CHARGE, rules.required()), bank).await
}

async fn rows_and_answer_are_committed_once<G: AtomicBackend>(backend: G) {
    let server = open(&backend, GrpcRules::new(), writing::<G>(HandlerCall::paid)).await;
    for replayed in [false, true, true] {
        let answer = server.charge(keyed("k", 100)).await.expect("paid");
        assert_eq!(run_and_replayed(&answer), (1, replayed));
    }
    assert_eq!(backend.rows().await, ["run 1"]);
    let unkeyed = server.charge(unkeyed(100)).await;
    assert_eq!(refused(unkeyed), refusal(Code::InvalidArgument, "KEY_MISSING"));
}

async fn the_rows_of_a_failed_call_are_rolled_back<G: AtomicBackend>(backend: G) {
    let bank = writing::<G>(|call| match call.n {
        1 => Err(Status::unavailable("broken")),
        2 => Err(Status::invalid_argument("refused")),
        _ => call.paid(),
    });
    let server = open(&backend, GrpcRules::new(), bank).await;
    for code in [Code::Unavailable, Code::InvalidArgument] {
        assert_eq!(server.charge(keyed("k", 100)).await.expect_err("not paid").code(), code);
        assert!(backend.rows().await.is_empty());
    }
    server.charge(keyed("k", 100)).await.expect("paid");
    assert_eq!(backend.rows().await, ["run 3"]);
}

async fn a_kept_refusal_is_replayed_and_its_rows_are_not_there<G: AtomicBackend>(backend: G) {
    let bank = writing::<G>(|_| Err(Status::failed_precondition("no funds")));
    let server = open(&backend, GrpcRules::new().codes(Codes::terminal()), bank).await;
    for replayed in [false, true] {
        let status = server.charge(keyed("k", 100)).await.expect_err("no funds");
        assert_eq!((status.message(), is_replayed(status.metadata())), ("no funds", replayed));
    }
    assert!(backend.rows().await.is_empty());
    assert_eq!(server.runs.count(), 1);
}

async fn an_answer_too_large_to_keep_commits_nothing<G: AtomicBackend>(backend: G) {
    let bank = writing::<G>(|call| {
        let blob = Bytes::from(vec![b'x'; 10_000]);
        Ok(Response::new(Receipt { blob, ..call.receipt() }))
    });
    let server = open(&backend, GrpcRules::new().max_response(1_000), bank).await;
    let answer = server.charge(keyed("k", 100)).await;
    assert_eq!(refused(answer), refusal(Code::ResourceExhausted, "RESULT_TOO_LARGE"));
    assert!(backend.rows().await.is_empty());
}

async fn a_caller_that_leaves_does_not_roll_it_back<G: AtomicBackend>(backend: G) {
    let gate = Gate::new();
    let bank = Bank::new({
        let gate = gate.clone();
        move |call: HandlerCall| {
            let gate = gate.clone();
            async move {
                write::<G>(&call).await;
                gate.pass(&call).await;
                call.paid()
            }
        }
    });
    let wait = semel_core::Wait::UpTo(Duration::from_secs(60));
    let server = open(&backend, GrpcRules::new().wait(wait), bank).await;
    let mut client = server.client().await;
    {
        let mut leaving = std::pin::pin!(client.charge(keyed("k", 100)));
        tokio::select! {
            _ = &mut leaving => panic!("the gate is shut"),
            () = gate.reached() => {}
        }
    }
    drop(client);
    server.departures.noticed("k").await;
    gate.open();
    let again = server.charge(keyed("k", 100)).await.expect("paid");
    assert_eq!(run_and_replayed(&again), (1, true));
    assert_eq!(backend.rows().await, ["run 1"]);
}

crate::backend::on_every_database! {
    rows_and_answer_are_committed_once,
    the_rows_of_a_failed_call_are_rolled_back,
    a_kept_refusal_is_replayed_and_its_rows_are_not_there,
    an_answer_too_large_to_keep_commits_nothing,
    a_caller_that_leaves_does_not_roll_it_back,
}
