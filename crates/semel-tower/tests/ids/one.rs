//! Tests of one id, from the path or else from the query.

use axum::body::Body;
use http::{Request, StatusCode};
use semel_core::Executor;
use semel_core::store::memory::MemoryStore;
use semel_ids::resource::User;
use semel_tower::http::IdempotencyLayer;
use semel_tower::{PrincipalFrom, Tenant};

use crate::support::{OrderId, Shop, new_id, send};

#[tokio::test]
async fn a_handler_gets_the_internal_and_the_public_id() {
    let shop = Shop::open();
    let id = shop.order("acme").await;
    let answer = shop.get("acme", format!("/orders/{id}")).await;
    assert_eq!((answer.status, answer.text()), (StatusCode::OK, &*format!("{} {id}", id.ulid())));
    let answer = shop.get("acme", format!("/internal/{id}")).await;
    assert_eq!(answer.text(), id.ulid().to_string());
}

#[tokio::test]
async fn an_id_in_the_path_comes_before_one_in_the_query() {
    let shop = Shop::open();
    let (one, other) = (shop.order("acme").await, shop.order("acme").await);
    let answer = shop.get("acme", format!("/internal/{one}?order_id={other}")).await;
    assert_eq!(answer.text(), one.ulid().to_string());
    let answer = shop.get("acme", format!("/order?a=1&order_id={other}&b=2")).await;
    assert_eq!(answer.text(), format!("{} {other}", other.ulid()));
    // A valid id in the query does not replace a malformed one in the path.
    for bad in ["none", "%ff"] {
        let answer = shop.get("acme", format!("/internal/{bad}?order_id={other}")).await;
        assert_eq!(answer.problem(), ("public-id-invalid".to_owned(), 400), "{bad}");
    }
}

#[tokio::test]
async fn escaped_characters_are_decoded() {
    let shop = Shop::open();
    let id = shop.order("acme").await;
    let escaped = id.to_string().replace('_', "%5F");
    for path in [format!("/internal/{escaped}"), format!("/nowhere?order%5Fid={escaped}")] {
        assert_eq!(shop.get("acme", path).await.text(), id.ulid().to_string());
    }
}

#[tokio::test]
async fn two_ids_of_one_type_are_distinguished_by_their_parameters() {
    let shop = Shop::open();
    let buyer = shop.put::<User>("acme", new_id()).await;
    let seller = shop.put::<User>("acme", new_id()).await;
    let request = Request::post(format!("/deals/{buyer}?seller={seller}&user_id=none"));
    let request = request.header("x-tenant", "acme").body(Body::empty()).expect("a request");
    assert_eq!(send(&shop.app, request).await.text(), format!("{buyer} {seller}"));
}

#[tokio::test]
async fn an_optional_id_is_checked_if_it_is_present() {
    let shop = Shop::open();
    let order = shop.order("acme").await;
    let user = shop.put::<User>("acme", new_id()).await;
    assert_eq!(shop.get("acme", "/maybe").await.text(), "None None");
    let both = shop.get("acme", format!("/maybe?order_id={order}&user_id={user},{user}")).await;
    assert_eq!(both.text(), format!("Some({order}) Some(2)"));
    let bad = shop.get("acme", "/maybe?order_id=none").await;
    assert_eq!(bad.problem(), ("public-id-invalid".to_owned(), 400));
    let unknown = shop.get("acme", format!("/maybe?user_id={}", new_id::<User>())).await;
    assert_eq!(unknown.problem(), ("public-id-not-found".to_owned(), 404));
}

#[tokio::test]
async fn a_revoked_id_is_not_found_any_more() {
    let shop = Shop::open();
    let id = shop.order("acme").await;
    assert_eq!(shop.get("acme", format!("/orders/{id}")).await.status, StatusCode::OK);
    assert!(shop.resolver.revoke("acme", id).await.expect("revoked").was_live);
    let answer = shop.get("acme", format!("/orders/{id}")).await;
    assert_eq!(answer.problem(), ("public-id-not-found".to_owned(), 404));
}

#[tokio::test]
async fn under_a_key_an_id_that_is_not_found_can_be_requested_again() {
    let shop = Shop::open();
    let executor = Executor::new(MemoryStore::new());
    let tenant = Tenant::header(http::HeaderName::from_static("x-tenant"));
    let layer = IdempotencyLayer::fenced(executor, tenant, PrincipalFrom::global());
    let app = shop.app.clone().layer(layer);
    let id: OrderId = new_id();
    let ask = async || {
        let request = Request::post(format!("/orders/{id}"));
        let request = request.header("x-tenant", "acme").header("idempotency-key", "k");
        send(&app, request.body(Body::empty()).expect("a request")).await
    };
    assert_eq!(ask().await.problem(), ("public-id-not-found".to_owned(), 404));
    shop.put("acme", id).await;
    assert_eq!(ask().await.status, StatusCode::OK);
    assert_eq!(ask().await.headers["idempotent-replayed"], "true");
}
