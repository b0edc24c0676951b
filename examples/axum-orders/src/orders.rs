//! Orders: placed in the claim's own transaction, visible to their tenant.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use semel::Reference;
use semel_sql::sqlite::SqliteStore;
use semel_tower::axum::Tx;
use serde::{Deserialize, Serialize};
use sqlx::{SqliteConnection, SqlitePool};

use crate::identity::{CurrentTenant, User};
use crate::refusal::Refusal;

/// The body of `POST /orders`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewOrder {
    /// The lines of the order.
    pub lines: Vec<NewLine>,
}

/// One line of a new order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewLine {
    /// The product.
    pub sku: String,
    /// The number of pieces.
    pub quantity: i64,
}

/// An order: the body of responses.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Order {
    /// The id of the order.
    pub id: String,
    /// The user who placed the order.
    pub placed_by: String,
    /// The price in cents.
    pub total_cents: i64,
    /// The sum of its refunds in cents.
    pub refunded_cents: i64,
    /// The lines of the order.
    pub lines: Vec<Line>,
}

/// One line of an order.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The product.
    pub sku: String,
    /// The number of pieces.
    pub quantity: i64,
    /// The price of the line in cents.
    pub cents: i64,
}

/// Handles `POST /orders`. Runs once per key; its writes are committed with the response, or not at
/// all.
///
/// # Errors
/// [`Refusal`]: nothing is written, and the key is free for a corrected order.
pub async fn place(
    Tx(mut unit): Tx<SqliteStore>,
    user: User,
    Json(wanted): Json<NewOrder>,
) -> Result<Response, Refusal> {
    let claim = unit.context().clone();
    let id = claim.operation_id().to_string();
    let lines = priced(unit.conn(), wanted).await?;
    let total_cents = lines.iter().map(|line| line.cents).sum();

    sqlx::query(
        "INSERT INTO customer_order (id, tenant, placed_by, total_cents) VALUES (?, ?, ?, ?)",
    )
    .bind(&id)
    .bind(claim.key().tenant())
    .bind(&user.id)
    .bind(total_cents)
    .execute(unit.conn())
    .await?;
    for (number, line) in (1_i64..).zip(&lines) {
        let insert = "INSERT INTO order_line (order_id, number, sku, quantity, cents) \
                      VALUES (?, ?, ?, ?, ?)";
        sqlx::query(insert)
            .bind(&id)
            .bind(number)
            .bind(&line.sku)
            .bind(line.quantity)
            .bind(line.cents)
            .execute(unit.conn())
            .await?;
    }

    // Operators find the record by the order's id.
    claim.refer_to(Reference::new(&id).expect("a ULID is a short visible text"));
    let location = [(header::LOCATION, format!("/orders/{id}"))];
    let order = Order { id, placed_by: user.id, total_cents, refunded_cents: 0, lines };
    Ok((StatusCode::CREATED, location, Json(order)).into_response())
}

/// Handles `GET /orders/{id}`.
///
/// # Errors
/// [`Refusal::UnknownOrder`], for another tenant's order too.
pub async fn show(
    State(reading): State<SqlitePool>,
    CurrentTenant(tenant): CurrentTenant,
    Path(id): Path<String>,
) -> Result<Json<Order>, Refusal> {
    let select = "SELECT placed_by, total_cents, \
                  (SELECT coalesce(sum(cents), 0) FROM refund WHERE order_id = customer_order.id) \
                  FROM customer_order WHERE id = ? AND tenant = ?";
    let found: Option<(String, i64, i64)> =
        sqlx::query_as(select).bind(&id).bind(&tenant).fetch_optional(&reading).await?;
    let (placed_by, total_cents, refunded_cents) = found.ok_or(Refusal::UnknownOrder)?;
    let select = "SELECT sku, quantity, cents FROM order_line WHERE order_id = ? ORDER BY number";
    let lines: Vec<(String, i64, i64)> =
        sqlx::query_as(select).bind(&id).fetch_all(&reading).await?;
    let lines = lines.into_iter().map(|(sku, quantity, cents)| Line { sku, quantity, cents });
    Ok(Json(Order { id, placed_by, total_cents, refunded_cents, lines: lines.collect() }))
}

/// Returns the lines with current prices.
async fn priced(connection: &mut SqliteConnection, wanted: NewOrder) -> Result<Vec<Line>, Refusal> {
    let sane = |line: &NewLine| (1..=1000).contains(&line.quantity);
    if !(1..=100).contains(&wanted.lines.len()) || !wanted.lines.iter().all(sane) {
        return Err(Refusal::Quantity);
    }
    let mut lines = Vec::with_capacity(wanted.lines.len());
    for NewLine { sku, quantity } in wanted.lines {
        let price: Option<(i64,)> = sqlx::query_as("SELECT cents FROM product WHERE sku = ?")
            .bind(&sku)
            .fetch_optional(&mut *connection)
            .await?;
        let Some((cents,)) = price else { return Err(Refusal::UnknownProduct(sku)) };
        lines.push(Line { sku, quantity, cents: cents * quantity });
    }
    Ok(lines)
}
