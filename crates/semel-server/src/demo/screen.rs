//! The first screen: the URLs of the listeners, and commands to try.

use std::fmt::Write as _;

use crate::broker::{BrokerHandle, BrokerKind};
use crate::store::StoreUrl;

/// The URLs of the demo's listeners.
#[derive(Debug)]
pub(super) struct Addresses {
    pub(super) orders: String,
    pub(super) grpc: String,
    pub(super) admin: Option<String>,
}

/// Returns the text up to `ready`. It begins with the listeners, each on its own line, so that
/// scripts can read them.
pub(super) fn first(addresses: &Addresses, store: &StoreUrl, broker: &BrokerHandle) -> String {
    let Addresses { orders, grpc, admin } = addresses;
    let mut text = format!("orders: {orders}\ngrpc: {grpc}\n");
    if let Some(admin) = admin {
        let _ = writeln!(text, "admin: {admin}");
    }
    let url = broker.url();
    let broker = match url.kind() {
        BrokerKind::Bus => url.kind().name().to_owned(),
        kind @ (BrokerKind::Nats | BrokerKind::Amqp | BrokerKind::Redis) => {
            format!("{} at {url}", kind.name())
        }
    };
    let _ = write!(
        text,
        "
Orders are kept in {store}; their events go over {broker}.
Place one, send it again, and see that it was placed once:

  curl -i {orders}/orders -H 'X-Tenant-Id: acme' -H 'Idempotency-Key: order-1' \\
       -H 'Content-Type: application/json' -d '{{\"sku\":\"tea\",\"quantity\":2,\"amount_cents\":1999}}'
  curl {orders}/effects

ready
"
    );
    text
}
