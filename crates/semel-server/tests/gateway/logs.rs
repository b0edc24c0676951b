//! Tests of the logs, metrics and traces of a gateway, and that they contain no secrets.

use serde_json::Value;

use crate::caller::{Caller, get};
use crate::fixture::Fixture;
use crate::shop::Shop;

#[tokio::test(flavor = "multi_thread")]
async fn a_line_for_every_request_has_its_route_and_never_its_key_or_query() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    fixture.write("semel.toml", "[[route]]\npath = \"/orders/{id}\"\nrequired = true");
    let flags = ["--config", "semel.toml", "--log", "json"];
    let mut command = fixture.command(&shop.url(), &flags);
    command.env("RUST_LOG", "trace");
    let gateway = crate::program::Service::start(command);
    let caller = Caller::new(&gateway).by("Bearer very-secret-token");
    caller.post("/orders/7?card=4111", "very-secret-key", "{\"pin\":\"very-secret-pin\"}").await;
    caller.post("/orders/7?card=4111", "very-secret-key", "{\"pin\":\"very-secret-pin\"}").await;
    caller.post("/orders/7?card=4111", "very-secret-key", "{}").await;
    caller.get("/plain?card=4111").await;
    // The log is read after the process has ended, when its last line is complete.
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0));

    let log = fixture.log();
    let ours: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .filter(|line: &Value| line["message"] == "answered")
        .collect();
    let all: Vec<_> = ours.iter().map(|line| (&line["status"], &line["replayed"])).collect();
    assert_eq!(
        format!("{all:?}"),
        format!(
            "{:?}",
            [
                (&Value::from(201), &Value::from(false)),
                (&Value::from(201), &Value::from(true)),
                (&Value::from(422), &Value::from(false)),
                (&Value::from(201), &Value::from(false)),
            ]
        )
    );
    for line in &ours {
        assert!(line["took_ms"].is_f64(), "a number that can be summed: {line}");
    }
    for line in &ours[..3] {
        assert_eq!((&line["method"], &line["path"]), (&"POST".into(), &"/orders/{id}".into()));
        assert_eq!(line["key"].as_str().map(str::len), Some(8), "a digest: {line}");
    }
    assert_eq!(ours[0]["operation"], ours[1]["operation"]);
    assert_eq!((&ours[2]["problem"], &ours[3]["path"]), (&"key-reused".into(), &"/plain".into()));
    assert_eq!(ours[3].get("key"), None);
    // The key does not occur even at the trace level, in the lines that Semel itself logs.
    let by_us = log.lines().filter(|line| line.contains("semel"));
    for line in by_us {
        assert!(!line.contains("very-secret") && !line.contains("4111"), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_requests_by_route_and_result() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), "[[route]]\npath = \"/orders/{id}\"");
    let caller = Caller::new(&gateway);
    for _ in 0..3 {
        caller.post("/orders/7", "k", "{}").await;
    }
    caller.get("/who/knows/what").await;
    let metrics = get(&format!("{}/metrics", gateway.url("admin"))).await;
    for line in [
        "semel_executions_total{kind=\"http\",outcome=\"executed\"} 1",
        "semel_executions_total{kind=\"http\",outcome=\"replayed\"} 2",
        "semel_gateway_requests_total{method=\"POST\",route=\"/orders/{id}\",status=\"201\"} 3",
        "semel_gateway_requests_total{method=\"GET\",route=\"none\",status=\"201\"} 1",
        "semel_gateway_upstream_requests_total{result=\"answered\"} 2",
        "semel_gateway_request_duration_seconds_count{route=\"/orders/{id}\"} 3",
    ] {
        assert!(metrics.text().contains(line), "{line}: {}", metrics.text());
    }
    assert_eq!(caller.get("/metrics").await.status, 201, "the path belongs to the upstream");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_listener_can_be_turned_off() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--admin-listen", "off"]);
    assert_eq!(Caller::new(&gateway).post("/orders", "k", "{}").await.status, 201);
    let urls = format!("{gateway:?}");
    assert!(!urls.contains("admin"), "{urls}");
}

#[cfg(feature = "otlp")]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_a_span_of_its_callers_trace() {
    let (fixture, shop, collector) = (Fixture::new(), Shop::open().await, Shop::open().await);
    let mut command = fixture.command(&shop.url(), &[]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url());
    let gateway = crate::program::Service::start(command);
    let caller = Caller::new(&gateway);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let mut request = caller.keyed("/orders", "very-secret-key", "{}");
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    request.headers_mut().insert("traceparent", parent.parse().unwrap());
    caller.send(request).await;
    let handed_on = shop.seen("/orders")[0].headers["traceparent"].to_str().unwrap().to_owned();
    assert!(handed_on.starts_with(&format!("00-{trace}-")), "{handed_on}");
    assert_ne!(handed_on, parent, "the upstream's parent is the gateway's span");
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0));
    let exports = collector.seen("/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    assert!(!exports.is_empty(), "traces are exported before the end");
    let contains = |words: &[u8]| {
        exports.iter().any(|one| one.body.windows(words.len()).any(|at| at == words))
    };
    assert!(contains(b"/orders") && !contains(b"very-secret-key"));
}
