//! Tests when a call is tried again and when it ends, under a virtual clock.

use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use semel_tower::client::{
    Attempts, CallKey, CallLayer, Dialect, Error, OneShot, ReadAheadBody, Replay,
};
use tokio::time::Instant;
use tower::{Layer as _, ServiceExt as _};

use crate::script::{Line, Script};

type Answered =
    Result<Response<ReadAheadBody<http_body_util::Full<bytes::Bytes>>>, Error<std::io::Error>>;

fn layer() -> CallLayer {
    CallLayer::new(Dialect::standard())
}

fn request<B>(method: Method, body: B) -> Request<B> {
    Request::builder().method(method).uri("http://provider/charges").body(body).unwrap()
}

async fn post(layer: CallLayer, script: &Script) -> Answered {
    layer.layer(script.clone()).oneshot(request(Method::POST, "{}")).await
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_waited_for_in_full() {
    for (status, headers) in [
        (429, &[("retry-after", "7")][..]),
        (409, &[("retry-after", "7")]),
        (
            503,
            &[
                ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
                ("retry-after", "Sun, 06 Nov 1994 08:49:44 GMT"),
            ],
        ),
    ] {
        let script = Script::of([Line::Answer(status, headers)]);
        let answer = post(layer(), &script).await.unwrap();
        assert_eq!(answer.extensions().get(), Some(&Attempts(2)));
        let sent = script.sent();
        let waited = sent[1].at - sent[0].at;
        assert!(waited >= seconds(7) && waited < seconds(8), "{status}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_asks_for_too_long_a_wait_is_returned() {
    let asks = |headers| Script::of([Line::Answer(429, headers)]);
    for (layer, headers) in [
        (layer(), &[("retry-after", "31")]),
        (layer(), &[("retry-after", "99999999999999999999")]),
        (layer().longest_retry_after(seconds(5)), &[("retry-after", "6")]),
        (layer().budget(seconds(5)), &[("retry-after", "5")]),
    ] {
        let (script, begun) = (asks(headers), Instant::now());
        let answer = post(layer, &script).await.unwrap();
        assert_eq!(answer.status(), 429);
        assert_eq!(answer.headers()["retry-after"], headers[0].1);
        assert_eq!(answer.extensions().get(), Some(&Attempts(1)));
        assert_eq!((script.sent().len(), begun.elapsed()), (1, Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn when_the_tries_are_used_up_the_last_response_is_returned() {
    let refusal = || Line::Answer(503, &[("x-reason", "maintenance")]);
    let script = Script::of([refusal(), refusal(), refusal(), refusal(), refusal()]);
    let answer = post(layer(), &script).await.unwrap();
    assert_eq!((answer.status().as_u16(), script.sent().len()), (503, 4));
    assert_eq!(answer.extensions().get(), Some(&Attempts(4)));
    assert_eq!(answer.headers()["x-reason"], "maintenance");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "answer 4");
}

#[tokio::test(start_paused = true)]
async fn when_the_tries_are_used_up_the_last_error_is_returned() {
    let script = Script::of([Line::Answer(503, &[]), Line::Broken]);
    let error = post(layer().tries(2), &script).await.unwrap_err();
    let Error::Service { source: error, .. } = error else { panic!("{error}") };
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn waits_double_and_are_drawn_at_random() {
    let mut longest = [Duration::ZERO; 3];
    for _ in 0..100 {
        let script = Script::of([Line::Broken, Line::Broken, Line::Broken]);
        post(layer().backoff(seconds(1), seconds(3)), &script).await.unwrap();
        let sent = script.sent();
        for (longest, pair) in longest.iter_mut().zip(sent.windows(2)) {
            *longest = (pair[1].at - pair[0].at).max(*longest);
        }
    }
    // The timer wheel rounds up to a millisecond.
    for (longest, most) in longest.into_iter().zip([1, 2, 3]) {
        assert!(longest > seconds(most) / 2, "{longest:?}");
        assert!(longest <= seconds(most) + Duration::from_millis(1), "{longest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_without_an_answer_is_ended_and_tried_again_under_the_same_key() {
    let script = Script::of([Line::Silence]);
    let answer = post(layer(), &script).await.unwrap();
    assert_eq!(answer.extensions().get(), Some(&Attempts(2)));
    let sent = script.sent();
    assert!(sent[1].at - sent[0].at >= seconds(10));
    assert_eq!(sent[0].headers["idempotency-key"], sent[1].headers["idempotency-key"]);
}

#[tokio::test(start_paused = true)]
async fn the_budget_is_for_all_tries_and_waits_together() {
    let script = Script::of((0..100).map(|_| Line::Silence));
    let begun = Instant::now();
    let error = post(layer().tries(100), &script).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(begun.elapsed() <= seconds(30) + Duration::from_millis(1), "{:?}", begun.elapsed());
    assert!((3..=4).contains(&script.sent().len()), "{}", script.sent().len());
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_request_itself_are_not_tried_again() {
    for status in [400, 401, 403, 404, 409, 413, 422] {
        let script = Script::of([Line::Answer(status, &[])]);
        let answer = post(layer(), &script).await.unwrap();
        assert_eq!((answer.status().as_u16(), script.sent().len()), (status, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn an_unsafe_call_that_no_key_protects_is_tried_once() {
    let unkeyed = |method| (layer().fresh_keys(false), request(method, "{}"));
    let unheeded = || {
        // Adyen honours keys only on POST: a key on a PATCH protects nothing.
        let mut request = request(Method::PATCH, "{}");
        request.extensions_mut().insert(CallKey::fresh());
        (CallLayer::new(Dialect::adyen()), request)
    };
    for line in [|| Line::Answer(503, &[]), || Line::Broken, || Line::Silence] {
        for (layer, request) in [unkeyed(Method::POST), unkeyed(Method::PATCH), unheeded()] {
            let script = Script::of([line()]);
            let ended = layer.layer(script.clone()).oneshot(request).await;
            assert_eq!(script.sent().len(), 1);
            assert!(!ended.is_ok_and(|answer| answer.status().is_success()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn idempotent_methods_need_no_key_to_be_tried_again() {
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE] {
        let script = Script::of([Line::Broken, Line::Answer(504, &[])]);
        let call = layer().layer(script.clone()).oneshot(request(method.clone(), "{}"));
        assert_eq!(call.await.unwrap().extensions().get(), Some(&Attempts(3)));
        assert!(script.sent().iter().all(|sent| sent.headers.is_empty()), "{method}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_replayed_gets_a_key_and_one_try() {
    struct Sometimes(bool);
    impl Replay for Sometimes {
        fn replay(&self) -> Option<Self> {
            self.0.then_some(Self(self.0))
        }
    }
    async fn tries<B: Replay + Send + 'static>(body: B) -> usize {
        let script = Script::of([Line::Answer(503, &[])]);
        let call = layer().layer(script.clone()).oneshot(request(Method::POST, body));
        call.await.unwrap();
        assert!(script.sent().iter().all(|sent| sent.headers.contains_key("idempotency-key")));
        script.sent().len()
    }
    assert_eq!(tries(OneShot::new("a stream, say")).await, 1);
    assert_eq!(tries(Sometimes(false)).await, 1);
    assert_eq!(tries(Sometimes(true)).await, 2);
}

#[tokio::test]
async fn a_call_that_is_dropped_ends_the_try_under_way() {
    struct Gone(Option<tokio::sync::oneshot::Sender<()>>);
    impl Drop for Gone {
        fn drop(&mut self) {
            let _ = self.0.take().map(|dropped| dropped.send(()));
        }
    }
    let (dropped, gone) = tokio::sync::oneshot::channel();
    let dropped = std::sync::Arc::new(std::sync::Mutex::new(Some(dropped)));
    let (entered, under_way) = tokio::sync::mpsc::unbounded_channel();
    let inner = tower::service_fn(move |_: Request<&'static str>| {
        let guard = Gone(dropped.lock().unwrap().take());
        let entered = entered.clone();
        async move {
            let _guard = guard;
            entered.send(()).unwrap();
            std::future::pending::<Result<Response<String>, std::io::Error>>().await
        }
    });
    let call = tokio::spawn(layer().layer(inner).oneshot(request(Method::POST, "{}")));
    let mut under_way = under_way;
    under_way.recv().await.unwrap();
    call.abort();
    gone.await.expect("the try was dropped with the call");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_never_ready_again_ends_the_call() {
    #[derive(Clone)]
    struct Once(bool);
    impl tower::Service<Request<&'static str>> for Once {
        type Response = Response<String>;
        type Error = std::io::Error;
        type Future = std::future::Ready<Result<Response<String>, std::io::Error>>;
        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), std::io::Error>> {
            let closed = || std::io::Error::from(std::io::ErrorKind::NotConnected);
            std::task::Poll::Ready(if self.0 { Err(closed()) } else { Ok(()) })
        }
        fn call(&mut self, _: Request<&'static str>) -> Self::Future {
            assert!(!self.0, "called without being ready");
            self.0 = true;
            std::future::ready(Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)))
        }
    }
    let error = layer().layer(Once(false)).oneshot(request(Method::POST, "{}")).await.unwrap_err();
    let Error::Service { source: error, .. } = error else { panic!("{error}") };
    assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);
}
