//! Refunds: at most what was paid, each once.

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use semel_sql::sqlite::SqliteStore;
use semel_tower::axum::Tx;
use serde::{Deserialize, Serialize};

use crate::refusal::Refusal;

/// What a client sends.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewRefund {
    /// How much is given back.
    pub cents: i64,
}

/// A refund as it is answered.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Refund {
    /// Its id, and the payment provider's idempotency key: the row is committed once, so whoever
    /// sends it may send it as often as it takes.
    pub id: String,
    /// Of which order.
    pub order: String,
    /// How much.
    pub cents: i64,
}

/// `POST /orders/{id}/refunds`. What is left is read and the refund is written in the claim's
/// transaction, so two refunds cannot both take the last cent.
///
/// # Errors
/// [`Refusal::RefundTooLarge`] is this refund's answer from then on: the route keeps it.
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
