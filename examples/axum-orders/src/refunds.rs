//! Refunds: at most what was paid, each once.

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use semel_sql::sqlite::SqliteStore;
use semel_tower::axum::Tx;
use serde::{Deserialize, Serialize};

use crate::refusal::Refusal;

/// The body of `POST /orders/{id}/refunds`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewRefund {
    /// The amount in cents.
    pub cents: i64,
}

/// A refund: the body of responses.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Refund {
    /// The id of the refund, which is also the payment provider's idempotency key: the row is
    /// committed once, so the process that sends it may repeat the call.
    pub id: String,
    /// The id of the order.
    pub order: String,
    /// The amount in cents.
    pub cents: i64,
}

/// Handles `POST /orders/{id}/refunds`. What is left of the price is read and the refund is written
/// in the claim's transaction, so two refunds cannot both take the last cent.
///
/// # Errors
/// [`Refusal::RefundTooLarge`] is kept by this route: repeats of the key get it again.
pub async fn give(
    Tx(mut unit): Tx<SqliteStore>,
    Path(order): Path<String>,
    Json(NewRefund { cents }): Json<NewRefund>,
) -> Result<Response, Refusal> {
    let claim = unit.context().clone();
    let select = "SELECT total_cents - \
                  (SELECT coalesce(sum(cents), 0) FROM refund WHERE order_id = customer_order.id) \
                  FROM customer_order WHERE id = ? AND tenant = ?";
    let left: Option<(i64,)> = sqlx::query_as(select)
        .bind(&order)
        .bind(claim.key().tenant())
        .fetch_optional(unit.conn())
        .await?;
    let Some((left_cents,)) = left else { return Err(Refusal::UnknownOrder) };
    if !(1..=left_cents).contains(&cents) {
        return Err(Refusal::RefundTooLarge { left_cents });
    }
    let refund = Refund { id: claim.operation_id().to_string(), order, cents };
    sqlx::query("INSERT INTO refund (id, order_id, cents) VALUES (?, ?, ?)")
        .bind(&refund.id)
        .bind(&refund.order)
        .bind(refund.cents)
        .execute(unit.conn())
        .await?;
    Ok((StatusCode::CREATED, Json(refund)).into_response())
}
