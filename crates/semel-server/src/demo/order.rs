//! An order: the request, the response, and the event that reports it.

use std::fmt;

use semel_core::event::{Event, InvalidEvent};
use semel_ids::{TypedId, resource};
use serde::{Deserialize, Serialize};

/// The id of an order, shown as `ord_…`.
pub(super) type OrderId = TypedId<resource::Order>;

/// The type of an order's event.
pub(super) const PLACED: &str = "order.placed";
/// The greatest length of a product's name, in bytes.
const MAX_SKU: usize = 64;

/// An order in the form in which a caller sends it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewOrder {
    pub(super) sku: String,
    pub(super) quantity: u32,
    pub(super) amount_cents: u64,
}

/// An order in the form in which responses and events contain it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) order_id: OrderId,
    pub(super) sku: String,
    pub(super) quantity: u32,
    pub(super) amount_cents: u64,
}

/// The reason why no order was placed.
#[derive(Debug)]
pub(super) enum Refused {
    /// The request is not a valid order. Nothing was written; a corrected one may use the same key.
    Invalid(String),
    /// The order could not be written. Nothing was written; the same request may be retried.
    Failed(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Invalid(why) | Refused::Failed(why) => f.write_str(why),
        }
    }
}

impl NewOrder {
    /// Reads and checks an order from a JSON body.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Refused> {
        let wanted: Self = serde_json::from_slice(body)
            .map_err(|error| Refused::Invalid(format!("the body is not an order: {error}")))?;
        wanted.check()
    }

    /// Returns the order if its values are allowed.
    pub(super) fn check(self) -> Result<Self, Refused> {
        let named = (1..=MAX_SKU).contains(&self.sku.len()) && !self.sku.contains(char::is_control);
        let wrong = if !named || self.sku.trim().is_empty() {
            format!("`sku` must have 1 to {MAX_SKU} bytes of visible characters")
        } else if self.quantity == 0 {
            "`quantity` is at least 1".to_owned()
        } else if i64::try_from(self.amount_cents).is_err() {
            format!("`amount_cents` is at most {}", i64::MAX)
        } else {
            return Ok(self);
        };
        Err(Refused::Invalid(wrong))
    }
}

impl Order {
    /// Returns the event that reports the order.
    pub(super) fn placed(&self, tenant: &str) -> Result<Event, InvalidEvent> {
        let event = Event::builder(tenant, PLACED, "/orders");
        event.about("order", &self.order_id.to_string()).json(self).build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_a_product_a_quantity_and_an_amount() {
        let parsed = |body: &str| NewOrder::parse(body.as_bytes());
        let tea = parsed(r#"{"sku":"tea","quantity":2,"amount_cents":0}"#).unwrap();
        assert_eq!((tea.sku.as_str(), tea.quantity, tea.amount_cents), ("tea", 2, 0));
        for wrong in [
            "",
            "tea",
            "[]",
            r#"{"sku":"tea","quantity":2}"#,
            r#"{"sku":"","quantity":2,"amount_cents":1}"#,
            r#"{"sku":" ","quantity":2,"amount_cents":1}"#,
            r#"{"sku":"a\nb","quantity":2,"amount_cents":1}"#,
            r#"{"sku":"tea","quantity":0,"amount_cents":1}"#,
            r#"{"sku":"tea","quantity":-1,"amount_cents":1}"#,
            r#"{"sku":"tea","quantity":1.5,"amount_cents":1}"#,
            r#"{"sku":"tea","quantity":4294967296,"amount_cents":1}"#,
            r#"{"sku":"tea","quantity":1,"amount_cents":9223372036854775808}"#,
            r#"{"sku":"tea","quantity":1,"amount_cents":1,"gift":true}"#,
        ] {
            assert!(matches!(parsed(wrong), Err(Refused::Invalid(_))), "{wrong}");
        }
    }
}
