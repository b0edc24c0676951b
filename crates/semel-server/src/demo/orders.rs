//! An order: what a caller sends, what it gets, and the one commit between them.
//!
//! HTTP and gRPC are two doors to [`place`]; it knows of neither. Whether it runs at all is the
//! layers' to know.

use std::fmt;

use semel_core::event::{Event, InvalidEvent};
use semel_core::executor::Unit;
use semel_ids::create::{CreateError, CreateExt as _};
use semel_ids::{TypedId, resource};
use serde::{Deserialize, Serialize};

use super::OrderService;
use super::fault::InjectedFault;
use super::tables::Tables;

/// What an order is called in front of others: `ord_…`.
pub(super) type OrderId = TypedId<resource::Order>;

/// The type of the event that an order was placed.
pub(super) const PLACED: &str = "order.placed";
/// The longest name of a product, in bytes.
const MAX_SKU: usize = 64;

/// What a caller sends.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewOrder {
    pub(super) sku: String,
    pub(super) quantity: u32,
    pub(super) amount_cents: u64,
}

/// An order as it is answered, and as its event tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) order_id: OrderId,
    pub(super) sku: String,
    pub(super) quantity: u32,
    pub(super) amount_cents: u64,
}

/// Why no order was placed.
#[derive(Debug)]
pub(super) enum Refused {
    /// It is no order: nothing of it is left, and a corrected one may use the same key.
    Invalid(String),
    /// It could not be written down: nothing of it is left, and the same one may come again.
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
    /// The order that a JSON body asks for.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Refused> {
        let wanted: Self = serde_json::from_slice(body)
            .map_err(|error| Refused::Invalid(format!("the body is no order: {error}")))?;
        wanted.check()
    }

    /// The same, if it can be meant.
    pub(super) fn check(self) -> Result<Self, Refused> {
        let named = (1..=MAX_SKU).contains(&self.sku.len()) && !self.sku.contains(char::is_control);
        let wrong = if !named || self.sku.trim().is_empty() {
            format!("`sku` names a product in 1 to {MAX_SKU} visible bytes")
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
    /// The event that it was placed.
    fn placed(&self, tenant: &str) -> Result<Event, InvalidEvent> {
        let event = Event::builder(tenant, PLACED, "/orders");
        event.about("order", &self.order_id.to_string()).json(self).build()
    }
}

/// Places an order in the transaction of its request: the row, the mapping of its id and its event
/// commit with the claim and the answer, or not at all.
pub(super) async fn place<S: Tables>(
    service: &OrderService<S>,
    unit: Unit<S>,
    wanted: NewOrder,
    fault: InjectedFault,
) -> Result<Order, Refused> {
    let creation = service.executor.create_in::<resource::Order>(unit).resolver(&service.resolver);
    let made = creation
        .run(|mut making| async move {
            let tenant = making.context().key().tenant().to_owned();
            let NewOrder { sku, quantity, amount_cents } = wanted;
            let order = Order { order_id: making.id(), sku, quantity, amount_cents };
            S::insert_order(making.conn(), &tenant, &order).await.map_err(failed)?;
            making.append([order.placed(&tenant).map_err(failed)?]).await.map_err(failed)?;
            fault.strike().await?;
            Ok(order)
        })
        .await;
    made.map_err(|error| match error {
        CreateError::Work(refused) => refused,
        error @ (CreateError::Register(_) | CreateError::HalfMade) => failed(error),
    })
}

/// Callers are not told what databases say.
fn failed(error: impl fmt::Display) -> Refused {
    tracing::warn!(%error, "an order could not be written down");
    Refused::Failed("the order could not be written down; come again with the same key".to_owned())
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
