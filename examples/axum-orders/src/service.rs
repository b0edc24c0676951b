//! The routes, and the layer that makes them idempotent.

use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn;
use axum::routing::{get, post};
use semel::{Executor, Principal, Wait};
use semel_sql::sqlite::SqliteStore;
use semel_tower::http::{IdempotencyLayer, Preset, Rules};
use semel_tower::{PrincipalFrom, Tenant};
use sqlx::SqlitePool;

use crate::identity::{TENANT, User, authenticate};
use crate::{orders, refunds};

/// Returns the routes as any axum service has them; `reading` is the pool for requests that change
/// nothing.
pub fn routes(reading: SqlitePool) -> Router {
    Router::new()
        .route("/orders", post(orders::place))
        .route("/orders/{id}", get(orders::show))
        .route("/orders/{id}/refunds", post(refunds::give))
        .with_state(reading)
}

/// Puts idempotency around the routes, and authentication around that.
pub fn protected(routes: Router, executor: Executor<SqliteStore>) -> Router {
    // By user, not by token: a client that refreshes its token between two attempts is the same
    // caller.
    let principal = PrincipalFrom::by(|request| {
        request.extensions.get::<User>().map(|user| Principal::of(&user.id))
    });
    let idempotency = IdempotencyLayer::atomic(executor, Tenant::header(TENANT), principal)
        // A repeat that comes while the first request runs waits for its response.
        .rules(Rules::new().required().wait(Wait::UpTo(Duration::from_secs(5))))
        .route(
            "POST /orders/{id}/refunds",
            Rules::new()
                .required()
                // A refused refund stays refused: a retry must not succeed because something else
                // changed meanwhile.
                .preset(Preset::terminal())
                .keep(Duration::from_secs(7 * 24 * 60 * 60)),
        );
    // The layer that is added last sees a request first.
    routes.layer(idempotency).layer(from_fn(authenticate))
}
