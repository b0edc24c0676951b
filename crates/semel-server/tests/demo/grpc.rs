//! Tests of the demo over gRPC.

use semel_server::demo::proto::CreateOrderRequest;
use semel_server::demo::proto::orders_client::OrdersClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use crate::caller::{Caller, TEA};
use crate::fixture::{Fixture, done, until_effects};

async fn client(url: &str) -> OrdersClient<Channel> {
    let endpoint = Endpoint::from_shared(url.to_owned()).expect("a URL");
    OrdersClient::new(endpoint.connect().await.expect("the demo listens"))
}

fn tea() -> CreateOrderRequest {
    CreateOrderRequest { sku: "tea".to_owned(), quantity: 2, amount_cents: 1_999 }
}

/// Creates a call with this tenant and key; empty ones are left out.
fn call(tenant: &str, key: &str, order: CreateOrderRequest) -> Request<CreateOrderRequest> {
    let mut request = Request::new(order);
    for (name, value) in [("x-tenant-id", tenant), ("idempotency-key", key)] {
        if !value.is_empty() {
            request.metadata_mut().insert(name, value.parse().expect("metadata"));
        }
    }
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_over_http_and_grpc_is_two_operations() {
    let fixture = Fixture::embedded();
    let (service, caller) = (fixture.start(), Caller::new());
    let (base, mut grpc) = (service.url("orders"), client(service.url("grpc")).await);
    let over_http = caller.place(base, "k", TEA).await.order_id();
    let first = grpc.create_order(call("acme", "k", tea())).await.expect("an order");
    let order = first.get_ref().clone();
    assert_ne!(order.order_id, over_http);
    assert_eq!((&*order.sku, order.quantity, order.amount_cents), ("tea", 2, 1_999));
    let again = grpc.create_order(call("acme", "k", tea())).await.expect("an order");
    assert_eq!(again.get_ref(), &order);
    assert_eq!(caller.place(base, "k", TEA).await.order_id(), over_http);
    // An order over gRPC can be read over HTTP.
    let shown = caller.get(&format!("{base}/orders/{}", order.order_id)).await;
    assert_eq!(shown.json()["order_id"], order.order_id);
    assert_eq!(until_effects(&caller, base, &done(2)).await, done(2));
    drop(service);
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_call_is_refused_with_its_code() {
    let fixture = Fixture::embedded();
    let (service, caller) = (fixture.start(), Caller::new());
    let mut grpc = client(service.url("grpc")).await;
    grpc.create_order(call("acme", "k", tea())).await.expect("an order");
    let none = CreateOrderRequest { quantity: 0, ..tea() };
    let other = CreateOrderRequest { quantity: 3, ..tea() };
    for (tenant, key, order, code) in [
        ("acme", "", tea(), Code::InvalidArgument),
        ("", "k", tea(), Code::Unauthenticated),
        ("acme", "l", none, Code::InvalidArgument),
        ("acme", "k", other, Code::FailedPrecondition),
    ] {
        let refused = grpc.create_order(call(tenant, key, order.clone())).await;
        let refused = refused.expect_err("a refusal");
        assert_eq!(refused.code(), code, "{tenant} {key} {order:?}");
    }
    grpc.create_order(call("acme", "l", tea())).await.expect("the key of the bad order is free");
    let base = service.url("orders");
    assert_eq!(until_effects(&caller, base, &done(2)).await, done(2));
    drop(service);
    fixture.remove().await;
}
