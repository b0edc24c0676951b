//! Tests of the response to each kind of request, over sockets.

use http::Method;

use crate::caller::{Caller, full};
use crate::fixture::Fixture;
use crate::shop::Shop;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_reaches_the_upstream_once_and_repeats_get_its_response() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let caller = Caller::new(&gateway);
    let first = caller.post("/orders", "k-1", "{\"sku\":\"a\"}").await;
    let again = caller.post("/orders", "k-1", "{ \"sku\": \"a\" }").await;
    assert_eq!((first.status.as_u16(), first.replayed()), (201, false));
    assert_eq!(first.headers["set-cookie"], "session=secret");
    assert_eq!((again.status, again.replayed()), (first.status, true));
    assert_eq!((again.body, &again.headers["location"]), (first.body, &first.headers["location"]));
    assert!(!again.headers.contains_key("set-cookie"), "a cookie belongs to one caller");
    let quoted = caller.post("/orders", "\"k-1\"", "{\"sku\":\"a\"}").await;
    assert!(quoted.replayed(), "quoted and bare values are the same key");

    let seen = shop.seen("/orders");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].headers["idempotency-key"], "k-1");
    assert_eq!(
        (&seen[0].headers["semel-attempt"], seen[0].headers["semel-operation-id"].len()),
        (&"1".parse().unwrap(), 26)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_for_one_request() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[[route]]\npath = \"/pay\"\nmismatch_status = 409\nignored = [\"/sent_at\"]";
    let gateway = fixture.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    caller.post("/orders", "k", "{\"sku\":\"a\"}").await;
    let other = caller.post("/orders", "k", "{\"sku\":\"b\"}").await;
    assert_eq!(other.problem(), (422, "key-reused".to_owned()));
    assert_eq!(caller.post("/orders/7", "k", "{\"sku\":\"b\"}").await.status, 201, "another path");
    assert_eq!(shop.seen("/orders").len(), 1);

    caller.post("/pay", "k", "{\"cents\":1,\"sent_at\":1}").await;
    assert!(caller.post("/pay", "k", "{\"cents\":1,\"sent_at\":2}").await.replayed());
    let other = caller.post("/pay", "k", "{\"cents\":2,\"sent_at\":1}").await;
    assert_eq!(other.problem(), (409, "key-reused".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_of_a_running_request_gets_in_progress_or_waits() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), "[[route]]\npath = \"/{*rest}\"\nwait = \"60s\"");
    let patient = Caller::new(&gateway);
    let other = Fixture::new();
    let gateway = other.gateway(&shop.url(), &[]);
    let hasty = Caller::new(&gateway);

    let first = tokio::spawn({
        let hasty = hasty.clone();
        async move { hasty.post("/slow", "k", "{}").await }
    });
    shop.arrived(1).await;
    let reply = hasty.post("/slow", "k", "{}").await;
    assert_eq!(reply.problem(), (409, "in-progress".to_owned()));
    assert_eq!(reply.headers["retry-after"], "1");
    assert_eq!(reply.json()["operation_id"].as_str().map(str::len), Some(26));
    shop.let_go(1);
    assert_eq!(first.await.unwrap().status, 201);

    let both = [patient.clone(), patient]
        .map(|patient| tokio::spawn(async move { patient.post("/slow", "w", "{}").await }));
    shop.arrived(2).await;
    shop.let_go(1);
    let mut replayed = Vec::new();
    for call in both {
        let answer = call.await.unwrap();
        assert_eq!(answer.status, 201);
        replayed.push(answer.replayed());
    }
    replayed.sort_unstable();
    assert_eq!((replayed, shop.seen("/slow").len()), (vec![false, true], 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_may_require_a_valid_key() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[[route]]\npath = \"/pay\"\nmethods = [\"POST\", \"PUT\"]\nrequired = true";
    let gateway = fixture.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    for method in [Method::POST, Method::PUT] {
        let request = caller.request(method, "/pay").body(full("{}")).unwrap();
        assert_eq!(caller.send(request).await.problem(), (400, "key-missing".to_owned()));
    }
    let grpc = caller.request(Method::POST, "/pay").header("content-type", "application/grpc");
    let refused = caller.send(grpc.body(full("")).unwrap()).await;
    assert_eq!(refused.problem(), (400, "key-missing".to_owned()), "the key cannot be avoided");
    for key in ["", "a,b", "\"a", &"x".repeat(256)] {
        let refused = caller.post("/pay", key, "{}").await;
        assert_eq!(refused.problem(), (400, "key-invalid".to_owned()), "{key:?}");
    }
    let twice = caller.keyed("/pay", "a", "{}");
    let mut twice = twice;
    twice.headers_mut().append("idempotency-key", "b".parse().unwrap());
    assert_eq!(caller.send(twice).await.problem(), (400, "key-invalid".to_owned()));
    let free = caller.request(Method::POST, "/orders").body(full("{}")).unwrap();
    assert_eq!(caller.send(free).await.status, 201, "other routes require no key");
    assert_eq!(shop.seen("/pay").len(), 0);
    let seen = caller.keyed("/pay", "a", "{}");
    assert_eq!(caller.send(seen).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_requests_with_a_key_are_limited() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[[route]]\npath = \"/small\"\nmax_request = 4\nmax_response = 4";
    let gateway = fixture.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    assert_eq!(caller.post("/small", "a", "12345").await.problem().1, "body-too-large");
    assert_eq!(shop.seen("/small").len(), 0);
    let delivered = caller.post("/small", "b", "1234").await;
    assert_eq!((delivered.status.as_u16(), delivered.text()), (201, "{\"order\":1}"));
    let again = caller.post("/small", "b", "1234").await;
    assert_eq!(again.problem(), (409, "result-unavailable".to_owned()), "never run again");
    let unlimited = "x".repeat(2 << 20);
    let free = caller.request(Method::POST, "/small").body(full(&unlimited)).unwrap();
    assert_eq!(caller.send(free).await.status, 201, "a request without a key has no limit");
    // Over HTTP/1.1 a client that is still writing may lose the response to a broken pipe.
    let large = Caller::http2(&gateway).post("/orders", "c", &unlimited).await;
    assert_eq!(large.problem(), (413, "body-too-large".to_owned()), "1 MiB by default");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_the_upstream_are_released_and_failures_run_again() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let caller = Caller::new(&gateway);
    let refused = caller.post("/refuse", "k", "{\"sku\":\"?\"}").await;
    assert_eq!((refused.status.as_u16(), refused.text()), (422, "{\"error\":\"no\"}"));
    let corrected = caller.post("/refuse", "k", "{\"sku\":\"a\"}").await;
    assert_eq!(
        (corrected.status.as_u16(), shop.seen("/refuse").len()),
        (422, 2),
        "the key is free"
    );

    let failed = caller.post("/fail", "k", "{}").await;
    assert_eq!((failed.status.as_u16(), failed.text()), (500, "{\"error\":\"oh\"}"));
    assert_eq!(caller.post("/fail", "k", "{\"x\":1}").await.problem().1, "key-reused");
    assert_eq!(caller.post("/fail", "k", "{}").await.status, 500);
    let seen = shop.seen("/fail");
    let of = |n: usize, name: &str| seen[n].headers[name].to_str().unwrap().to_owned();
    assert_eq!((of(0, "semel-attempt"), of(1, "semel-attempt")), ("1".into(), "2".into()));
    assert_eq!(of(0, "semel-operation-id"), of(1, "semel-operation-id"));
    let fences: Vec<u64> = (0..2).map(|n| of(n, "semel-fence").parse().unwrap()).collect();
    assert!(fences[0] < fences[1], "{fences:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preset_decides_what_is_kept() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[[route]]\npath = \"/refuse\"\npreset = \"below_500\"\nkept_headers = [\"x-count\"]\n\
                  [[route]]\npath = \"/fail\"\npreset = \"stripe_v1\"";
    let gateway = fixture.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    for (target, status) in [("/refuse", 422), ("/fail", 500)] {
        let first = caller.post(target, "k", "{}").await;
        let again = caller.post(target, "k", "{}").await;
        assert_eq!((first.status.as_u16(), again.status.as_u16()), (status, status));
        assert_eq!((again.replayed(), shop.seen(target).len()), (true, 1));
        let kept = again.headers.get("x-count").is_some();
        assert_eq!(kept, target == "/refuse", "only headers that are listed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_can_be_fetched_later() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let caller = Caller::new(&gateway);
    let mut request = caller.keyed("/slow", "k", "{}");
    request.headers_mut().insert("prefer", "respond-async".parse().unwrap());
    let accepted = caller.send(request).await;
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let place = accepted.headers["location"].to_str().unwrap().to_owned();
    shop.arrived(1).await;
    assert_eq!(caller.get(&place).await.status, 202);
    assert_eq!(caller.clone().by("Bearer eve").get(&place).await.status, 404);
    shop.let_go(1);
    loop {
        let answer = caller.get(&place).await;
        if answer.status != 202 {
            assert_eq!((answer.status.as_u16(), answer.text()), (201, "{\"order\":1}"));
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_can_be_fetched_later_behind_the_prefix_of_a_proxy() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[gateway]\npublic_path = \"/api\"\ntrust_forwarded = true";
    let gateway = fixture.configured(&shop.url(), config);
    let caller = Caller::new(&gateway);
    let accepted = async |prefix: Option<&str>| {
        let mut request = caller.keyed("/slow", "k", "{}");
        request.headers_mut().insert("prefer", "respond-async".parse().unwrap());
        if let Some(prefix) = prefix {
            request.headers_mut().insert("x-forwarded-prefix", prefix.parse().unwrap());
        }
        let answer = caller.send(request).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.headers["location"].to_str().unwrap().to_owned()
    };
    let place = accepted(None).await;
    assert!(place.starts_with("/api/.well-known/semel/operations/"), "{place}");
    let output = accepted(Some("/shop/v1")).await;
    assert!(output.starts_with("/shop/v1/.well-known/semel/operations/"), "{output}");
    // The URL works whether or not the proxy in front removes its prefix.
    for place in [place.as_str(), place.strip_prefix("/api").unwrap()] {
        let head = caller.request(Method::HEAD, place).body(full("")).unwrap();
        let head = caller.send(head).await;
        assert_eq!((head.status.as_u16(), head.body.len()), (202, 0));
        assert_eq!(caller.get(place).await.status, 202);
    }
    shop.let_go(1);
    shop.arrived(1).await;
    assert_eq!(shop.all(), 1, "the upstream was called once");
}

#[tokio::test(flavor = "multi_thread")]
async fn problems_have_an_error_object_if_it_is_enabled() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), "[gateway]\nerror_object = true\nmax_calls = 1");
    let caller = Caller::new(&gateway);
    let under_way = tokio::spawn({
        let caller = caller.clone();
        async move { caller.post("/slow", "k", "{}").await }
    });
    shop.arrived(1).await;
    let reply = caller.post("/slow", "k", "{\"a\":1}").await.json();
    assert_eq!(reply["error"]["type"], "idempotency_error", "{reply}");
    assert_eq!(
        (&reply["error"]["code"], &reply["code"]),
        (&"key_reused".into(), &"KEY_REUSED".into())
    );
    assert_eq!(reply["error"]["message"], reply["detail"]);
    let reply = caller.post("/orders", "other", "{}").await.json();
    assert_eq!(reply["error"]["type"], "api_error", "of the forwarder too: {reply}");
    shop.let_go(1);
    assert_eq!(under_way.await.unwrap().status, 201);

    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let caller = Caller::new(&gateway).by("");
    let reply = caller.post("/orders", "k", "{}").await.json();
    assert_eq!(reply.get("error"), None, "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_stream_under_a_key_begins_once() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let caller = Caller::new(&gateway);
    let events_request = || {
        let mut request = caller.keyed("/events", "k", "{}");
        request.headers_mut().insert("accept", "text/event-stream".parse().unwrap());
        request
    };
    let first = caller.begin(events_request()).await.unwrap();
    assert_eq!(first.headers()["content-type"], "text/event-stream");
    let again = caller.send(events_request()).await;
    assert_eq!(again.problem(), (409, "result-unavailable".to_owned()));
    assert_eq!(shop.seen("/events").len(), 1, "its effect happens once");
}
