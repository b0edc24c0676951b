//! The running service: started on an address and a file, stopped in the order that loses nothing.

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

/// How long connections may take to end, and how long the work behind them.
const GRACE: Duration = Duration::from_secs(10);

/// A service that answers until it is stopped.
#[derive(Debug)]
pub struct Server {
    addr: SocketAddr,
    executor: Executor<SqliteStore>,
    reading: SqlitePool,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<io::Result<()>>,
}

/// What starting and stopping may fail with.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Server {
    /// Opens `db`, brings its tables up to date and answers on `addr`; port 0 takes a free one.
    ///
    /// # Errors
    /// If the file cannot be a database of ours or the address is taken.
    pub async fn start(addr: SocketAddr, db: &Path) -> Result<Self, Failure> {
        Self::start_with(addr, db, |routes| routes).await
    }

    /// As [`start`](Self::start), with something of the caller's around the routes, inside
    /// idempotency: the demo and the tests stand there.
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

    /// Where it answers.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops: first the connections, then the work, then the file.
    ///
    /// Work whose client has gone is not on any connection; the executor knows of it, and lets it
    /// end or rolls it back.
    ///
    /// # Errors
    /// If the server had ended by itself.
    pub async fn stop(mut self) -> Result<(), Failure> {
        let _ = self.stop.send(());
        let ended = tokio::time::timeout(GRACE, &mut self.serving).await;
        if ended.is_err() {
            // A client that never closes must not keep us from ending.
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
