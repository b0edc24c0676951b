//! Tests the positions of the layer: around a server, around one of its services, in an axum
//! router.

use std::net::Ipv4Addr;

use semel_tower::grpc::GrpcRules;
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower::Layer as _;

use crate::backend::{self, Backend, Protocol};
use crate::bank::{Bank, HandlerCall, paid};
use crate::bank_server::{
    BankClient, BankServer, channel, keyed, layer, run_and_replayed, unkeyed,
};

async fn the_handler_sees_its_claim<G: Backend>(backend: G) {
    let bank = Bank::new(|call: HandlerCall| async move {
        let claim = call.claim();
        assert_eq!((claim.attempt(), claim.key().id()), (1, "k"));
        assert_eq!(claim.key().scope(), "/bank.v1.Bank/Charge");
        assert_eq!(claim.downstream_key("step").expect("durable").len(), 32);
        call.paid()
    });
    let server = BankServer::open(&backend, GrpcRules::new(), bank).await;
    let answer = server.charge(keyed("k", 100)).await.expect("paid");
    assert_eq!(answer.get_ref().operation.len(), 26);
}

async fn the_layer_works_around_one_service_of_a_server<G: Backend>(backend: G) {
    let layer = layer(backend.executor().await, GrpcRules::new());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let router = Server::builder().add_service(layer.layer(Bank::new(paid)));
    let serving = tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
    let mut client = BankClient(tonic::client::Grpc::new(channel(address).await));
    for replayed in [false, true] {
        let answer = client.charge(keyed("k", 100)).await.expect("paid");
        assert_eq!(run_and_replayed(&answer), (1, replayed));
    }
    assert_eq!(run_and_replayed(&client.charge(unkeyed(100)).await.expect("paid")), (2, false));
    serving.abort();
}

async fn the_layer_works_in_an_axum_router<G: Backend>(backend: G) {
    let layer = layer(backend.executor().await, GrpcRules::new());
    let router = Routes::new(Bank::new(paid)).into_axum_router().layer(layer);
    let server = backend::Server::speaking(Protocol::H2, router).await;
    let mut client = BankClient(tonic::client::Grpc::new(channel(server.address()).await));
    for replayed in [false, true] {
        let answer = client.charge(keyed("k", 100)).await.expect("paid");
        assert_eq!(run_and_replayed(&answer), (1, replayed));
    }
}

async fn a_layer_that_is_added_twice_runs_a_call_once<G: Backend>(backend: G) {
    let rules = GrpcRules::new().wait(semel_core::Wait::UpTo(std::time::Duration::from_secs(60)));
    let layer = layer(backend.executor().await, rules);
    let service = layer.layer(layer.layer(Bank::new(paid)));
    let server = backend::Server::speaking(Protocol::H2, service).await;
    let mut client = BankClient(tonic::client::Grpc::new(channel(server.address()).await));
    for replayed in [false, true] {
        let answer = client.charge(keyed("k", 100)).await.expect("paid");
        assert_eq!(run_and_replayed(&answer), (1, replayed));
    }
}

in_memory! {
    a_layer_that_is_added_twice_runs_a_call_once,
    the_handler_sees_its_claim,
    the_layer_works_around_one_service_of_a_server,
    the_layer_works_in_an_axum_router,
}
