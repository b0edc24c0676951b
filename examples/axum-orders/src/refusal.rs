//! Why a request is refused, and the response for it.
//!
//! The status decides what becomes of the key: a 422 frees it for a corrected request, unless the
//! route's preset keeps it; a 5xx is a failure, and the next attempt runs again. For a 404 and a
//! 401 only the handler knows that nothing was done before, so it sets [`SettleAs`] on the response
//! to free the key. In all cases the handler's writes are rolled back.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use semel_tower::http::SettleAs;
use serde_json::json;

/// Why a request is refused.
#[derive(Debug)]
pub enum Refusal {
    /// There is no valid token, or no tenant header.
    Unauthenticated,
    /// The tenant has no order with this id.
    UnknownOrder,
    /// A line has an unknown product.
    UnknownProduct(String),
    /// The order is empty, or too large to be meant.
    Quantity,
    /// The refund is larger than what is left of the order's price.
    RefundTooLarge {
        /// What is left, in cents.
        left_cents: i64,
    },
    /// An error of the service itself.
    Database(sqlx::Error),
}

impl From<sqlx::Error> for Refusal {
    fn from(error: sqlx::Error) -> Self {
        Refusal::Database(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, code, detail) = match self {
            Refusal::Unauthenticated => (
                StatusCode::UNAUTHORIZED,
                "UNAUTHENTICATED",
                "send `Authorization: Bearer alice-token` and `X-Tenant-Id`".to_owned(),
            ),
            Refusal::UnknownOrder => {
                (StatusCode::NOT_FOUND, "UNKNOWN_ORDER", "there is no such order".to_owned())
            }
            Refusal::UnknownProduct(sku) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "UNKNOWN_PRODUCT",
                format!("we do not sell {sku:?}; there are tea, mug and kettle"),
            ),
            Refusal::Quantity => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "QUANTITY",
                "order 1 to 1000 pieces of each, in 1 to 100 lines".to_owned(),
            ),
            Refusal::RefundTooLarge { left_cents } => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "REFUND_TOO_LARGE",
                format!("1 to {left_cents} cents can be refunded"),
            ),
            Refusal::Database(error) => {
                eprintln!("axum-orders: {error}");
                (StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", "try again".to_owned())
            }
        };
        let fate = match status {
            StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED => Some(SettleAs::Release),
            _ => None,
        };
        let problem = json!({ "status": status.as_u16(), "code": code, "detail": detail });
        let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (status, content_type, problem.to_string()).into_response();
        if let Some(fate) = fate {
            response.extensions_mut().insert(fate);
        }
        response
    }
}
