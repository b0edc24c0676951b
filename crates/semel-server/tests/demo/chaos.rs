//! The built-in load, and that it would tell.

use http::Method;
use semel_nats::async_nats::jetstream;

use crate::caller::{Caller, TEA};
use crate::ground::{Ground, done, server, until_effects};
use crate::program::{Ended, Service};

fn ended(mut command: std::process::Command) -> Ended {
    command.output().expect("the program can be started").into()
}

/// A load that ends well and in which `enough` has happened: what a busy machine does not come to in
/// some seconds happens in more of them.
fn enough_chaos(ground: &Ground, enough: impl Fn(&str) -> bool) -> String {
    let run = |lasts| ended(ground.demo(&["--chaos-for", lasts])).well();
    for lasts in ["3s", "12s"] {
        let said = run(lasts);
        if enough(&said) {
            return said;
        }
    }
    run("48s")
}

/// A number of the last line that a load has printed.
fn count(said: &str, name: &str) -> u64 {
    let last = said.lines().rfind(|line| line.starts_with("requests ")).expect("a line");
    let found = last.split(", ").find_map(|cell| cell.strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("{name} in {said}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_ends_with_nothing_doubled_and_nothing_lost() {
    let ground = Ground::embedded();
    let wrong = ["executed", "replayed", "in progress", "failed", "hung up", "events sent again"];
    let said = enough_chaos(&ground, |said| wrong.iter().all(|name| count(said, name) > 0));
    let shown = said.lines().filter(|line| line.starts_with("requests ")).collect::<Vec<_>>();
    assert!(shown.len() >= 2, "a line a second: {said}");
    assert!(shown.iter().all(|line| line.contains("effects doubled 0,")), "{said}");
    // Whatever may go wrong went wrong.
    for name in wrong {
        assert!(count(&said, name) > 0, "{name}: {said}");
    }
    let orders = count(&said, "orders");
    for group in ["INVENTORY", "NOTIFY", "BILLING"] {
        assert_eq!(count(&said, group), orders, "{said}");
    }
    let verdict = format!("{orders} keys, {orders} orders, one answer each");
    assert!(said.trim().lines().last().is_some_and(|line| line.contains(&verdict)), "{said}");
    ground.remove().await;
}

/// A ground on which one effect is doubled.
async fn sabotaged() -> Ground {
    let ground = Ground::embedded();
    // So that there are tables.
    drop(ground.start());
    ground
        .execute(
            "CREATE TRIGGER sabotage AFTER INSERT ON effects \
             WHEN (SELECT COUNT(*) FROM effects) = 20 \
             BEGIN INSERT INTO effects SELECT * FROM effects LIMIT 1; END",
        )
        .await;
    ground
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_that_finds_a_doubled_effect_ends_with_3() {
    let ground = sabotaged().await;
    let said = ended(ground.demo(&["--chaos-for", "1s"]));
    assert_eq!(said.code, Some(3), "{}{}", said.stdout, said.stderr);
    assert!(said.stderr.contains("chaos: 1 effects doubled"), "{}", said.stderr);
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_that_is_asked_to_stop_ends_well() {
    let ground = Ground::embedded();
    let service = Service::start(ground.demo(&["--chaos"]));
    service.signal("TERM");
    assert_eq!(service.ended().code(), Some(0));
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_that_is_asked_to_stop_after_a_doubled_effect_ends_with_3() {
    let ground = sabotaged().await;
    let service = Service::start(ground.demo(&["--chaos"]));
    while ground.number("SELECT COUNT(*) FROM effects").await < 21 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    service.signal("TERM");
    assert_eq!(service.ended().code(), Some(3));
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_that_finds_a_second_order_of_one_key_and_none_of_another_ends_with_3() {
    let ground = Ground::embedded();
    drop(ground.start());
    // One order is for the product of another, so that one key has two orders and one has none. Each of
    // the load's twelve callers places one at least.
    ground
        .execute(
            "CREATE TRIGGER sabotage AFTER INSERT ON orders \
             WHEN (SELECT COUNT(*) FROM orders) = 10 \
             BEGIN UPDATE orders SET sku = (SELECT sku FROM orders WHERE id <> NEW.id LIMIT 1) \
             WHERE id = NEW.id; END",
        )
        .await;
    let said = ended(ground.demo(&["--chaos-for", "1s"]));
    assert_eq!(said.code, Some(3), "{}{}", said.stdout, said.stderr);
    let found = "chaos: 1 orders too many, 1 orders lost";
    assert!(said.stderr.contains(found), "{}", said.stderr);
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_twice_over_nats_and_nothing_is_doubled() {
    let url = server("SEMEL_TEST_NATS_URL");
    let ground = Ground::postgres(&url).await;
    enough_chaos(&ground, |said| count(said, "events sent again") > 0);
    // The stream keeps whatever it took: an event that it recognised by itself is not among it.
    let client = semel_nats::connect(&url).await.expect("the server");
    let context = jetstream::new(client);
    let mut stream = context.get_stream(ground.name()).await.expect("the stream");
    let brought = stream.info().await.expect("what it has").state.messages;
    let orders = ground.number("SELECT COUNT(*) FROM orders").await;
    assert!(brought > orders.unsigned_abs(), "{brought} messages of {orders} events");
    context.delete_stream(ground.name()).await.expect("deleted");
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_twice_over_rabbitmq_and_nothing_is_doubled() {
    let ground = Ground::mysql(&server("SEMEL_TEST_AMQP_URL")).await;
    let said = enough_chaos(&ground, |said| count(said, "events sent again") > 0);
    assert_ne!(count(&said, "events sent again"), 0, "{said}");
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_affects_only_its_own_load() {
    let (ground, caller) = (Ground::embedded(), Caller::new());
    let service = Service::start(ground.demo(&["--chaos"]));
    let url = format!("{}/orders", service.url("orders"));
    // The load's header, sent by other tenants.
    for tenant in ["acme", "chaos", "chaos-"] {
        let headers =
            [("x-tenant-id", tenant), ("idempotency-key", "k"), ("x-semel-chaos", "fail")];
        let answer = caller.say(Method::POST, &url, &headers, TEA).await.expect("an answer");
        assert_eq!((answer.status, answer.replayed()), (201, false), "{}", answer.text());
    }
    drop(service);
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_that_is_killed_and_started_again_loses_and_doubles_nothing() {
    let (ground, caller) = (Ground::embedded(), Caller::new());
    for kills in 1..=3 {
        let mut demo = ground.demo(&["--chaos"]);
        // What was under way at a kill is due again soon.
        demo.env("SEMEL_INBOX__LOCK_TTL", "2s");
        let service = Service::start(demo);
        let effects = format!("{}/effects", service.url("orders"));
        while caller.get(&effects).await.json()["orders"].as_u64() < Some(kills * 30) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        service.kill();
    }
    let service = ground.start();
    let orders = ground.number("SELECT COUNT(*) FROM orders").await;
    let done = done(usize::try_from(orders).expect("a count"));
    assert_eq!(until_effects(&caller, service.url("orders"), &done).await, done);
    assert_eq!(ground.handled().await, 3 * orders);
    drop(service);
    ground.remove().await;
}
