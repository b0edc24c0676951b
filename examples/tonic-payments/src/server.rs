//! The layer around the service, the ledger of the layer, and a port.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use semel::{Executor, Wait};
use semel_sql::sqlite::SqliteStore;
use semel_tower::grpc::{Codes, GrpcLayer, GrpcRules};
use semel_tower::{PrincipalFrom, Tenant};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;

use crate::payments::Cashier;
use crate::proto::DESCRIPTOR_SET;
use crate::proto::payments_server::PaymentsServer;

/// Any error of a server or of the demo.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    executor: Executor<SqliteStore>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Server {
    /// Serves on a free port, with the ledger in the file `ledger`.
    ///
    /// # Errors
    /// If the file cannot be opened, or if no port can be bound.
    pub async fn start(ledger: &Path, cashier: Cashier) -> Result<Self, Failure> {
        let executor = Executor::new(SqliteStore::open(ledger).await?);
        let layer = layer(executor.clone())?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let router = tonic::transport::Server::builder()
            .layer(layer)
            .add_service(PaymentsServer::new(cashier));
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let serving = tokio::spawn(router.serve_with_incoming_shutdown(incoming, async {
            // Stopped by the caller, or the `Server` was dropped.
            let _ = stopped.await;
        }));
        Ok(Self { address, executor, stop, serving })
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting calls, and finishes those that run.
    ///
    /// # Errors
    /// If serving failed.
    pub async fn stop(self) -> Result<(), Failure> {
        let _ = self.stop.send(());
        self.serving.await??;
        self.executor.shutdown(Duration::from_secs(10)).await;
        Ok(())
    }
}

/// Returns the layer for every unary method with effects, by its descriptor: here that is `Charge`.
fn layer(executor: Executor<SqliteStore>) -> Result<GrpcLayer<SqliteStore>, Failure> {
    // One tenant, one caller. A service with several distinguishes them: PrincipalFrom::by(|call|
    // call.extensions.get::<User>().map(|user| Principal::of(&user.id))).
    let layer = GrpcLayer::fenced(executor, Tenant::fixed("shop"), PrincipalFrom::global());
    let rules = GrpcRules::new()
        .required()
        // A declined card stays declined under its key.
        .codes(Codes::terminal())
        // A duplicate that comes while the first call runs gets its answer.
        .wait(Wait::UpTo(Duration::from_secs(10)))
        .retry_after(Duration::from_millis(100));
    Ok(layer.rules(rules).descriptor_set(DESCRIPTOR_SET)?)
}
