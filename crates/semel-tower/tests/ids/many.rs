//! Tests of many ids in one request.

use http::StatusCode;

use crate::support::{OrderId, Shop, new_id};

fn list(ids: &[OrderId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn shown(ids: &[OrderId]) -> String {
    ids.iter().map(|id| format!("{id}={}", id.ulid())).collect::<Vec<_>>().join(" ")
}

async fn orders(shop: &Shop, count: usize) -> Vec<OrderId> {
    let mut orders = Vec::new();
    for _ in 0..count {
        orders.push(shop.order("acme").await);
    }
    orders
}

#[tokio::test]
async fn a_handler_gets_them_in_the_order_of_the_request_and_as_often() {
    let shop = Shop::open();
    let ids = orders(&shop, 4).await;
    let wanted = [ids[2], ids[0], ids[2], ids[3], ids[1]];
    let with_commas = shop.get("acme", format!("/orders?order_id={}", list(&wanted))).await;
    assert_eq!(with_commas.text(), shown(&wanted));
    let each = wanted.map(|id| format!("order_id={id}")).join("&x=1&");
    assert_eq!(shop.get("acme", format!("/orders?{each}")).await.text(), shown(&wanted));
    let both = format!("/orders?order_id={}&order_id={}", list(&wanted[..2]), list(&wanted[2..]));
    assert_eq!(shop.get("acme", both).await.text(), shown(&wanted));
    let in_path = shop.get("acme", format!("/batch/{}?order_id=none", list(&wanted))).await;
    assert_eq!(in_path.text(), shown(&wanted));
}

#[tokio::test]
async fn the_first_id_that_is_not_found_is_shown() {
    let shop = Shop::open();
    let there = shop.order("acme").await;
    let foreign = shop.order("umbrella").await;
    let unknown = new_id();
    let path = |ids: &[OrderId]| format!("/orders?order_id={}", list(ids));
    let answer = shop.get("acme", path(&[there, foreign, unknown])).await;
    assert_eq!(answer.problem(), ("public-id-not-found".to_owned(), 404));
    let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.contains(&foreign.to_string()), "{detail}");
    assert!(!detail.contains(&there.to_string()) && !detail.contains(&unknown.to_string()));
    let answer = shop.get("acme", path(&[there, unknown, foreign])).await;
    let found = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert_eq!(found, detail.replace(&foreign.to_string(), &unknown.to_string()));
}

#[tokio::test]
async fn the_first_malformed_id_is_shown_and_none_is_looked_up() {
    let shop = Shop::open();
    let (one, other): (OrderId, OrderId) = (new_id(), new_id());
    let path = format!("/orders?order_id={one},usr_01arz3ndektsv4rrffq69g5fav,{other},nonsense");
    let answer = shop.get("acme", path).await;
    assert_eq!(answer.problem(), ("public-id-invalid".to_owned(), 400));
    let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.contains("\"usr_01arz3ndektsv4rrffq69g5fav\""), "{detail}");
    assert!(!detail.contains("nonsense"), "{detail}");
    assert_eq!(shop.lookups.total(), 0);
}

#[tokio::test]
async fn empty_places_in_a_list_are_no_ids() {
    let shop = Shop::open();
    let id = shop.order("acme").await;
    for list in [String::new(), format!("{id},"), format!(",{id}"), format!("{id},,{id}")] {
        let answer = shop.get("acme", format!("/orders?order_id={list}")).await;
        assert_eq!(answer.problem(), ("public-id-invalid".to_owned(), 400), "{list:?}");
    }
    let answer = shop.get("acme", "/orders").await;
    assert_eq!(answer.problem(), ("public-id-invalid".to_owned(), 400));
    assert!(answer.text().contains("`order_id` is missing"), "{}", answer.text());
}

#[tokio::test]
async fn a_thousand_are_resolved_at_once_and_one_more_is_too_many() {
    let shop = Shop::open();
    let ids = orders(&shop, 1_000).await;
    let path = format!("/orders?order_id={}", list(&ids));
    let answer = shop.get("acme", &path).await;
    assert_eq!((answer.status, answer.text()), (StatusCode::OK, &*shown(&ids)));
    let answer = shop.get("acme", format!("{path},{}", ids[0])).await;
    assert_eq!(answer.problem(), ("public-id-invalid".to_owned(), 400));
    assert!(answer.text().contains("1001") && answer.text().contains("1000"), "{}", answer.text());
}
