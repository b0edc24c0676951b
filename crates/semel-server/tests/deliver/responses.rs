//! What follows from the response of an endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::endpoint::{Answer, Endpoint, Received};
use crate::fixture::{Fixture, call, event, until};

/// Answers the first requests so, and all later ones with 200.
fn first(
    count: usize,
    answer: impl Fn() -> Answer + Send + Sync + 'static,
) -> impl Fn(&Received) -> Answer + Send + Sync + 'static {
    let seen = AtomicUsize::new(0);
    move |_| match seen.fetch_add(1, Ordering::SeqCst) {
        number if number < count => answer(),
        _ => Answer::Status(200),
    }
}

fn subscription(group: &str, url: &str, more: &str) -> String {
    format!(
        "[[subscription]]\ngroup = \"{group}\"\nurl = \"{url}\"\nallow_private = true\n{more}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_a_cloud_event_with_the_same_ids_in_every_attempt() {
    let endpoint = Endpoint::start(first(2, || Answer::Status(500)));
    let fixture = Fixture::new().await;
    fixture.settings(&subscription(
        "SHIPPING",
        &endpoint.url("/in"),
        "base_backoff = \"1ms\"\nmax_backoff = \"1ms\"",
    ));
    let paid = event("order.paid", "ord_1", 7);
    fixture.append(std::slice::from_ref(&paid)).await;
    let _service = fixture.start();
    until("three attempts", || endpoint.received("/in").len() == 3).await;
    let received = endpoint.received("/in");
    for one in &received {
        assert_eq!(one.body, r#"{"number":7}"#);
        assert_eq!(one.header("content-type"), "application/json");
        assert_eq!(one.header("ce-id"), paid.id().to_string());
        assert_eq!((one.header("ce-type"), one.header("ce-tenantid")), ("order.paid", "acme"));
        assert_eq!(one.header("webhook-id"), received[0].header("webhook-id"));
        assert_eq!(one.header("idempotency-key"), received[0].header("idempotency-key"));
        assert!(one.header("idempotency-key").starts_with("SHIPPING:"), "{one:?}");
    }
    until("handled", || fixture.failed("SHIPPING").is_empty()).await;
    assert_eq!(endpoint.received("/in").len(), 3, "a handled event is not sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_wanted_types_and_tenants_are_sent() {
    let endpoint = Endpoint::start(|_| Answer::Status(200));
    let fixture = Fixture::new().await;
    let all = subscription("ALL", &endpoint.url("/all"), "");
    let paid = subscription(
        "PAID",
        &endpoint.url("/paid"),
        "types = [\"order.paid\", \"*.refunded\"]\ntenant = \"acme\"",
    );
    fixture.settings(&(all + &paid));
    let other =
        semel_core::Event::builder("other", "order.paid", "/orders").json(&1).build().unwrap();
    let events =
        ["order.paid", "order.placed", "bill.refunded"].map(|kind| event(kind, "ord_1", 1));
    fixture.append(&events).await;
    fixture.append(&[other]).await;
    fixture.run(&["--once"]).well();
    let types = |path| {
        let mut types: Vec<_> =
            endpoint.received(path).iter().map(|one| one.header("ce-type").to_owned()).collect();
        types.sort();
        types
    };
    assert_eq!(types("/all"), ["bill.refunded", "order.paid", "order.paid", "order.placed"]);
    assert_eq!(types("/paid"), ["bill.refunded", "order.paid"]);
}

/// The answer decides about the pause, but only within the bounds of the settings.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_after_lengthens_the_pause_and_never_shortens_it() {
    for (retry_after, base, cap, pause) in
        [("3600", "1ms", "2h", 3_600), ("3600", "1ms", "30m", 1_800), ("0", "1h", "2h", 3_600)]
    {
        let header = retry_after.to_owned();
        let endpoint = Endpoint::start(move |_| Answer::With(503, "retry-after", header.clone()));
        let fixture = Fixture::new().await;
        let more = format!("base_backoff = \"{base}\"\nmax_backoff = \"{cap}\"");
        fixture.settings(&subscription("A", &endpoint.url("/in"), &more));
        fixture.append(&[event("order.paid", "ord_1", 1)]).await;
        fixture.run(&["--once"]).badly(3);
        let failed = fixture.failed("A").remove(0);
        let at = |name: &str| failed[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        let seconds = at("retry_at").as_second() - at("completed_at").as_second();
        assert_eq!(seconds, pause, "Retry-After {retry_after} with {base} to {cap}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_a_failure_and_is_not_followed() {
    let endpoint = Endpoint::start(|one| match one.path.as_str() {
        "/in" => Answer::With(307, "location", "/elsewhere".to_owned()),
        _ => Answer::Status(200),
    });
    let fixture = Fixture::new().await;
    fixture.settings(&subscription("A", &endpoint.url("/in"), ""));
    fixture.append(&[event("order.paid", "ord_1", 1)]).await;
    fixture.run(&["--once"]).badly(3);
    assert_eq!((endpoint.received("/in").len(), endpoint.received("/elsewhere").len()), (1, 0));
    let error = fixture.failed("A")[0]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("307") && error.contains("not followed"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_refused_again_and_again_is_dead_with_the_answer() {
    let body = format!("no\u{1b}[1m such\r\norder {}", "x".repeat(100_000));
    let endpoint = Endpoint::start(move |_| Answer::Body(422, body.clone()));
    let fixture = Fixture::new().await;
    let more = "max_attempts = 3\nbase_backoff = \"1ms\"\nmax_backoff = \"1ms\"";
    fixture.settings(&subscription("A", &endpoint.url("/in"), more));
    fixture.append(&[event("order.paid", "ord_1", 1)]).await;
    let _service = fixture.start();
    let dead = || fixture.failed("A").first().is_some_and(|one| one["state"] == "dead");
    until("dead", dead).await;
    let failed = fixture.failed("A");
    let error = failed[0]["error"].as_str().unwrap();
    assert!(error.contains("422: no[1m such order xxx") && error.len() < 300, "{error}");
    assert_eq!(endpoint.received("/in").len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_is_gone_disables_its_subscription_until_it_is_enabled() {
    let gone = Arc::new(AtomicBool::new(true));
    let answers = Arc::clone(&gone);
    let endpoint = Endpoint::start(move |_| match answers.load(Ordering::SeqCst) {
        true => Answer::Status(410),
        false => Answer::Status(200),
    });
    let fixture = Fixture::new().await;
    let more = "concurrency = 1\nbase_backoff = \"1ms\"\nmax_backoff = \"1ms\"";
    fixture.settings(&subscription("A", &endpoint.url("/in"), more));
    let events: Vec<_> = (0..3).map(|number| event("order.paid", "ord_1", number)).collect();
    fixture.append(&events).await;
    let service = fixture.start();
    let admin = service.url("admin").to_owned();
    let metric = "semel_deliver_disabled{group=\"A\"} 1";
    let end = std::time::Instant::now() + crate::fixture::PATIENCE;
    while !call("GET", &format!("{admin}/metrics")).await.contains(metric) {
        assert!(std::time::Instant::now() < end);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    gone.store(false, Ordering::SeqCst);
    let sent = endpoint.received("/in").len();
    service.kill();
    let service = fixture.start();
    let admin = service.url("admin").to_owned();
    let list = call("GET", &format!("{admin}/subscriptions")).await;
    assert!(list.contains("\"disabled\":true"), "a restart does not enable it: {list}");
    // The one that was being sent when the process was killed is still claimed.
    until("the events are kept", || fixture.failed("A").len() >= 2).await;
    assert_eq!(endpoint.received("/in").len(), sent, "nothing is sent while it is disabled");
    let purge = ["records", "purge", "A", "--scope", "DELIVER_DISABLED", "--reason", "repaired"];
    fixture.semel(&purge).well();
    until("all are handled", || {
        fixture.failed("A").is_empty() && endpoint.received("/in").len() == sent + 3
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_hangs_or_is_away_stops_no_other() {
    let endpoint = Endpoint::start(|one| match one.path.as_str() {
        "/hangs" => Answer::Silence,
        _ => Answer::Status(200),
    });
    let fixture = Fixture::new().await;
    let hangs = subscription(
        "HANGS",
        &endpoint.url("/hangs"),
        "timeout = \"1h\"\nconcurrency = 2\nordered = true",
    );
    let away = subscription("AWAY", "http://127.0.0.1:9/in", "");
    let works = subscription("WORKS", &endpoint.url("/works"), "ordered = true");
    fixture.settings(&format!("{hangs}{away}{works}"));
    let service = fixture.start();
    for number in 0..50 {
        fixture.append(&[event("order.paid", &format!("ord_{}", number % 5), number)]).await;
    }
    until("all events arrive", || endpoint.received("/works").len() == 50).await;
    assert_eq!(endpoint.received("/hangs").len(), 2, "as many as may be under way");
    service.signal("KILL");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deliverer_that_is_stopped_finishes_its_requests() {
    let endpoint = Endpoint::start(|_| {
        std::thread::sleep(std::time::Duration::from_millis(300));
        Answer::Status(200)
    });
    let fixture = Fixture::new().await;
    fixture.settings(&subscription("A", &endpoint.url("/in"), "concurrency = 1"));
    let events: Vec<_> = (0..5).map(|number| event("order.paid", "ord_1", number)).collect();
    fixture.append(&events).await;
    let service = fixture.start();
    until("a request", || !endpoint.received("/in").is_empty()).await;
    service.signal("TERM");
    assert!(service.ended().success());
    let sent = endpoint.received("/in").len();
    assert_eq!(fixture.failed("A").len(), 5 - sent, "what was sent is recorded");
    fixture.run(&["--once"]).well();
    assert_eq!(endpoint.received("/in").len(), 5, "once each");
}
