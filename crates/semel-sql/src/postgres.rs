//! The ledger, the outbox and the id map in PostgreSQL 13 or later.
//!
//! One step is one statement and one trip; steps that come at the same time share statements (see
//! `lanes`). Work in the caller's database joins one transaction with its claim. Rivals never wait
//! for anybody's open transaction: the statements that claim try a lock first, those that end claims
//! skip locked rows.
//!
//! ```no_run
//! # async fn example() -> semel::store::Result<()> {
//! use semel_sql::postgres::PgStore;
//!
//! let store = PgStore::connect("postgres://app@localhost/app").await?;
//! store.migrate().await?;
//! # Ok(())
//! # }
//! ```

mod business;
mod busy;
mod idmap;
mod inspect;
mod ledger;
mod options;
mod outbox;
mod renew;
mod schema;
mod statement;
mod transaction;
mod wake;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use semel::claim::Lease;
use semel::key::{Hint, Key};
use semel::record::Version;
use semel::store::{
    Change, Draft, Ending, Finding, Guarantee, Listen, Opened, Peeked, Result, Settled, Store,
    Swapped, Swept,
};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection, Row};
use tokio::sync::{Mutex, mpsc};

use crate::error::{Stage, timed_out};
use crate::lanes::{Lanes, Settlement};
use crate::row::SWEPT;
use busy::{Patience, is_busy};
use ledger::Ledger;
use statement::{failed, text, unconnected};
use transaction::Home;

pub use business::PgTable;
pub use options::PgOptions;
pub use renew::PgRenewer;
pub use schema::{MIGRATIONS, print};
pub use transaction::PgTransaction;

/// The ledger in PostgreSQL. Cheap to clone: clones share connections.
///
/// Its connections belong to the tokio runtime on which it was connected.
#[derive(Clone)]
pub struct PgStore(Arc<Inner>);

struct Inner {
    lanes: Lanes<Ledger>,
    transactions: Arc<Home>,
    /// For sweeping and operators, who must not take a lane from the callers.
    aside: Mutex<Option<PgConnection>>,
    hatch: outbox::Hatch,
    desk: idmap::Desk,
    plain: PgConnectOptions,
    renewing: PgConnectOptions,
    /// Closing it ends the task that sends them.
    hints: mpsc::Sender<Hint>,
    limit: Duration,
}

impl PgStore {
    /// Connects with the defaults of [`PgOptions`]. The schema is [`migrate`](Self::migrate)'s.
    ///
    /// # Errors
    /// `Misconfigured` for a URL that cannot be one, credentials that are refused or a database whose
    /// encoding is not UTF8, `Unavailable` if the server is not reached.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// Settings for a store at this URL.
    pub fn builder(url: &str) -> PgOptions {
        PgOptions::new(url)
    }

    async fn assemble(settings: &PgOptions) -> Result<Self> {
        let plain = settings.plain()?;
        let limit = settings.statement_timeout;
        let ours = settings.ledger_session(&plain);
        // Whatever is wrong with the address or the credentials is said here, not on first use.
        let first = tokio::time::timeout(limit, schema::greet(&plain))
            .await
            .map_err(|_| timed_out(Stage::Connecting, "connect", limit))??;
        let ledger = Arc::new(Ledger { options: ours.clone() });
        Ok(Self(Arc::new(Inner {
            lanes: Lanes::new(ledger, settings.lanes, limit),
            transactions: Home::new(plain.clone(), settings),
            aside: Mutex::new(Some(first)),
            hatch: outbox::Hatch::new(ours.clone()),
            desk: idmap::Desk::new(ours.clone(), limit),
            hints: wake::announcer(plain.clone(), limit),
            plain,
            renewing: ours,
            limit,
        })))
    }

    /// Runs a statement beside the lanes, on a connection that is reopened after any failure.
    async fn aside<T: Send>(
        &self,
        operation: &'static str,
        statement: impl for<'c> FnOnce(&'c mut PgConnection) -> Aside<'c, T> + Send,
    ) -> Result<T> {
        let mut seat = self.0.aside.lock().await;
        // Taken out while in use: if this future is dropped, so is the connection.
        let mut connection = match seat.take() {
            Some(connection) => connection,
            None => tokio::time::timeout(self.0.limit, self.0.plain.connect())
                .await
                .map_err(|_| timed_out(Stage::Connecting, operation, self.0.limit))?
                .map_err(unconnected(operation))?,
        };
        let limit = self.0.limit * ASIDE_PATIENCE;
        let answer = tokio::time::timeout(limit, statement(&mut connection))
            .await
            .map_err(|_| timed_out(Stage::Running, operation, limit))??;
        *seat = Some(connection);
        Ok(answer)
    }
}

/// Operators' statements may take this many times as long as a caller's.
const ASIDE_PATIENCE: u32 = 6;

type Aside<'c, T> = std::pin::Pin<Box<dyn Future<Output = Result<T>> + Send + 'c>>;

impl fmt::Debug for PgStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStore").finish_non_exhaustive()
    }
}

impl Store for PgStore {
    type Renewer = PgRenewer;

    async fn open(&self, draft: &Draft) -> Result<Opened> {
        storable_draft("open", draft)?;
        self.0.lanes.step(draft).await
    }

    async fn swap(&self, key: &Key, judged: Version, change: &Change) -> Result<Swapped> {
        storable_change(change)?;
        self.0.lanes.swap(key, judged, change).await
    }

    async fn settle(&self, lease: &Lease, ending: &Ending) -> Result<Settled> {
        storable_ending("settle", ending)?;
        let settlement = Settlement { lease: *lease, ending: ending.clone() };
        let patience = Patience::new();
        loop {
            let answer = self.0.lanes.step(&settlement).await;
            if !patience.again(answer.as_ref().is_err_and(is_busy)).await {
                return answer;
            }
        }
    }

    async fn peek(&self, key: &Key) -> Result<Option<Peeked>> {
        self.0.lanes.step(&key.digest()).await
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.aside("sweep", |connection| Box::pin(sweep(connection, limit))).await
    }

    async fn renewer(&self) -> Result<PgRenewer> {
        PgRenewer::connect(self.0.renewing.clone(), self.0.limit).await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Listen>>> {
        wake::listen(self.0.plain.clone(), self.0.limit).await.map(Some)
    }

    fn announce(&self, hint: Hint) {
        // A full channel means that more hints wait than one message holds: waiters poll anyway.
        let _ = self.0.hints.try_send(hint);
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        self.aside("check", |connection| Box::pin(schema::check(connection))).await
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Fenced
    }
}

async fn sweep(connection: &mut PgConnection, limit: u32) -> Result<Swept> {
    let row = sqlx::query(text(statement::SWEEP))
        .bind(i64::from(limit))
        .bind(SWEPT)
        .fetch_one(connection)
        .await
        .map_err(failed("sweep"))?;
    let count = |at: usize| -> Result<u32> {
        let count: i64 = row.try_get(at).map_err(failed("sweep"))?;
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    };
    let (removed, suspended) = (count(0)?, count(1)?);
    Ok(Swept { removed, suspended, more: removed + suspended >= limit })
}

fn storable_ending(operation: &'static str, ending: &Ending) -> Result<()> {
    match crate::row::EndingRow::of(ending).content_type {
        Some(content_type) => ledger::storable(operation, "content type", content_type),
        None => Ok(()),
    }
}

fn storable_draft(operation: &'static str, draft: &Draft) -> Result<()> {
    ledger::storable(operation, "owner", &draft.owner)?;
    match &draft.parcel {
        Some(parcel) => ledger::storable(operation, "content type", parcel.content_type()),
        None => Ok(()),
    }
}

fn storable_change(change: &Change) -> Result<()> {
    match change {
        Change::Regrant(draft) | Change::Replace(draft) => storable_draft("swap", draft),
        Change::End(ending) => storable_ending("swap", ending),
        Change::Redrive => Ok(()),
    }
}
