//! A tonic server for the bank on a free loopback port, and its clients.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message as _;
use semel_core::{Executor, Key, Kind, Principal, Store};
use semel_tower::grpc::{GrpcLayer, GrpcRules};
use semel_tower::{Mode, PrincipalFrom, Tenant};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::backend::{self, Backend, Client, Protocol};
use crate::bank::{Answer, Bank, CHARGE, Charge, REFUND, Receipt, Runs};
use crate::departures::Departures;

/// Returns a layer for one tenant whose callers share their keys.
pub(crate) fn layer<S: Store>(executor: Executor<S>, rules: GrpcRules) -> GrpcLayer<S> {
    GrpcLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global())
        .unary(CHARGE, rules.clone())
        .unary(REFUND, rules)
}

/// Returns the ledger key of a charge under `id`.
pub(crate) fn charge_key(id: &str) -> Key {
    Key::new(Kind::Grpc, "acme", CHARGE, Principal::global(), id).expect("a key")
}

/// A running server. It stops accepting connections when it is dropped.
pub(crate) struct BankServer {
    pub(crate) address: SocketAddr,
    /// Counts the calls of the bank's handler.
    pub(crate) runs: Runs,
    /// The calls whose callers have left.
    pub(crate) departures: Departures,
    serving: JoinHandle<()>,
}

impl BankServer {
    /// Starts the bank behind a layer with these rules, on this backend.
    pub(crate) async fn open<G: Backend>(backend: &G, rules: GrpcRules, bank: Bank) -> Self {
        Self::with(layer(backend.executor().await, rules), bank).await
    }

    /// Starts the bank behind this layer.
    pub(crate) async fn with<S: Store, R: Mode<S>>(layer: GrpcLayer<S, R>, bank: Bank) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let runs = bank.runs.clone();
        let departures = Departures::default();
        let router = Server::builder().layer(departures.clone()).layer(layer).add_service(bank);
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let serving = tokio::spawn(async move {
            router.serve_with_incoming(incoming).await.expect("serves");
        });
        Self { address, runs, departures, serving }
    }

    /// Connects a new tonic client.
    pub(crate) async fn client(&self) -> BankClient {
        BankClient(Grpc::new(channel(self.address).await))
    }

    /// Sends a charge on a new connection.
    pub(crate) async fn charge(&self, request: Request<Charge>) -> Answer {
        self.client().await.charge(request).await
    }

    /// Sends any request on a new HTTP/2 connection.
    pub(crate) async fn send(&self, request: http::Request<backend::Sent>) -> backend::Answer {
        Client::connect(self.address, Protocol::H2).await.send(request).await
    }
}

impl Drop for BankServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Opens a new connection.
pub(crate) async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.tcp_nodelay(true).connect().await.expect("the server listens")
}

/// A tonic client of the bank.
#[derive(Clone)]
pub(crate) struct BankClient(pub(crate) Grpc<Channel>);

impl BankClient {
    pub(crate) async fn charge(&mut self, request: Request<Charge>) -> Answer {
        self.call(CHARGE, request).await
    }

    pub(crate) async fn call(&mut self, path: &'static str, request: Request<Charge>) -> Answer {
        self.0.ready().await.expect("connected");
        let codec = ProstCodec::<Charge, Receipt>::default();
        self.0.unary(request, PathAndQuery::from_static(path), codec).await
    }
}

/// Creates a charge without a key.
pub(crate) fn unkeyed(cents: i64) -> Request<Charge> {
    Request::new(Charge { account: "ann".to_owned(), cents, note: Bytes::new() })
}

/// Creates a charge under `key`.
pub(crate) fn keyed(key: &str, cents: i64) -> Request<Charge> {
    let mut request = unkeyed(cents);
    request.metadata_mut().insert("idempotency-key", key.parse().expect("ASCII"));
    request
}

/// Creates the HTTP/2 request of a charge under `key`.
pub(crate) fn raw_charge(key: &str, cents: i64) -> http::Request<backend::Sent> {
    let mut request = raw_call(CHARGE, &framed(unkeyed(cents).get_ref()));
    request.headers_mut().insert("idempotency-key", key.parse().expect("a header value"));
    request
}

/// Creates the HTTP/2 request of a call.
pub(crate) fn raw_call(path: &str, data: &[u8]) -> http::Request<backend::Sent> {
    http::Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(backend::body(data.to_vec()))
        .expect("a request")
}

/// Returns the framed bytes of a message.
pub(crate) fn framed(message: &impl prost::Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).expect("short");
    [&[0], &length.to_be_bytes()[..], &message].concat()
}

/// Returns whether metadata marks a response as a replay.
pub(crate) fn is_replayed(metadata: &MetadataMap) -> bool {
    metadata.get("idempotent-replayed").is_some_and(|mark| mark == "true")
}

/// Returns the handler run that created the receipt, and whether the response is a replay.
pub(crate) fn run_and_replayed(answer: &Response<Receipt>) -> (u32, bool) {
    (answer.get_ref().run, is_replayed(answer.metadata()))
}

/// Returns the code and the reason of a refusal by the layer.
pub(crate) fn refused(answer: Answer) -> (Code, String) {
    let status = answer.expect_err("a refusal");
    (status.code(), reason(&status))
}

/// Returns the code and the reason of an expected refusal.
pub(crate) fn refusal(code: Code, reason: &str) -> (Code, String) {
    (code, reason.to_owned())
}

/// Returns the reason in a status of the layer; empty for any other status.
pub(crate) fn reason(status: &Status) -> String {
    #[derive(Clone, PartialEq, prost::Message)]
    struct RpcStatus {
        #[prost(message, repeated, tag = "3")]
        details: Vec<prost_types::Any>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct ErrorInfo {
        #[prost(string, tag = "1")]
        reason: String,
        #[prost(btree_map = "string, string", tag = "3")]
        metadata: BTreeMap<String, String>,
    }
    let decoded = RpcStatus::decode(status.details()).expect("google.rpc.Status");
    let info = decoded
        .details
        .first()
        .map(|any| ErrorInfo::decode(&any.value[..]).expect("google.rpc.ErrorInfo"));
    info.unwrap_or_default().reason
}

/// Returns the milliseconds after which a refused caller should retry.
pub(crate) fn pushback(status: &Status) -> Option<u64> {
    let value = status.metadata().get("grpc-retry-pushback-ms")?;
    Some(value.to_str().expect("text").parse().expect("a number"))
}
