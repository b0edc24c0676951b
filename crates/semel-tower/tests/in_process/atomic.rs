//! Tests of the atomic mode: refusals that are stored, and transactions that are not taken.

use axum::Router;
use axum::routing::post as on_post;
use http::StatusCode;
use semel_core::Executor;
use semel_sql::sqlite::SqliteStore;
use semel_testkit::Fixture as _;
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
use semel_tower::axum::Tx;
use semel_tower::http::{IdempotencyLayer, Preset, Rules};
use semel_tower::{Atomic, PrincipalFrom, Tenant};

use crate::backend::{AtomicBackend as _, Backend as _, Sqlite, post, run};
use crate::support::{order, send, sending};

type Store = FaultyStore<SqliteStore>;

fn layer(store: Store) -> IdempotencyLayer<Store, Atomic> {
    let rules = Rules::new().required().preset(Preset::below_500());
    IdempotencyLayer::atomic(Executor::new(store), Tenant::fixed("acme"), PrincipalFrom::global())
        .rules(rules)
}

/// Returns a service that writes `note` as a row and then answers `status`.
fn writing(store: Store, note: &'static str, status: StatusCode) -> Router {
    let handler = on_post(async move |Tx(mut unit): Tx<Store>| {
        Sqlite::insert(unit.conn(), note).await;
        (status, note)
    });
    Router::new().route("/orders", handler).layer(layer(store))
}

#[test]
fn a_refusal_after_another_response_is_not_recorded() {
    run(async {
        let backend = Sqlite::open().await;
        let (here, there) =
            (FaultyStore::new(backend.store().await), FaultyStore::new(backend.store().await));
        let faults = here.faults().clone();
        let refusing = writing(here, "refused", StatusCode::UNPROCESSABLE_ENTITY);
        let creating = writing(there, "created", StatusCode::CREATED);
        // The refusal is recorded after the rollback, under a separate claim. Before that claim
        // another caller may take the key.
        faults.next(StoreCall::Open, Fault::Hang);
        let refused = sending(&refusing, order());
        faults.hung(1).await;
        let created = send(&creating, order()).await;
        assert_eq!((created.status.as_u16(), created.replayed()), (201, false));
        faults.release();
        let answer = refused.await.expect("an answer");
        assert_eq!((answer.status.as_u16(), answer.text()), (201, "created"));
        assert!(answer.replayed());
        for app in [&refusing, &creating] {
            assert_eq!(send(app, order()).await.text(), "created");
        }
        assert_eq!(backend.rows().await, ["created"]);
    });
}

#[test]
fn a_refused_handlers_row_is_rolled_back_and_its_response_is_kept() {
    run(async {
        let backend = Sqlite::open().await;
        let store = FaultyStore::new(backend.store().await);
        let app = writing(store, "refused", StatusCode::UNPROCESSABLE_ENTITY);
        let store = FaultyStore::new(backend.store().await);
        let elsewhere = writing(store, "created", StatusCode::CREATED);
        for (app, replayed) in [(&app, false), (&app, true), (&elsewhere, true)] {
            let answer = send(app, order()).await;
            assert_eq!(
                (answer.status.as_u16(), answer.text(), answer.replayed()),
                (422, "refused", replayed)
            );
        }
        assert_eq!(backend.rows().await.len(), 0);
    });
}

#[test]
fn a_handler_that_never_took_its_transaction_is_refused() {
    run(async {
        let backend = Sqlite::open().await;
        let handler = on_post(async || (StatusCode::CREATED, "written elsewhere"));
        let refusing = on_post(async || (StatusCode::UNPROCESSABLE_ENTITY, "not this"));
        let app = Router::new()
            .route("/orders", handler)
            .route("/refused", refusing)
            .layer(layer(FaultyStore::new(backend.store().await)));
        for _ in 0..2 {
            let answer = send(&app, order()).await;
            assert_eq!(answer.status, 500);
            assert_eq!(answer.problem().as_deref(), Some("misconfigured"));
        }
        // A handler may refuse a request before it takes its transaction.
        for replayed in [false, true] {
            let answer = send(&app, post("/refused", "k-2", "{}")).await;
            assert_eq!((answer.status.as_u16(), answer.replayed()), (422, replayed));
        }
    });
}
