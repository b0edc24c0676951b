//! Tests of the layer's position among routers: which path it uses, and what happens if it is added
//! twice.

use std::convert::Infallible;

use axum::Router;
use axum::extract::{OriginalUri, Path};
use axum::routing::post as on_post;
use http::{Request, Response};
use semel_core::store::memory::MemoryStore;
use semel_testkit::faulty::{Fault, StoreCall};
use semel_tower::Body;
use semel_tower::http::Rules;
use tower::{Layer as _, service_fn};

use crate::backend::{post, run};
use crate::support::{Runs, faulty, layer, order, send};

/// Checks that two accounts of `app` with the same key and body never get each other's response.
async fn accounts_are_kept_apart(app: &Router) {
    let paid = async |account: u32| {
        let answer = send(app, post(&format!("/accounts/{account}/pay"), "k", "{}")).await;
        match answer.problem().as_deref() {
            Some("key-reused") => None,
            _ => Some((answer.text().to_owned(), answer.replayed())),
        }
    };
    assert_eq!(paid(1).await, Some(("paid by 1".to_owned(), false)));
    // For another account the request is another one, whether or not the key is separate.
    let other = paid(2).await;
    assert!(other.is_none() || other == Some(("paid by 2".to_owned(), false)), "{other:?}");
    assert_eq!(paid(1).await, Some(("paid by 1".to_owned(), true)));
}

#[test]
fn a_layer_inside_a_nested_router_keeps_accounts_apart() {
    run(async {
        let pay = on_post(async |Path(account): Path<u32>| format!("paid by {account}"));
        let inner = Router::new().route("/pay", pay).layer(layer(MemoryStore::new()));
        accounts_are_kept_apart(&Router::new().nest("/accounts/{account}", inner)).await;
    });
}

#[test]
fn a_layer_on_a_route_of_a_nested_router_keeps_accounts_apart() {
    run(async {
        let pay = on_post(async |Path(account): Path<u32>| format!("paid by {account}"));
        let inner = Router::new().route("/pay", pay.layer(layer(MemoryStore::new())));
        let outer = Router::new().nest("/accounts/{account}", inner);
        accounts_are_kept_apart(&Router::new().merge(outer)).await;
    });
}

/// Returns the account in the path to which the request was sent.
fn paid_by(OriginalUri(uri): &OriginalUri) -> String {
    let account = uri.path().split('/').nth(2).unwrap_or_default();
    format!("paid by {account}")
}

#[test]
fn a_layer_around_a_nested_service_keeps_accounts_apart() {
    run(async {
        let service = service_fn(async |request: Request<Body<axum::body::Body>>| {
            let original = request.extensions().get().expect("axum records the original URL");
            Ok::<_, Infallible>(Response::new(axum::body::Body::from(paid_by(original))))
        });
        let service = layer(MemoryStore::new()).layer(service);
        accounts_are_kept_apart(&Router::new().nest_service("/accounts/{account}", service)).await;
    });
}

#[test]
fn a_layer_around_a_nested_fallback_keeps_accounts_apart() {
    run(async {
        let fallback = async |original: OriginalUri| paid_by(&original);
        let inner = Router::new().fallback(fallback).layer(layer(MemoryStore::new()));
        accounts_are_kept_apart(&Router::new().nest("/accounts/{account}", inner)).await;
        let app = Router::new().fallback(fallback).layer(layer(MemoryStore::new()));
        accounts_are_kept_apart(&app).await;
    });
}

#[test]
fn a_problem_contains_the_requested_path() {
    run(async {
        let inner = Router::new()
            .route("/pay", on_post(async || "paid"))
            .layer(layer(MemoryStore::new()).rules(Rules::new().required()));
        let app = Router::new().nest("/accounts/{account}", inner);
        let unkeyed = crate::backend::request(http::Method::POST, "/accounts/1/pay", "{}");
        assert_eq!(send(&app, unkeyed).await.json()["instance"], "/accounts/1/pay");
    });
}

#[test]
fn a_layer_that_is_added_twice_runs_a_request_once() {
    run(async {
        let runs = Runs::default();
        let counting = runs.clone();
        let handler = on_post(async move || format!("run {}", counting.next()));
        let layer = layer(MemoryStore::new());
        let app = Router::new().route("/orders", handler.layer(layer.clone())).layer(layer);
        for replayed in [false, true, true] {
            let answer = send(&app, order()).await;
            assert_eq!(
                (answer.status.as_u16(), answer.text(), answer.replayed()),
                (200, "run 1", replayed)
            );
        }
        assert_eq!(runs.count(), 1);
        assert_eq!(send(&app, post("/orders", "k", "[]")).await.status, 422);
    });
}

#[test]
fn a_layer_that_is_added_twice_fails_open_once() {
    run(async {
        let (store, faults) = faulty(MemoryStore::new());
        faults.always(StoreCall::Open, Fault::Refuse);
        let runs = Runs::default();
        let counting = runs.clone();
        let handler = on_post(async move || format!("run {}", counting.next()));
        let layer = layer(store).rules(Rules::new().fail_open());
        let app = Router::new().route("/orders", handler.layer(layer.clone())).layer(layer);
        assert_eq!(send(&app, order()).await.text(), "run 1");
        assert_eq!(runs.count(), 1);
    });
}
