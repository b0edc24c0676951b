//! The running service: started on an address and a file, and stopped without losing work.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use axum::Router;
use semel::Executor;
use semel_sql::sqlite::SqliteStore;
use sqlx::SqlitePool;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{database, service};

/// How long connections may take to end, and then the work behind them.
const GRACE: Duration = Duration::from_secs(10);

/// A service that runs until it is stopped.
#[derive(Debug)]
pub struct Server {
    addr: SocketAddr,
    executor: Executor<SqliteStore>,
    reading: SqlitePool,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<io::Result<()>>,
}

/// Any error of starting or stopping.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Server {
    /// Opens `db`, updates its tables and serves on `addr`; port 0 uses a free port.
    ///
    /// # Errors
    /// If the file cannot be opened as a database of this service, or the address is taken.
    pub async fn start(addr: SocketAddr, db: &Path) -> Result<Self, Failure> {
        Self::start_with(addr, db, |routes| routes).await
    }

    /// Starts the service like [`start`](Self::start), with `around` applied to the routes, inside
    /// the idempotency layer, where the demo and the tests put their turnstile.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(
        addr: SocketAddr,
        db: &Path,
        inside: impl FnOnce(Router) -> Router,
    ) -> Result<Self, Failure> {
        let executor = Executor::new(SqliteStore::open(db).await?);
        database::migrate(db).await?;
        let reading = database::reading(db);
        let routes = inside(service::routes(reading.clone()));
        let app = service::protected(routes, executor.clone());

        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let serving = axum::serve(listener, app).with_graceful_shutdown(async {
            let _ = stopped.await;
        });
        let serving = tokio::spawn(async { serving.await });
        Ok(Self { addr, executor, reading, stop, serving })
    }

    /// Returns the address of the server.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops the connections, then the work, then closes the file.
    ///
    /// Work whose client has disconnected belongs to no connection; the executor waits for it or
    /// rolls it back.
    ///
    /// # Errors
    /// If the server had ended by itself.
    pub async fn stop(mut self) -> Result<(), Failure> {
        let _ = self.stop.send(());
        let ended = tokio::time::timeout(GRACE, &mut self.serving).await;
        if ended.is_err() {
            // A client that never closes must not keep the service from stopping.
            self.serving.abort();
        }
        self.executor.shutdown(GRACE).await;
        self.executor.store().close().await;
        self.reading.close().await;
        match ended {
            Ok(served) => Ok(served??),
            Err(_) => Ok(()),
        }
    }
}
