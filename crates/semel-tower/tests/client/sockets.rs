//! Tests of whole calls: a real client, a real server with a real ledger, and a network that fails.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use semel_core::store::memory::MemoryStore;
use semel_core::{Command, Executor, Key};
use semel_testkit::proxy::FaultProxy;
use semel_tower::client::{Attempts, Call, CallKey, CallLayer, Dialect, Error, Replay as _};
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::provider::{Manners, Provider};

type Hyper = Call<Client<HttpConnector, Full<Bytes>>>;

/// Returns a layer with almost no wait between tries and a long time limit for each.
fn quick(dialect: Dialect) -> CallLayer {
    CallLayer::new(dialect)
        .backoff(Duration::from_millis(1), Duration::from_millis(5))
        .try_timeout(Duration::from_secs(300))
        .budget(Duration::from_secs(600))
}

fn hyper(layer: CallLayer) -> Hyper {
    layer.layer(Client::builder(TokioExecutor::new()).build_http())
}

fn charge(addr: SocketAddr, key: Option<CallKey>) -> Request<Full<Bytes>> {
    let body = Full::new(Bytes::from_static(br#"{"cents":1999}"#));
    let mut request = Request::post(format!("http://{addr}/charges")).body(body).unwrap();
    if let Some(key) = key {
        request.extensions_mut().insert(key);
    }
    request
}

async fn text<B: http_body::Body<Error: std::fmt::Debug>>(answer: Response<B>) -> String {
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn a_provider_receives_the_key_in_its_own_dialect_and_replays_by_it() {
    for dialect in Dialect::KNOWN.map(|known| known()) {
        let provider = Provider::start(dialect.header()).await;
        let client = hyper(quick(dialect.clone()));
        let key = CallKey::fresh();
        for _ in 0..2 {
            let request = charge(provider.addr, Some(key.clone()));
            let answer = client.clone().oneshot(request).await.unwrap();
            assert_eq!(text(answer).await, r#"{"charge":"ch_1"}"#, "{}", dialect.name());
        }
        let quote = if dialect.name() == "standard" { "\"" } else { "" };
        let written = Some(format!("{quote}{}{quote}", key.as_str()));
        assert_eq!(provider.seen(), [written.clone(), written]);
        assert_eq!(provider.executed(), 1);
    }
}

// On one thread, so that the proxy counts a piece before the client gets it.
#[tokio::test]
async fn a_reply_that_is_cut_anywhere_is_fetched_again_and_the_charge_happens_once() {
    let provider = Provider::start(Dialect::stripe().header()).await;
    let proxy = FaultProxy::start(provider.addr).await.unwrap();
    let client = hyper(quick(Dialect::stripe()));
    let answer = client.clone().oneshot(charge(proxy.addr(), None)).await.unwrap();
    assert_eq!(text(answer).await, r#"{"charge":"ch_1"}"#);
    let length = usize::try_from(proxy.traffic().reply_bytes).unwrap();
    assert!(length > 50, "{length}");

    // Cuts the reply at every position: before it, in its head, between head and body, in the body.
    for (n, place) in (2..).zip(0..length) {
        proxy.cut_reply_after(place);
        let answer = client.clone().oneshot(charge(proxy.addr(), None)).await.unwrap();
        assert_eq!(answer.extensions().get(), Some(&Attempts(2)), "cut after {place}");
        assert_eq!(answer.headers()["idempotent-replayed"], "true", "cut after {place}");
        assert_eq!(text(answer).await, format!(r#"{{"charge":"ch_{n}"}}"#), "cut after {place}");
        assert_eq!(provider.executed(), n, "cut after {place}");
        let [.., first, again] = &provider.seen()[..] else { panic!("two requests") };
        assert_eq!(first, again, "cut after {place}");
    }
    assert_eq!(usize::try_from(proxy.faults().cuts).unwrap(), length);
}

#[tokio::test]
async fn a_connection_that_is_refused_or_reset_is_tried_again() {
    let provider = Provider::start(Dialect::bare().header()).await;
    let proxy = FaultProxy::start(provider.addr).await.unwrap();
    proxy.reset_next(2);
    let client = hyper(quick(Dialect::bare()));
    let answer = client.clone().oneshot(charge(proxy.addr(), None)).await.unwrap();
    assert_eq!(answer.extensions().get(), Some(&Attempts(3)));
    assert_eq!((proxy.faults().resets, provider.executed()), (2, 1));

    drop(proxy);
    // The address is bound but not listening: connections are refused, and no other process can
    // take the port.
    let refused = tokio::net::TcpSocket::new_v4().unwrap();
    refused.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let nowhere = refused.local_addr().unwrap();
    let error = client.oneshot(charge(nowhere, None)).await.unwrap_err();
    let Error::Service { source: error, .. } = error else { panic!("{error}") };
    assert!(error.is_connect(), "the client's own error, as it came: {error}");
}

#[tokio::test]
async fn refusals_are_waited_out_and_the_charge_happens_once() {
    let refusals = vec![
        (429, &[("retry-after", "1")][..]),
        (425, &[]),
        (409, &[("retry-after", "0")]),
        (500, &[]),
        (502, &[]),
        (503, &[]),
        (504, &[]),
    ];
    let manners = Manners { refusals, ..Manners::default() };
    let provider = Provider::with(Dialect::paypal().header(), manners).await;
    let client = hyper(quick(Dialect::paypal()).tries(8));
    let begun = std::time::Instant::now();
    let answer = client.oneshot(charge(provider.addr, None)).await.unwrap();
    assert_eq!(answer.extensions().get(), Some(&Attempts(8)));
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    let seen = provider.seen();
    assert!(seen[0].is_some() && seen.iter().all(|key| *key == seen[0]), "{seen:?}");
    assert_eq!(provider.executed(), 1);
}

#[tokio::test]
async fn a_dropped_response_leaves_its_connection_to_the_next_try() {
    let refusals = vec![(429, &[("retry-after", "1")][..])];
    let manners = Manners { refusals, ..Manners::default() };
    let provider = Provider::with(Dialect::bare().header(), manners).await;
    let proxy = FaultProxy::start(provider.addr).await.unwrap();
    let answer = hyper(quick(Dialect::bare())).oneshot(charge(proxy.addr(), None)).await.unwrap();
    assert_eq!(answer.extensions().get(), Some(&Attempts(2)));
    assert_eq!(proxy.traffic().connections, 1);
}

#[tokio::test]
async fn a_duplicate_of_a_running_call_waits_for_the_response() {
    let manners = Manners { gated: true, ..Manners::default() };
    let provider = Provider::with(Dialect::standard().header(), manners).await;
    let client = hyper(quick(Dialect::standard()).tries(1000));
    let key = CallKey::new("order-7").unwrap();
    let call = || client.clone().oneshot(charge(provider.addr, Some(key.clone())));
    let (one, two) = tokio::join!(call(), call());
    let (one, two) = (one.unwrap(), two.unwrap());
    let attempts = |answer: &Response<_>| answer.extensions().get::<Attempts>().unwrap().0;
    assert_eq!(attempts(&one).min(attempts(&two)), 1, "one ran it");
    assert!(attempts(&one).max(attempts(&two)) > 1, "one got a 409");
    assert_eq!(text(one).await, text(two).await);
    assert_eq!(provider.executed(), 1);
}

#[tokio::test]
async fn another_request_under_the_same_key_is_answered_422_and_not_tried_again() {
    let provider = Provider::start(Dialect::standard().header()).await;
    let client = hyper(quick(Dialect::standard()));
    let key = CallKey::new("order-7").unwrap();
    client.clone().oneshot(charge(provider.addr, Some(key.clone()))).await.unwrap();
    let mut other = charge(provider.addr, Some(key));
    *other.body_mut() = Full::new(Bytes::from_static(br#"{"cents":2000}"#));
    let answer = client.oneshot(other).await.unwrap();
    assert_eq!(answer.status(), 422);
    assert_eq!(answer.extensions().get(), Some(&Attempts(1)));
    assert_eq!((provider.seen().len(), provider.executed()), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_calls_at_once_keep_their_own_keys_through_their_retries() {
    let manners = Manners { refuse_every_first: true, ..Manners::default() };
    let provider = Provider::with(Dialect::amazon_pay().header(), manners).await;
    let client = hyper(quick(Dialect::amazon_pay()));
    let calls: Vec<_> = (0..64)
        .map(|_| tokio::spawn(client.clone().oneshot(charge(provider.addr, None))))
        .collect();
    for call in calls {
        let answer = call.await.unwrap().unwrap();
        assert_eq!(
            (answer.status().as_u16(), answer.extensions().get()),
            (201, Some(&Attempts(2)))
        );
    }
    let mut times = HashMap::new();
    for key in provider.seen() {
        *times.entry(key.unwrap()).or_insert(0) += 1;
    }
    assert_eq!((times.len(), provider.executed()), (64, 64));
    assert!(times.values().all(|times| *times == 2), "{times:?}");
}

#[tokio::test]
async fn an_operation_that_fails_after_the_charge_charges_once_when_it_runs_again() {
    #[derive(Clone, Copy)]
    enum SettleAs {
        ReplyLost,
        Panics,
        Finishes,
    }
    let provider = Provider::start(Dialect::stripe().header()).await;
    let proxy = Arc::new(FaultProxy::start(provider.addr).await.unwrap());
    let client = hyper(quick(Dialect::stripe()).tries(1));
    let executor = Executor::new(MemoryStore::new());
    let command = Command::new(Key::command("acme", "ORDER_PAY", "order-7").unwrap());

    let pay = |fate: SettleAs| {
        let (client, proxy) = (client.clone(), Arc::clone(&proxy));
        executor.run(command.clone(), move |claim| async move {
            if let SettleAs::ReplyLost = fate {
                proxy.cut_reply_after(0);
            }
            let key = CallKey::of(&claim, "charge").unwrap();
            let paid = client.oneshot(charge(proxy.addr(), Some(key))).await;
            let paid = text(paid.map_err(std::io::Error::other)?).await;
            match fate {
                SettleAs::Panics => panic!("killed before the order was marked as paid"),
                SettleAs::ReplyLost | SettleAs::Finishes => Ok::<_, std::io::Error>(paid),
            }
        })
    };
    assert!(matches!(pay(SettleAs::ReplyLost).await, Err(semel_core::Error::Work(_))));
    assert!(matches!(pay(SettleAs::Panics).await, Err(semel_core::Error::Panicked { .. })));
    let paid = pay(SettleAs::Finishes).await.unwrap();
    assert_eq!(paid.attempt(), Some(3));
    assert_eq!(paid.value().unwrap(), r#"{"charge":"ch_1"}"#);
    assert_eq!((proxy.faults().cuts, provider.executed()), (1, 1));
    let seen = provider.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|key| *key == seen[0]), "{seen:?}");
}

#[tokio::test]
async fn reqwest_is_a_client_like_any_other() {
    let provider = Provider::start(Dialect::adyen().header()).await;
    let proxy = FaultProxy::start(provider.addr).await.unwrap();
    proxy.cut_reply_after(0);
    // As in the documentation of the module.
    let client = reqwest::Client::new();
    let client = service_fn(move |request: Request<Bytes>| {
        let client = client.clone();
        async move { client.execute(request.try_into()?).await.map(Response::from) }
    });
    let adyen = quick(Dialect::adyen()).layer(client);

    let request = Request::post(format!("http://{}/charges", proxy.addr()));
    let answer = adyen.oneshot(request.body(Bytes::from_static(b"{}")).unwrap()).await.unwrap();
    assert_eq!(answer.extensions().get(), Some(&Attempts(2)));
    let answer = reqwest::Response::from(answer.map(reqwest::Body::wrap));
    assert_eq!(answer.text().await.unwrap(), r#"{"charge":"ch_1"}"#);
    assert_eq!((provider.seen().len(), provider.executed()), (2, 1));
}

#[tokio::test]
async fn a_reqwest_client_is_called_in_its_own_types() {
    let dialect = Dialect::stripe();
    let provider = Provider::start(dialect.header()).await;
    let client = reqwest::Client::new();
    let stripe = quick(dialect).reqwest(client.clone());
    let url = format!("http://{}/charges", provider.addr);
    let key = CallKey::fresh();
    for _ in 0..2 {
        let request = client.post(&url).body(r#"{"cents":1999}"#).build().unwrap();
        let answer = stripe.execute_under(key.clone(), request).await.unwrap();
        assert_eq!(answer.url().as_str(), url);
        assert_eq!(answer.text().await.unwrap(), r#"{"charge":"ch_1"}"#);
    }
    // Without a given key every call is a separate one.
    for charge in ["ch_2", "ch_3"] {
        let request = client.post(&url).body(r#"{"cents":1999}"#).build().unwrap();
        let answer = stripe.execute(request).await.unwrap();
        assert_eq!(answer.extensions().get(), Some(&Attempts(1)));
        assert_eq!(answer.text().await.unwrap(), format!(r#"{{"charge":"{charge}"}}"#));
    }
}

#[tokio::test]
async fn reqwest_sends_a_body_again_and_a_stream_once() {
    let body = reqwest::Body::from("text");
    assert_eq!(
        body.replay().and_then(|body| body.as_bytes().map(<[u8]>::to_vec)).unwrap(),
        b"text"
    );
    assert!(reqwest::Body::wrap(Full::new(Bytes::from_static(b"text"))).replay().is_none());
}
