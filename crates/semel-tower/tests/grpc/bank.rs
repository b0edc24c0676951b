//! A gRPC service for tests: two unary methods with the test's own handler, and a stream of each
//! kind.

use std::convert::Infallible;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use semel_core::store::BoxFuture;
use tokio::sync::Semaphore;
use tokio_stream::StreamExt as _;
use tonic::codec::CompressionEncoding;
use tonic::server::{Grpc, NamedService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

pub(crate) const CHARGE: &str = "/bank.v1.Bank/Charge";
pub(crate) const REFUND: &str = "/bank.v1.Bank/Refund";
pub(crate) const WATCH: &str = "/bank.v1.Bank/Watch";
pub(crate) const LOAD: &str = "/bank.v1.Bank/Load";
pub(crate) const TALK: &str = "/bank.v1.Bank/Talk";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Charge {
    #[prost(string, tag = "1")]
    pub(crate) account: String,
    #[prost(int64, tag = "2")]
    pub(crate) cents: i64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) note: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Receipt {
    /// The number of the handler run that created the receipt, from 1.
    #[prost(uint32, tag = "1")]
    pub(crate) run: u32,
    #[prost(string, tag = "2")]
    pub(crate) operation: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) blob: Bytes,
}

pub(crate) type Answer = Result<Response<Receipt>, Status>;

/// Counts the calls of a handler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<AtomicU32>);

impl Runs {
    /// Returns the number of calls so far.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// A call that reached the handler.
#[derive(Debug)]
pub(crate) struct HandlerCall {
    /// The number of this run of the handler, from 1.
    pub(crate) n: u32,
    /// The claim under which the handler runs, if any.
    pub(crate) claim: Option<semel_core::Context>,
    pub(crate) request: Request<Charge>,
}

impl HandlerCall {
    /// Returns a receipt that is different in every run.
    pub(crate) fn receipt(&self) -> Receipt {
        let operation =
            self.claim.as_ref().map(|claim| claim.operation_id().to_string()).unwrap_or_default();
        Receipt { run: self.n, operation, blob: Bytes::new() }
    }

    pub(crate) fn paid(&self) -> Answer {
        Ok(Response::new(self.receipt()))
    }

    pub(crate) fn claim(&self) -> &semel_core::Context {
        self.claim.as_ref().expect("a call with a key has a claim")
    }
}

/// A handler that answers at once.
pub(crate) async fn paid(call: HandlerCall) -> Answer {
    call.paid()
}

/// The gRPC service.
#[derive(Clone)]
pub(crate) struct Bank {
    handler: Arc<dyn Fn(HandlerCall) -> BoxFuture<'static, Answer> + Send + Sync>,
    pub(crate) runs: Runs,
    largest: Option<usize>,
}

impl Bank {
    /// Creates a bank with this handler for its unary methods.
    pub(crate) fn new<F, Fut>(handler: F) -> Self
    where
        F: Fn(HandlerCall) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Answer> + Send + 'static,
    {
        let handler = Arc::new(move |call| -> BoxFuture<'static, _> { Box::pin(handler(call)) });
        Self { handler, runs: Runs::default(), largest: None }
    }

    /// Makes tonic refuse to send a response of more than `bytes`, after the handler has returned
    /// it.
    pub(crate) fn sends_at_most(mut self, bytes: usize) -> Self {
        self.largest = Some(bytes);
        self
    }

    async fn unary(self, request: Request<Charge>) -> Answer {
        let n = self.runs.next();
        let claim = request.extensions().get().cloned();
        (self.handler)(HandlerCall { n, claim, request }).await
    }

    async fn answer<B>(self, request: http::Request<B>) -> http::Response<tonic::body::Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    {
        let codec = ProstCodec::<Receipt, Charge>::default();
        let mut grpc = Grpc::new(codec)
            .accept_compressed(CompressionEncoding::Gzip)
            .send_compressed(CompressionEncoding::Gzip);
        if let Some(bytes) = self.largest {
            grpc = grpc.max_encoding_message_size(bytes);
        }
        match request.uri().path() {
            CHARGE | REFUND => {
                let unary = service_fn(move |request| self.clone().unary(request));
                grpc.unary(unary, request).await
            }
            WATCH => grpc.server_streaming(service_fn(watch), request).await,
            LOAD => grpc.client_streaming(service_fn(load), request).await,
            TALK => grpc.streaming(service_fn(talk), request).await,
            other => Status::unimplemented(other.to_owned()).into_http(),
        }
    }
}

type Receipts = std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<Receipt, Status>> + Send>>;

fn numbered(run: u32) -> Receipt {
    Receipt { run, ..Receipt::default() }
}

/// Returns as many receipts as there are cents.
async fn watch(request: Request<Charge>) -> Result<Response<Receipts>, Status> {
    let cents = u32::try_from(request.get_ref().cents).expect("a small number");
    let receipts = tokio_stream::iter(1..=cents).map(|n| Ok(numbered(n)));
    Ok(Response::new(Box::pin(receipts)))
}

/// Returns a receipt with the number of charges in the stream.
async fn load(request: Request<Streaming<Charge>>) -> Answer {
    let mut charges = request.into_inner();
    let mut count = 0;
    while charges.next().await.transpose()?.is_some() {
        count += 1;
    }
    Ok(Response::new(numbered(count)))
}

/// Returns a receipt for each charge as soon as it arrives.
async fn talk(request: Request<Streaming<Charge>>) -> Result<Response<Receipts>, Status> {
    let cents = |charge: Charge| u32::try_from(charge.cents).expect("a small number");
    let receipts = request.into_inner().map(move |charge| charge.map(cents).map(numbered));
    Ok(Response::new(Box::pin(receipts)))
}

impl NamedService for Bank {
    const NAME: &'static str = "bank.v1.Bank";
}

impl<B> Service<http::Request<B>> for Bank
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let answering = self.clone().answer(request);
        Box::pin(async { Ok(answering.await) })
    }
}

/// A gate at which a handler waits until the test opens it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    arrivals: Semaphore,
    passage: Semaphore,
    visitors: Mutex<Vec<String>>,
}

impl Default for Inner {
    fn default() -> Self {
        let visitors = Mutex::default();
        Self { arrivals: Semaphore::new(0), passage: Semaphore::new(0), visitors }
    }
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Waits until the gate is opened for this handler.
    pub(crate) async fn pass(&self, call: &HandlerCall) {
        let key = call.claim().key().id().to_owned();
        self.0.visitors.lock().expect("not poisoned").push(key);
        self.0.arrivals.add_permits(1);
        self.0.passage.acquire().await.expect("not closed").forget();
    }

    /// Waits until one more handler has reached the gate.
    pub(crate) async fn reached(&self) {
        self.0.arrivals.acquire().await.expect("not closed").forget();
    }

    /// Returns how often the handler of this key has reached the gate.
    pub(crate) fn calls(&self, key: &str) -> usize {
        let visitors = self.0.visitors.lock().expect("not poisoned");
        visitors.iter().filter(|visitor| *visitor == key).count()
    }

    /// Lets one handler pass.
    pub(crate) fn open(&self) {
        self.0.passage.add_permits(1);
    }

    /// Lets every handler pass, now and later.
    pub(crate) fn stay_open(&self) {
        self.0.passage.add_permits(1_000);
    }

    /// Returns a bank whose handler answers after it has passed the gate.
    pub(crate) fn bank(&self) -> Bank {
        let gate = self.clone();
        Bank::new(move |call| {
            let gate = gate.clone();
            async move {
                gate.pass(&call).await;
                call.paid()
            }
        })
    }
}
