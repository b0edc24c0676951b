//! Where the bank is called: a tonic server on a free loopback port, and its clients.

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

/// The layer of a bank for one tenant whose callers share their keys.
pub(crate) fn layer<S: Store>(executor: Executor<S>, rules: GrpcRules) -> GrpcLayer<S> {
    GrpcLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global())
        .unary(CHARGE, rules.clone())
        .unary(REFUND, rules)
}

/// The ledger's name for a charge under `id`.
pub(crate) fn charge_key(id: &str) -> Key {
    Key::new(Kind::Grpc, "acme", CHARGE, Principal::global(), id).expect("a key")
}

/// A running server. It takes no more connections when it is dropped.
pub(crate) struct Desk {
    pub(crate) address: SocketAddr,
    /// How often the bank's handler was called.
    pub(crate) runs: Runs,
    /// Whose callers have left.
    pub(crate) departures: Departures,
    serving: JoinHandle<()>,
}

impl Desk {
    /// The bank behind a layer with these rules, on this backend.
    pub(crate) async fn open<G: Backend>(backend: &G, rules: GrpcRules, bank: Bank) -> Self {
        Self::with(layer(backend.executor().await, rules), bank).await
    }

    /// The bank behind this layer.
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

    /// A tonic client with a connection of its own.
    pub(crate) async fn teller(&self) -> Teller {
        Teller(Grpc::new(channel(self.address).await))
    }

    /// Charges on a connection of its own.
    pub(crate) async fn charge(&self, request: Request<Charge>) -> Answer {
        self.teller().await.charge(request).await
    }

    /// Sends any request on an HTTP/2 connection of its own.
    pub(crate) async fn send(&self, request: http::Request<backend::Sent>) -> backend::Answer {
        Client::connect(self.address, Protocol::H2).await.send(request).await
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A connection of its own.
pub(crate) async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.tcp_nodelay(true).connect().await.expect("the server listens")
}

/// A tonic client.
#[derive(Clone)]
pub(crate) struct Teller(pub(crate) Grpc<Channel>);

impl Teller {
    pub(crate) async fn charge(&mut self, request: Request<Charge>) -> Answer {
        self.call(CHARGE, request).await
    }

    pub(crate) async fn call(&mut self, path: &'static str, request: Request<Charge>) -> Answer {
        self.0.ready().await.expect("connected");
        let codec = ProstCodec::<Charge, Receipt>::default();
        self.0.unary(request, PathAndQuery::from_static(path), codec).await
    }
}

/// A charge without a key.
pub(crate) fn unkeyed(cents: i64) -> Request<Charge> {
    Request::new(Charge { account: "ann".to_owned(), cents, note: Bytes::new() })
}

/// A charge under `key`.
pub(crate) fn keyed(key: &str, cents: i64) -> Request<Charge> {
    let mut request = unkeyed(cents);
    request.metadata_mut().insert("idempotency-key", key.parse().expect("ASCII"));
    request
}

/// A charge under `key`, as it goes over the wire.
pub(crate) fn wired(key: &str, cents: i64) -> http::Request<backend::Sent> {
    let mut request = wire(CHARGE, &framed(unkeyed(cents).get_ref()));
    request.headers_mut().insert("idempotency-key", key.parse().expect("a header value"));
    request
}

/// A call as it goes over the wire.
pub(crate) fn wire(path: &str, data: &[u8]) -> http::Request<backend::Sent> {
    http::Request::post(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(backend::body(data.to_vec()))
        .expect("a request")
}

/// One message as it goes over the wire.
pub(crate) fn framed(message: &impl prost::Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).expect("short");
    [&[0], &length.to_be_bytes()[..], &message].concat()
}

/// Whether metadata marks an answer as an earlier call's.
pub(crate) fn is_replayed(metadata: &MetadataMap) -> bool {
    metadata.get("idempotent-replayed").is_some_and(|mark| mark == "true")
}

/// The run that made the receipt, and whether it is an earlier call's.
pub(crate) fn told(answer: &Response<Receipt>) -> (u32, bool) {
    (answer.get_ref().run, is_replayed(answer.metadata()))
}

/// The code and the reason of a refusal that the layer made.
pub(crate) fn refused(answer: Answer) -> (Code, String) {
    let status = answer.expect_err("a refusal");
    (status.code(), reason(&status))
}

/// The same of a refusal with this reason, to compare with.
pub(crate) fn refusal(code: Code, reason: &str) -> (Code, String) {
    (code, reason.to_owned())
}

/// The reason in a status that the layer made, empty in any other.
pub(crate) fn reason(status: &Status) -> String {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Told {
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
    let told = Told::decode(status.details()).expect("google.rpc.Status");
    let info = told.details.first().map(|any| ErrorInfo::decode(&any.value[..]).expect("told"));
    info.unwrap_or_default().reason
}

/// After how many milliseconds a refused caller is to retry.
pub(crate) fn pushback(status: &Status) -> Option<u64> {
    let value = status.metadata().get("grpc-retry-pushback-ms")?;
    Some(value.to_str().expect("text").parse().expect("a number"))
}
