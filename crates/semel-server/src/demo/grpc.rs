//! Orders over gRPC: `semel.demo.v1.Orders/CreateOrder`. It runs the same commit as HTTP, with
//! separate keys.

use semel_tower::grpc::{GrpcLayer, GrpcRules, GrpcService};
use semel_tower::{Atomic, PrincipalFrom, Transaction};
use tonic::{Request, Response, Status};
use tower::Layer as _;

use super::OrderService;
use super::fault::InjectedFault;
use super::order::{NewOrder, Refused};
use super::orders;
use super::proto::orders_server::{Orders, OrdersServer};
use super::proto::{CreateOrderRequest, Order};
use super::tenant::tenant;
use crate::store::database::Database;

const CREATE: &str = "/semel.demo.v1.Orders/CreateOrder";

/// Returns the gRPC service, with its only method behind the idempotency layer.
pub(super) fn service(
    service: OrderService,
) -> GrpcService<OrdersServer<GrpcOrders>, Database, Atomic> {
    GrpcLayer::atomic(service.executor.clone(), tenant(), PrincipalFrom::global())
        .unary(CREATE, GrpcRules::new().required())
        .layer(OrdersServer::new(GrpcOrders(service)))
}

/// Takes orders over gRPC.
#[derive(Debug)]
pub(super) struct GrpcOrders(OrderService);

#[tonic::async_trait]
impl Orders for GrpcOrders {
    async fn create_order(
        &self,
        mut request: Request<CreateOrderRequest>,
    ) -> Result<Response<Order>, Status> {
        // The layer requires a key for this method, so the request has a claim and a transaction.
        let extension = request.extensions_mut().remove::<Transaction<Database>>();
        let unit = extension.and_then(|transaction| transaction.take());
        let unit = unit.ok_or_else(|| Status::internal("the call has no transaction"))?;
        let CreateOrderRequest { sku, quantity, amount_cents } = request.into_inner();
        let wanted = NewOrder { sku, quantity, amount_cents }.check()?;
        let order = orders::place(&self.0, unit, wanted, InjectedFault::None).await?;
        Ok(Response::new(Order {
            order_id: order.order_id.to_string(),
            sku: order.sku,
            quantity: order.quantity,
            amount_cents: order.amount_cents,
        }))
    }
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        let why = refused.to_string();
        match refused {
            Refused::Invalid(_) => Status::invalid_argument(why),
            Refused::Failed(_) => Status::unavailable(why),
        }
    }
}
