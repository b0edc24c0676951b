//! The routes, and what makes them idempotent.

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

/// The routes as any axum service has them; `reading` answers what changes nothing.
pub fn routes(reading: SqlitePool) -> Router {
    Router::new()
        .route("/orders", post(orders::place))
        .route("/orders/{id}", get(orders::show))
        .route("/orders/{id}/refunds", post(refunds::give))
        .with_state(reading)
}

/// The same routes behind idempotency, behind authentication.
pub fn protected(routes: Router, executor: Executor<SqliteStore>) -> Router {
    // By user, not by token: a client that refreshes its token between two tries is the same caller.
    let principal = PrincipalFrom::by(|request| {
        request.extensions.get::<User>().map(|user| Principal::of(&user.id))
    });
    let idempotency = IdempotencyLayer::atomic(executor, Tenant::header(TENANT), principal)
        // A repeat that comes too early waits for the answer instead of being sent away.
        .rules(Rules::new().required().wait(Wait::UpTo(Duration::from_secs(5))))
        .route(
            "POST /orders/{id}/refunds",
            Rules::new()
                .required()
                // A refund that was refused stays refused: a retry must not succeed because
                // something else changed meanwhile.
                .preset(Preset::terminal())
                .keep(Duration::from_secs(7 * 24 * 60 * 60)),
        );
    // The layer that is added last is the first to see a request.
    routes.layer(idempotency).layer(from_fn(authenticate))
}
