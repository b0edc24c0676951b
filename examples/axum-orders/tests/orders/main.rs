//! Tests of the orders service over real sockets, on a real file.

mod fixture;

use fixture::Fixture;
use serde_json::json;

use axum_orders::client::Client;
use axum_orders::{database, demo};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_copies_of_an_order_make_one_row() {
    let fixture = Fixture::open("ten_copies").await;
    fixture.turnstile.close();
    let place = |_| {
        let alice = fixture.alice.clone();
        tokio::spawn(async move { alice.post("/orders", "k", &fixture::order()).await })
    };
    let tries: Vec<_> = (0..10).map(place).collect();
    fixture.turnstile.until_arrived(1).await;
    fixture.turnstile.open();
    let mut answers = Vec::new();
    for tried in tries {
        answers.push(tried.await.expect("a task").expect("an answer"));
    }
    assert!(answers.iter().all(|answer| answer.status == 201), "{answers:?}");
    assert!(answers.iter().all(|answer| answer.body == answers[0].body), "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer.replayed()).count(), 9);
    assert_eq!(fixture.turnstile.arrived(), 1);
    assert_eq!(fixture.rows("customer_order").await, 1);
    assert_eq!(fixture.rows("order_line").await, 2);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disconnect_does_not_stop_the_order() {
    let fixture = Fixture::open("disconnect").await;
    fixture.turnstile.close();
    let connection = fixture.alice.post_and_hold("/orders", "k", &fixture::order()).await;
    fixture.turnstile.until_arrived(1).await;
    Client::hang_up(connection.expect("a connection")).await.expect("the server drops the request");
    fixture.turnstile.open();
    let again = fixture.alice.post("/orders", "k", &fixture::order()).await.expect("an answer");
    assert_eq!((again.status.as_u16(), again.replayed()), (201, true));
    assert_eq!((fixture.turnstile.arrived(), fixture.rows("customer_order").await), (1, 1));
    fixture.close().await;
}

#[tokio::test]
async fn a_changed_body_under_the_same_key_is_refused() {
    let fixture = Fixture::open("changed").await;
    let first = fixture.place("k").await;
    let other = json!({ "lines": [{ "sku": "kettle", "quantity": 1 }] });
    let refused = fixture.alice.post("/orders", "k", &other).await.expect("an answer");
    assert_eq!((refused.status.as_u16(), refused.text("code")), (422, "KEY_REUSED"));
    assert_eq!(fixture.place("k").await.body, first.body);
    assert_eq!(fixture.rows("customer_order").await, 1);
    fixture.close().await;
}

#[tokio::test]
async fn a_refused_order_leaves_nothing_and_its_key_is_free() {
    let fixture = Fixture::open("refused").await;
    let wrong =
        json!({ "lines": [{ "sku": "tea", "quantity": 1 }, { "sku": "coffee", "quantity": 1 }] });
    let refused = fixture.alice.post("/orders", "k", &wrong).await.expect("an answer");
    assert_eq!((refused.status.as_u16(), refused.text("code")), (422, "UNKNOWN_PRODUCT"));
    assert_eq!(fixture.rows("customer_order").await + fixture.rows("order_line").await, 0);
    assert_eq!(fixture.rows("semel_record").await, 0);
    assert!(!fixture.place("k").await.replayed());
    fixture.close().await;
}

#[tokio::test]
async fn an_order_needs_a_key_a_user_and_a_tenant() {
    let fixture = Fixture::open("needs").await;
    let missing =
        fixture.alice.post_with("/orders", &[], &fixture::order()).await.expect("an answer");
    assert_eq!((missing.status.as_u16(), missing.text("code")), (400, "KEY_MISSING"));
    let stranger = Client::new(fixture.addr(), "acme", "nobody");
    let refused = stranger.post("/orders", "k", &fixture::order()).await.expect("an answer");
    assert_eq!((refused.status.as_u16(), refused.text("code")), (401, "UNAUTHENTICATED"));
    let nowhere = Client::new(fixture.addr(), "", "alice-token");
    let refused = nowhere.post("/orders", "k", &fixture::order()).await.expect("an answer");
    assert_eq!((refused.status.as_u16(), refused.text("code")), (401, "TENANT_UNKNOWN"));
    assert_eq!((fixture.turnstile.arrived(), fixture.rows("customer_order").await), (0, 0));
    fixture.close().await;
}

#[tokio::test]
async fn users_and_tenants_do_not_meet_under_one_key() {
    let fixture = Fixture::open("isolated").await;
    let mut ids = vec![fixture.place("k").await.text("id").to_owned()];
    for (tenant, token) in [("acme", "bob-token"), ("umbrella", "alice-token")] {
        let other = Client::new(fixture.addr(), tenant, token);
        let placed = other.post("/orders", "k", &fixture::order()).await.expect("an answer");
        assert_eq!((placed.status.as_u16(), placed.replayed()), (201, false));
        ids.push(placed.text("id").to_owned());
    }
    let path = |id: &str| format!("/orders/{id}");
    let seen = fixture.alice.get(&path(&ids[1])).await.expect("an answer");
    assert_eq!((seen.status.as_u16(), seen.text("placed_by")), (200, "bob"));
    let hidden = fixture.alice.get(&path(&ids[2])).await.expect("an answer");
    assert_eq!(hidden.status, 404, "another tenant's order");
    fixture.close().await;
}

#[tokio::test]
async fn a_refund_is_given_once_and_never_more_than_was_paid() {
    let fixture = Fixture::open("refunds").await;
    let order = fixture.place("k").await;
    let path = format!("/orders/{}/refunds", order.text("id"));
    let refund = async |key: &'static str, cents: i64| {
        fixture.alice.post(&path, key, &json!({ "cents": cents })).await.expect("an answer")
    };
    let (one, again) = (refund("r-1", 2000).await, refund("r-1", 2000).await);
    assert_eq!((one.status.as_u16(), again.replayed()), (201, true));
    assert_eq!(one.body, again.body);
    let (more, again) = (refund("r-2", 101).await, refund("r-2", 101).await);
    assert_eq!((more.status.as_u16(), more.text("code")), (422, "REFUND_TOO_LARGE"));
    assert!(again.replayed(), "a refused refund stays refused");
    assert_eq!(refund("r-3", 100).await.status, 201);
    let shown = fixture.alice.get(&format!("/orders/{}", order.text("id"))).await;
    assert_eq!(shown.expect("an answer").body["refunded_cents"], 2100);
    assert_eq!(fixture.rows("refund").await, 2);
    fixture.close().await;
}

#[tokio::test]
async fn a_refund_of_no_order_is_not_remembered() {
    let fixture = Fixture::open("no_order").await;
    let refund = json!({ "cents": 1 });
    for _ in 0..2 {
        let refused = fixture.alice.post("/orders/none/refunds", "r", &refund).await;
        let refused = refused.expect("an answer");
        assert_eq!((refused.status.as_u16(), refused.replayed()), (404, false));
    }
    assert_eq!(fixture.rows("semel_record").await, 0);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_refund_gets_that_the_first_is_running() {
    let fixture = Fixture::open("running").await;
    let order = fixture.place("k").await;
    let path = format!("/orders/{}/refunds", order.text("id"));
    let before = fixture.turnstile.arrived();
    fixture.turnstile.close();
    let (alice, to) = (fixture.alice.clone(), path.clone());
    let first = tokio::spawn(async move { alice.post(&to, "r", &json!({ "cents": 1 })).await });
    fixture.turnstile.until_arrived(before + 1).await;
    let second = fixture.alice.post(&path, "r", &json!({ "cents": 1 })).await.expect("an answer");
    assert_eq!((second.status.as_u16(), second.text("code")), (409, "IN_PROGRESS"));
    assert_eq!(second.header("retry-after"), Some("1"));
    fixture.turnstile.open();
    assert_eq!(first.await.expect("a task").expect("an answer").status, 201);
    fixture.close().await;
}

#[tokio::test]
async fn an_answer_can_be_polled_by_its_own_caller_only() {
    let fixture = Fixture::open("later").await;
    let accepted = fixture.place_for_later("k", fixture::order()).await;
    assert_eq!(accepted.status, 202);
    assert_eq!(accepted.header("preference-applied"), Some("respond-async"));
    let url = accepted.header("location").expect("a URL").to_owned();
    let answer = fixture.alice.get(&url).await.expect("an answer");
    assert_eq!((answer.status.as_u16(), answer.replayed()), (201, true));
    assert_eq!(answer.body, fixture.place("k").await.body);
    let bob = Client::new(fixture.addr(), "acme", "bob-token");
    let unknown = bob.get(&url).await.expect("an answer");
    assert_eq!((unknown.status.as_u16(), unknown.text("code")), (404, "OPERATION_UNKNOWN"));
    fixture.close().await;
}

#[tokio::test]
async fn a_refusal_can_be_polled_too() {
    let fixture = Fixture::open("refused_later").await;
    let wrong = json!({ "lines": [{ "sku": "coffee", "quantity": 1 }] });
    let accepted = fixture.place_for_later("k", wrong).await;
    assert_eq!(accepted.status, 202);
    let url = accepted.header("location").expect("a URL").to_owned();
    let answer = fixture.alice.get(&url).await.expect("an answer");
    assert_eq!((answer.status.as_u16(), answer.text("code")), (422, "UNKNOWN_PRODUCT"));
    assert_eq!(fixture.rows("customer_order").await, 0);
    fixture.close().await;
}

#[tokio::test]
async fn a_restart_keeps_orders_and_answers() {
    let fixture = Fixture::open("restart").await;
    let before = fixture.place("k").await;
    let fixture = fixture.restart().await;
    let after = fixture.place("k").await;
    assert!(after.replayed());
    assert_eq!(after.body, before.body);
    assert_eq!((fixture.turnstile.arrived(), fixture.rows("customer_order").await), (0, 1));
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_waits_for_the_work_of_a_disconnected_client() {
    let fixture = Fixture::open("stopping").await;
    fixture.turnstile.close();
    let connection = fixture.alice.post_and_hold("/orders", "k", &fixture::order()).await;
    fixture.turnstile.until_arrived(1).await;
    Client::hang_up(connection.expect("a connection")).await.expect("the server drops the request");
    let turnstile = fixture.turnstile.clone();
    let stopping = tokio::spawn(fixture.restart());
    turnstile.open();
    let fixture = stopping.await.expect("stopped and started");
    assert!(fixture.place("k").await.replayed());
    assert_eq!(fixture.rows("customer_order").await, 1);
    fixture.close().await;
}

#[tokio::test]
async fn tables_are_made_once() {
    let fixture = Fixture::open("tables").await;
    assert_eq!(database::migrate(fixture.db()).await.expect("up to date"), 0);
    assert_eq!(fixture.rows("product").await, 3);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_passes_its_checks() {
    demo::run_on(&fixture::file("demo")).await.expect("every check of the demo");
}
