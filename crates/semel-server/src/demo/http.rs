//! Orders over HTTP: places an order under a key, shows orders by their public ids, and counts
//! their effects.

use std::collections::HashMap;
use std::convert::Infallible;

use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use semel_core::outbox::Outbox as _;
use semel_ids::resource;
use semel_tower::PrincipalFrom;
use semel_tower::axum::Tx;
use semel_tower::axum::ids::{NotResolved, Parameter, Resolved, ResolvedMany};
use semel_tower::http::IdempotencyLayer;
use serde::Serialize;

use super::OrderService;
use super::fault::InjectedFault;
use super::order::{NewOrder, Order, OrderId, Refused};
use super::orders;
use super::tenant::{TENANT, tenant};
use crate::store::database::Database;

/// Returns the routes. `POST /orders` is behind the idempotency layer: the writes of its handler
/// commit with the claim and the response.
pub(super) fn router(service: OrderService) -> Router {
    // The demo has no login, so the callers of a tenant share its keys.
    let idempotent =
        IdempotencyLayer::atomic(service.executor.clone(), tenant(), PrincipalFrom::global());
    Router::new()
        .route("/orders", get(list).post(place))
        .route("/orders/{order_id}", get(show))
        .layer(idempotent)
        .route("/effects", get(effects))
        .with_state(service)
}

async fn place(
    State(service): State<OrderService>,
    fault: InjectedFault,
    Tx(unit): Tx<Database>,
    body: Bytes,
) -> Result<Response, Refused> {
    let order = orders::place(&service, unit, NewOrder::parse(&body)?, fault).await?;
    let location = [(LOCATION, format!("/orders/{}", order.order_id))];
    Ok((StatusCode::CREATED, location, Json(order)).into_response())
}

async fn show(
    State(service): State<OrderService>,
    tenant: RequestTenant,
    Resolved { id, .. }: Resolved<resource::Order>,
) -> Result<Json<Order>, Response> {
    let found = read(&service, &tenant, &[id]).await?.remove(&id);
    found.map(Json).ok_or_else(|| gone("order_id"))
}

async fn list(
    State(service): State<OrderService>,
    tenant: RequestTenant,
    ResolvedMany(wanted): ResolvedMany<resource::Order, IdsParameter>,
) -> Result<Json<Orders>, Response> {
    let ids: Vec<OrderId> = wanted.iter().map(|order| order.id).collect();
    let found = read(&service, &tenant, &ids).await?;
    let orders: Option<_> = ids.iter().map(|id| found.get(id).cloned()).collect();
    orders.map(|orders| Json(Orders { orders })).ok_or_else(|| gone(IdsParameter::NAME))
}

/// The query parameter `?ids=ord_…,ord_…`.
enum IdsParameter {}

impl Parameter for IdsParameter {
    const NAME: &'static str = "ids";
}

#[derive(Serialize)]
struct Orders {
    orders: Vec<Order>,
}

impl FromRequestParts<OrderService> for InjectedFault {
    type Rejection = Infallible;

    /// Returns the fault that the request selects. Only requests of the built-in load can select
    /// one.
    async fn from_request_parts(
        parts: &mut Parts,
        service: &OrderService,
    ) -> Result<Self, Infallible> {
        let tenant = parts.headers.get(TENANT).and_then(|tenant| tenant.to_str().ok());
        let ours = service.chaos.as_deref().is_some_and(|ours| tenant == Some(ours));
        Ok(if ours { InjectedFault::selected(&parts.headers) } else { InjectedFault::None })
    }
}

/// Extracts the tenant of a request that has no claim.
struct RequestTenant(String);

impl<T: Sync> FromRequestParts<T> for RequestTenant {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &T) -> Result<Self, Infallible> {
        // The extractors of ids refuse a request without a tenant before this tenant is used.
        let tenant = parts.headers.get(TENANT).and_then(|value| value.to_str().ok());
        Ok(Self(tenant.unwrap_or_default().to_owned()))
    }
}

async fn read(
    service: &OrderService,
    RequestTenant(tenant): &RequestTenant,
    ids: &[OrderId],
) -> Result<HashMap<OrderId, Order>, Response> {
    let found = service.tables.orders(tenant, ids).await.map_err(unread)?;
    Ok(found.into_iter().map(|order| (order.order_id, order)).collect())
}

/// Returns the response for an order that is in the id map but not in its table.
fn gone(parameter: &'static str) -> Response {
    NotResolved::NotFound { parameter, text: None }.into_response()
}

async fn effects(State(service): State<OrderService>) -> Result<Json<Counts>, Response> {
    // The backlog is read before the tally, so that the effects of an event that no longer waits
    // are counted.
    let backlog = service.executor.store().backlog().await.map_err(unread)?;
    let tally = service.tables.tally(None).await.map_err(unread)?;
    let [inventory, notify, billing] = tally.effects.map(|effects| effects.rows);
    let effects = ByGroup { inventory, notify, billing };
    Ok(Json(Counts { orders: tally.orders, effects, outbox_pending: backlog.waiting }))
}

#[derive(Serialize)]
struct Counts {
    orders: i64,
    effects: ByGroup,
    outbox_pending: u64,
}

/// The number of effects of each group, in the order of the groups in `tally`.
#[derive(Serialize)]
struct ByGroup {
    #[serde(rename = "INVENTORY")]
    inventory: i64,
    #[serde(rename = "NOTIFY")]
    notify: i64,
    #[serde(rename = "BILLING")]
    billing: i64,
}

fn unread(error: impl std::fmt::Display) -> Response {
    tracing::warn!(%error, "a request failed: the database could not be read");
    Refused::Failed("the database could not be read; retry".to_owned()).into_response()
}

/// A problem of this service, in the format of the layer's problems.
#[derive(Serialize)]
struct Problem<'p> {
    r#type: String,
    title: &'p str,
    status: u16,
    detail: &'p str,
    code: String,
    retryable: bool,
    safe_new_key: bool,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, slug, title, retryable) = match self {
            Refused::Invalid(_) => {
                (StatusCode::BAD_REQUEST, "order-invalid", "The order is not valid", false)
            }
            Refused::Failed(_) => {
                let title = "The database is not available";
                (StatusCode::SERVICE_UNAVAILABLE, "order-failed", title, true)
            }
        };
        let problem = Problem {
            r#type: format!("urn:semel:demo:problem:{slug}"),
            title,
            status: status.as_u16(),
            detail: &self.to_string(),
            code: slug.to_uppercase().replace('-', "_"),
            retryable,
            // Nothing was written, so nothing can be written twice.
            safe_new_key: true,
        };
        let mut response = (status, Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if retryable {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
