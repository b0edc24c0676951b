//! Placing an order: one commit for its row, its public id, its event, the claim and the response.
//!
//! The HTTP and the gRPC handler both call [`place`]; the idempotency layer decides whether a
//! handler runs.

use std::fmt;

use semel_core::executor::Unit;
use semel_ids::create::{CreateError, CreateExt as _};
use semel_ids::resource;

use super::OrderService;
use super::fault::InjectedFault;
use super::order::{NewOrder, Order, Refused};
use super::tables;
use crate::store::database::Database;

/// Places an order in the transaction of its request: the row, the mapping of its id and its event
/// commit with the claim and the response, or not at all.
pub(super) async fn place(
    service: &OrderService,
    unit: Unit<Database>,
    wanted: NewOrder,
    fault: InjectedFault,
) -> Result<Order, Refused> {
    let creation = service.executor.create_in::<resource::Order>(unit).resolver(&service.resolver);
    let made = creation
        .run(|mut making| async move {
            let tenant = making.context().key().tenant().to_owned();
            let NewOrder { sku, quantity, amount_cents } = wanted;
            let order = Order { order_id: making.id(), sku, quantity, amount_cents };
            tables::insert_order(making.conn(), &tenant, &order).await.map_err(failed)?;
            making.append([order.placed(&tenant).map_err(failed)?]).await.map_err(failed)?;
            fault.inject().await?;
            Ok(order)
        })
        .await;
    made.map_err(|error| match error {
        CreateError::Work(refused) => refused,
        error @ (CreateError::Register(_) | CreateError::IgnoredFailure) => failed(error),
    })
}

/// Logs the database's message and returns an error without it, because callers must not see it.
fn failed(error: impl fmt::Display) -> Refused {
    tracing::warn!(%error, "an order could not be written; the caller gets 503 and may retry");
    Refused::Failed("the order could not be written; retry with the same key".to_owned())
}
