//! HTTP: `POST /orders` places an order once per key, `GET /orders/{order_id}` returns it to its
//! tenant.

use axum::extract::{FromRef, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use semel::Executor;
use semel::axum::Tx;
use semel::axum::ids::{Ids, Resolved};
use semel::event::{Event, InvalidEvent};
use semel::http::{IdempotencyLayer, PrincipalFrom, Rules, Tenant};
use semel::ids::create::CreateExt as _;
use semel::ids::{Resolver, TypedId, resource};
use serde::{Deserialize, Serialize};

use crate::tables::Tables;

/// The header with the tenant. In a real service, take the tenant from a verified token.
pub const TENANT: HeaderName = HeaderName::from_static("x-tenant-id");
/// The type of the event that an order was placed.
pub const PLACED: &str = "order.placed";

/// The id of an order: 16 bytes in the database, `ord_…` everywhere else.
pub type OrderId = TypedId<resource::Order>;

/// The body of `POST /orders`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewOrder {
    /// The product.
    pub sku: String,
    /// The number of pieces.
    pub quantity: i64,
}

/// An order: the body of responses, and the payload of its events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The id of the order.
    pub id: OrderId,
    /// The product.
    pub sku: String,
    /// The number of pieces.
    pub quantity: i64,
}

impl Order {
    fn placed(&self, tenant: &str) -> Result<Event, InvalidEvent> {
        let id = self.id.to_string();
        Event::builder(tenant, PLACED, "/orders").about("order", &id).json(self).build()
    }
}

/// The state of the routes.
#[derive(Clone, Debug)]
pub struct App<S: Tables> {
    /// The executor that runs the commands.
    pub executor: Executor<S>,
    /// The resolver of public ids.
    pub resolver: Resolver,
}

impl<S: Tables> FromRef<App<S>> for Ids {
    fn from_ref(app: &App<S>) -> Self {
        Ids::new(app.resolver.clone(), Tenant::header(TENANT))
    }
}

/// Returns the routes behind the idempotency layer.
pub fn routes<S: Tables>(app: App<S>) -> Router {
    let principal = PrincipalFrom::header(header::AUTHORIZATION);
    let idempotency =
        IdempotencyLayer::atomic(app.executor.clone(), Tenant::header(TENANT), principal)
            .rules(Rules::new().required());
    Router::new()
        .route("/orders", post(place::<S>))
        .route("/orders/{order_id}", get(show::<S>))
        .with_state(app)
        .layer(idempotency)
}

/// Places an order. The row, the id, the event and the response are one commit.
async fn place<S: Tables>(
    State(app): State<App<S>>,
    Tx(unit): Tx<S>,
    Json(wanted): Json<NewOrder>,
) -> Response {
    if !(1..=10).contains(&wanted.quantity) {
        // A 4xx is not kept: the key is free for a corrected order.
        return (StatusCode::BAD_REQUEST, "quantity must be 1 to 10").into_response();
    }
    let tenant = unit.context().key().tenant().to_owned();
    let placed = app
        .executor
        .create_in::<resource::Order>(unit)
        .resolver(&app.resolver)
        .run(|mut making| async move {
            let NewOrder { sku, quantity } = wanted;
            let order = Order { id: making.id(), sku, quantity };
            let written = S::insert_order(making.conn(), &tenant, &order).await;
            written.map_err(|error| error.to_string())?;
            let event = order.placed(&tenant).map_err(|error| error.to_string())?;
            making.append([event]).await.map_err(|error| error.to_string())?;
            Ok::<_, String>(order)
        })
        .await;
    match placed {
        Ok(order) => {
            let location = [(header::LOCATION, format!("/orders/{}", order.id))];
            (StatusCode::CREATED, location, Json(order)).into_response()
        }
        // A 5xx is rolled back and not kept: the client retries with the same key.
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Returns an order. An id of another tenant is not found, like one that never existed.
async fn show<S: Tables>(
    State(app): State<App<S>>,
    headers: axum::http::HeaderMap,
    Resolved { id, .. }: Resolved<resource::Order>,
) -> Response {
    let tenant = headers.get(TENANT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match read(&app, tenant, id).await {
        Ok(Some(order)) => Json(order).into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Reads in a transaction of the store. A service with many readers would read on a pool of its
/// own.
async fn read<S: Tables>(
    app: &App<S>,
    tenant: &str,
    id: OrderId,
) -> Result<Option<Order>, crate::BoxError> {
    let store = app.executor.store();
    let mut transaction = store.begin().await?;
    let found = S::find_order(S::connection(&mut transaction), tenant, id).await;
    store.rollback(transaction).await;
    Ok(found?)
}
