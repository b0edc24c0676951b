//! The door for HTTP: orders placed under a key, orders shown by their public ids, effects counted.

use std::collections::HashMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use semel_ids::resource;
use semel_tower::axum::Tx;
use semel_tower::axum::ids::{NotResolved, Parameter, Resolved, ResolvedMany};
use semel_tower::http::IdempotencyLayer;
use semel_tower::{PrincipalFrom, Tenant};
use serde::Serialize;

use super::OrderService;
use super::fault::InjectedFault;
use super::orders::{self, NewOrder, Order, OrderId, Refused};
use super::tables::Tables;

/// The header that says whose request it is.
pub(super) const TENANT: HeaderName = HeaderName::from_static("x-tenant-id");

/// Whose request it is. A demonstration believes its callers.
pub(super) fn tenant() -> Tenant {
    Tenant::header(TENANT)
}

/// The routes, `POST /orders` behind idempotency: what its handler writes commits with its claim and
/// its answer.
pub(super) fn router<S: Tables>(service: OrderService<S>) -> Router {
    // Nobody logs in here, so a tenant's keys are all its callers'.
    let idempotent =
        IdempotencyLayer::atomic(service.executor.clone(), tenant(), PrincipalFrom::global());
    Router::new()
        .route("/orders", get(list::<S>).post(place::<S>))
        .route("/orders/{order_id}", get(show::<S>))
        .layer(idempotent)
        .route("/effects", get(effects::<S>))
        .with_state(service)
}

async fn place<S: Tables>(
    State(service): State<OrderService<S>>,
    fault: InjectedFault,
    Tx(unit): Tx<S>,
    body: Bytes,
) -> Result<Response, Refused> {
    let order = orders::place(&service, unit, NewOrder::parse(&body)?, fault).await?;
    let location = [(LOCATION, format!("/orders/{}", order.order_id))];
    Ok((StatusCode::CREATED, location, Json(order)).into_response())
}

async fn show<S: Tables>(
    State(service): State<OrderService<S>>,
    tenant: RequestTenant,
    Resolved { id, .. }: Resolved<resource::Order>,
) -> Result<Json<Order>, Response> {
    let found = read(&service, &tenant, &[id]).await?.remove(&id);
    found.map(Json).ok_or_else(|| gone("order_id"))
}

async fn list<S: Tables>(
    State(service): State<OrderService<S>>,
    tenant: RequestTenant,
    ResolvedMany(wanted): ResolvedMany<resource::Order, IdsParameter>,
) -> Result<Json<Orders>, Response> {
    let ids: Vec<OrderId> = wanted.iter().map(|order| order.id).collect();
    let found = read(&service, &tenant, &ids).await?;
    let orders: Option<_> = ids.iter().map(|id| found.get(id).cloned()).collect();
    orders.map(|orders| Json(Orders { orders })).ok_or_else(|| gone(IdsParameter::NAME))
}

/// `?ids=ord_…,ord_…`.
enum IdsParameter {}

impl Parameter for IdsParameter {
    const NAME: &'static str = "ids";
}

#[derive(Serialize)]
struct Orders {
    orders: Vec<Order>,
}

/// The tenant of a request that has no claim.
struct RequestTenant(String);

impl<T: Sync> axum::extract::FromRequestParts<T> for RequestTenant {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &T,
    ) -> Result<Self, std::convert::Infallible> {
        // The extractors of ids refuse a request without one; until then it is nobody's.
        let tenant = parts.headers.get(TENANT).and_then(|value| value.to_str().ok());
        Ok(Self(tenant.unwrap_or_default().to_owned()))
    }
}

async fn read<S: Tables>(
    service: &OrderService<S>,
    RequestTenant(tenant): &RequestTenant,
    ids: &[OrderId],
) -> Result<HashMap<OrderId, Order>, Response> {
    let found = S::orders(&service.reading, tenant, ids).await.map_err(unread)?;
    Ok(found.into_iter().map(|order| (order.order_id, order)).collect())
}

/// Mapped, but not there: somebody has deleted it by hand.
fn gone(parameter: &'static str) -> Response {
    NotResolved::NotFound { parameter, text: None }.into_response()
}

async fn effects<S: Tables>(
    State(service): State<OrderService<S>>,
) -> Result<Json<Counts>, Response> {
    // First, so that what it says is no longer waiting is counted.
    let backlog = service.executor.store().backlog().await.map_err(unread)?;
    let tally = <S as Tables>::tally(&service.reading, None).await.map_err(unread)?;
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

/// In the order of the groups' names in `tally`.
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
    tracing::warn!(%error, "a request could not be answered");
    Refused::Failed("the database cannot be read; come again".to_owned()).into_response()
}

/// A problem of this service's own, written as the layer writes its own.
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
                (StatusCode::BAD_REQUEST, "order-invalid", "This cannot be ordered", false)
            }
            Refused::Failed(_) => {
                let title = "The database did not do it";
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
