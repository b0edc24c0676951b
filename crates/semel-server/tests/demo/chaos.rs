//! Tests of the built-in load, and that it detects doubled and lost effects.

use http::Method;
use semel_nats::async_nats::jetstream;

use crate::caller::{Caller, TEA};
use crate::fixture::{Fixture, done, server, until_effects};
use crate::program::{Ended, Service};

fn ended(mut command: std::process::Command) -> Ended {
    command.output().expect("the program can be started").into()
}

/// Runs a load that ends without findings, and repeats it with more time until `enough` has
/// happened, because a busy machine may be slow.
fn enough_chaos(fixture: &Fixture, enough: impl Fn(&str) -> bool) -> String {
    let run = |lasts| ended(fixture.demo(&["--chaos-for", lasts])).well();
    for lasts in ["3s", "12s"] {
        let printed = run(lasts);
        if enough(&printed) {
            return printed;
        }
    }
    run("48s")
}

/// Returns a number from the last line that a load has printed.
fn count(printed: &str, name: &str) -> u64 {
    let last = printed.lines().rfind(|line| line.starts_with("requests ")).expect("a line");
    let found = last.split(", ").find_map(|cell| cell.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("{name} in {printed}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_ends_with_nothing_doubled_and_nothing_lost() {
    let fixture = Fixture::embedded();
    let wrong = ["executed", "replayed", "in progress", "failed", "hung up", "events sent again"];
    let printed =
        enough_chaos(&fixture, |printed| wrong.iter().all(|name| count(printed, name) > 0));
    let shown = printed.lines().filter(|line| line.starts_with("requests ")).collect::<Vec<_>>();
    assert!(shown.len() >= 2, "a line a second: {printed}");
    assert!(shown.iter().all(|line| line.contains("effects doubled 0,")), "{printed}");
    // Every fault has happened.
    for name in wrong {
        assert!(count(&printed, name) > 0, "{name}: {printed}");
    }
    let orders = count(&printed, "orders");
    for group in ["INVENTORY", "NOTIFY", "BILLING"] {
        assert_eq!(count(&printed, group), orders, "{printed}");
    }
    let verdict = format!("{orders} keys, {orders} orders, one answer each");
    assert!(printed.trim().lines().last().is_some_and(|line| line.contains(&verdict)), "{printed}");
    fixture.remove().await;
}

/// Returns a fixture in whose database one effect is doubled.
async fn sabotaged() -> Fixture {
    let fixture = Fixture::embedded();
    // Creates the tables.
    drop(fixture.start());
    fixture
        .execute(
            "CREATE TRIGGER sabotage AFTER INSERT ON effects \
             WHEN (SELECT COUNT(*) FROM effects) = 20 \
             BEGIN INSERT INTO effects SELECT * FROM effects LIMIT 1; END",
        )
        .await;
    fixture
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_that_finds_a_doubled_effect_ends_with_3() {
    let fixture = sabotaged().await;
    let printed = ended(fixture.demo(&["--chaos-for", "1s"]));
    assert_eq!(printed.code, Some(3), "{}{}", printed.stdout, printed.stderr);
    assert!(printed.stderr.contains("chaos: 1 effects doubled"), "{}", printed.stderr);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_that_is_stopped_ends_with_0() {
    let fixture = Fixture::embedded();
    let service = Service::start(fixture.demo(&["--chaos"]));
    service.signal("TERM");
    assert_eq!(service.ended().code(), Some(0));
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_that_is_stopped_after_a_doubled_effect_ends_with_3() {
    let fixture = sabotaged().await;
    let service = Service::start(fixture.demo(&["--chaos"]));
    while fixture.number("SELECT COUNT(*) FROM effects").await < 21 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    service.signal("TERM");
    assert_eq!(service.ended().code(), Some(3));
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_that_finds_a_second_order_of_one_key_and_none_of_another_ends_with_3() {
    let fixture = Fixture::embedded();
    drop(fixture.start());
    // One order is changed to the product of another, so that one key has two orders and one has
    // none. Each of the load's twelve callers places at least one.
    fixture
        .execute(
            "CREATE TRIGGER sabotage AFTER INSERT ON orders \
             WHEN (SELECT COUNT(*) FROM orders) = 10 \
             BEGIN UPDATE orders SET sku = (SELECT sku FROM orders WHERE id <> NEW.id LIMIT 1) \
             WHERE id = NEW.id; END",
        )
        .await;
    let printed = ended(fixture.demo(&["--chaos-for", "1s"]));
    assert_eq!(printed.code, Some(3), "{}{}", printed.stdout, printed.stderr);
    let found = "chaos: 1 orders too many, 1 orders lost";
    assert!(printed.stderr.contains(found), "{}", printed.stderr);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_delivered_twice_over_nats_and_nothing_is_doubled() {
    let url = server("SEMEL_TEST_NATS_URL");
    let fixture = Fixture::postgres(&url).await;
    enough_chaos(&fixture, |printed| count(printed, "events sent again") > 0);
    // The stream has every message that it accepted, without those that NATS recognised as
    // duplicates.
    let client = semel_nats::connect(&url).await.expect("the server");
    let context = jetstream::new(client);
    let mut stream = context.get_stream(fixture.name()).await.expect("the stream");
    let brought = stream.info().await.expect("the stream's state").state.messages;
    let orders = fixture.number("SELECT COUNT(*) FROM orders").await;
    assert!(brought > orders.unsigned_abs(), "{brought} messages of {orders} events");
    context.delete_stream(fixture.name()).await.expect("deleted");
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_delivered_twice_over_rabbitmq_and_nothing_is_doubled() {
    let fixture = Fixture::mysql(&server("SEMEL_TEST_AMQP_URL")).await;
    let printed = enough_chaos(&fixture, |printed| count(printed, "events sent again") > 0);
    assert_ne!(count(&printed, "events sent again"), 0, "{printed}");
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_affects_only_its_own_load() {
    let (fixture, caller) = (Fixture::embedded(), Caller::new());
    let service = Service::start(fixture.demo(&["--chaos"]));
    let url = format!("{}/orders", service.url("orders"));
    // The load's header, sent by other tenants.
    for tenant in ["acme", "chaos", "chaos-"] {
        let headers =
            [("x-tenant-id", tenant), ("idempotency-key", "k"), ("x-semel-chaos", "fail")];
        let answer = caller.send(Method::POST, &url, &headers, TEA).await.expect("an answer");
        assert_eq!((answer.status, answer.replayed()), (201, false), "{}", answer.text());
    }
    drop(service);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_that_is_killed_and_started_again_loses_and_doubles_nothing() {
    let (fixture, caller) = (Fixture::embedded(), Caller::new());
    for kills in 1..=3 {
        let mut demo = fixture.demo(&["--chaos"]);
        // A short lease, so that work under way at a kill is soon due again.
        demo.env("SEMEL_INBOX__LOCK_TTL", "2s");
        let service = Service::start(demo);
        let effects = format!("{}/effects", service.url("orders"));
        while caller.get(&effects).await.json()["orders"].as_u64() < Some(kills * 30) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        service.kill();
    }
    let service = fixture.start();
    let orders = fixture.number("SELECT COUNT(*) FROM orders").await;
    let done = done(usize::try_from(orders).expect("a count"));
    assert_eq!(until_effects(&caller, service.url("orders"), &done).await, done);
    assert_eq!(fixture.handled().await, 3 * orders);
    drop(service);
    fixture.remove().await;
}
