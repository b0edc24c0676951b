//! Tests of the client side: keys that are added automatically, and that stay the same across
//! retries.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_tower::grpc::{CallKey, GrpcRules, KeyInterceptor, Retry, with_key};
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataKey;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::backend::Backend;
use crate::bank::{Answer, Bank, CHARGE, Charge, Gate, HandlerCall, paid};
use crate::bank_server::{BankServer, channel, keyed, run_and_replayed, unkeyed};

/// A client like the one that generated code creates with `with_interceptor`.
struct Intercepted(Grpc<InterceptedService<Channel, KeyInterceptor>>);

impl Intercepted {
    async fn to(server: &BankServer, interceptor: KeyInterceptor) -> Self {
        let channel = channel(server.address).await;
        Self(Grpc::new(InterceptedService::new(channel, interceptor)))
    }

    async fn charge(&mut self, request: Request<Charge>) -> Answer {
        self.0.ready().await.expect("connected");
        let path = http::uri::PathAndQuery::from_static(CHARGE);
        self.0.unary(request, path, ProstCodec::default()).await
    }
}

async fn the_interceptor_gives_every_call_a_key<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new().required(), Bank::new(paid)).await;
    let mut client = Intercepted::to(&server, KeyInterceptor::new()).await;
    for run in 1..=2 {
        // Two calls with the same message are two calls.
        assert_eq!(
            run_and_replayed(&client.charge(unkeyed(100)).await.expect("paid")),
            (run, false)
        );
    }
    let mut client = Intercepted::to(&server, KeyInterceptor::new().fresh_keys(false)).await;
    let status = client.charge(unkeyed(100)).await.expect_err("no key");
    assert_eq!(status.code(), Code::InvalidArgument);
}

async fn the_interceptor_sends_the_key_that_a_call_has<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let genesis = KeyInterceptor::new().metadata(AsciiMetadataKey::from_static("x-idem-key"));
    let key = CallKey::new("order 7, charge").expect("a key");
    let mut replayed = Vec::new();
    for interceptor in [KeyInterceptor::new(), genesis] {
        let mut client = Intercepted::to(&server, interceptor).await;
        let mut request = unkeyed(100);
        request.extensions_mut().insert(key.clone());
        replayed.push(run_and_replayed(&client.charge(request).await.expect("paid")));
    }
    // The same without an interceptor.
    replayed
        .push(run_and_replayed(&server.charge(with_key(unkeyed(100), &key)).await.expect("paid")));
    assert_eq!(replayed, [(1, false), (1, true), (1, true)]);
}

/// Starts a service that calls another one, its provider, under a key of its operation.
async fn front<G: Backend>(backend: &G, provider: &BankServer, fail_first: bool) -> BankServer {
    let address = provider.address;
    let bank = Bank::new(move |call: HandlerCall| async move {
        let key =
            CallKey::of(call.claim(), "charge").map_err(|e| Status::internal(e.to_string()))?;
        let channel = channel(address).await;
        let client = InterceptedService::new(channel, KeyInterceptor::new());
        let mut client = Intercepted(Grpc::new(client));
        let mut request = unkeyed(call.request.get_ref().cents);
        request.extensions_mut().insert(key);
        let receipt = client.charge(request).await?;
        if fail_first && call.claim().attempt() == 1 {
            // The provider has made the charge, and then this handler fails.
            return Err(Status::unavailable("the answer was lost"));
        }
        Ok(Response::new(receipt.into_inner()))
    });
    BankServer::open(backend, GrpcRules::new(), bank).await
}

async fn a_provider_sees_one_call_across_failed_attempts<G: Backend>(backend: G) {
    let keys = Arc::new(Mutex::new(Vec::new()));
    let provider = Bank::new({
        let keys = Arc::clone(&keys);
        move |call: HandlerCall| {
            let key = call.claim().key().id().to_owned();
            keys.lock().expect("not poisoned").push(key);
            async move { call.paid() }
        }
    });
    // The provider has its own ledger.
    let provider =
        BankServer::open(&crate::backend::Memory::open().await, GrpcRules::new(), provider).await;
    let front = front(&backend, &provider, true).await;
    let first = front.charge(keyed("k", 100)).await.expect_err("broke afterwards");
    assert_eq!(first.code(), Code::Unavailable);
    let second = front.charge(keyed("k", 100)).await.expect("paid");
    assert_eq!(run_and_replayed(&second), (1, false));
    assert_eq!((front.runs.count(), provider.runs.count()), (2, 1));
    // Another operation is another key.
    front.charge(keyed("l", 100)).await.expect_err("broke afterwards");
    let keys = keys.lock().expect("not poisoned");
    assert_eq!(keys.len(), 2);
    assert_ne!(keys[0], keys[1]);
}

async fn retries_follow_the_pushback_and_get_the_first_response<G: Backend>(backend: G) {
    let gate = Gate::new();
    let rules = GrpcRules::new().retry_after(Duration::from_millis(20));
    let server = BankServer::open(&backend, rules, gate.bank()).await;
    let client = server.client().await;
    let key = CallKey::fresh();
    // The first try is dropped while it runs; the next ones find it running, then done.
    let (tries, codes) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Vec::new())));
    let call = |request: Request<Charge>| {
        let (mut client, gate, codes) = (client.clone(), gate.clone(), Arc::clone(&codes));
        let n = {
            let mut tries = tries.lock().expect("not poisoned");
            *tries += 1;
            *tries
        };
        async move {
            let answer = if n == 1 {
                tokio::select! {
                    answer = client.charge(request) => answer,
                    () = gate.reached() => Err(Status::unavailable("the connection was lost")),
                }
            } else {
                client.charge(request).await
            };
            let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
            if code == Code::Aborted {
                gate.open();
            }
            codes.lock().expect("not poisoned").push(code);
            answer
        }
    };
    let retry =
        Retry::new().tries(1_000).backoff(Duration::from_millis(1), Duration::from_millis(5));
    let answer = retry.call(&key, unkeyed(100).into_inner(), call).await.expect("paid");
    assert_eq!((run_and_replayed(&answer), server.runs.count()), ((1, true), 1));
    let codes = codes.lock().expect("not poisoned");
    assert_eq!((codes[0], codes[1]), (Code::Unavailable, Code::Aborted));
    assert_eq!(codes.last(), Some(&Code::Ok));
}

async fn retries_end_at_a_response_that_no_repeat_changes<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let client = server.client().await;
    let key = CallKey::new("k").expect("a key");
    server.charge(keyed("k", 100)).await.expect("paid");
    let mut tries = 0;
    let retry = Retry::new();
    let answer = retry.call(&key, unkeyed(900).into_inner(), |request| {
        tries += 1;
        let mut client = client.clone();
        async move { client.charge(request).await }
    });
    assert_eq!(answer.await.expect_err("reused").code(), Code::FailedPrecondition);
    assert_eq!(tries, 1);
}

on_every_store! {
    a_provider_sees_one_call_across_failed_attempts,
}

in_memory! {
    the_interceptor_gives_every_call_a_key,
    the_interceptor_sends_the_key_that_a_call_has,
    retries_follow_the_pushback_and_get_the_first_response,
    retries_end_at_a_response_that_no_repeat_changes,
}
