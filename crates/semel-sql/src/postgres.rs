//! The ledger, the outbox and the id map in PostgreSQL 13 or later.
//!
//! One step is one statement and one trip; concurrent steps share statements (see `batcher`). Work
//! in the caller's database joins one transaction with its claim. Concurrent callers of a key never
//! wait for an open transaction: the statements that claim try a lock first, those that end claims
//! skip locked rows.
//!
//! ```no_run
//! # async fn example() -> semel_core::store::Result<()> {
//! use semel_sql::postgres::PgStore;
//!
//! let store = PgStore::connect("postgres://app@localhost/app").await?;
//! store.migrate().await?;
//! for finding in store.check().await? {
//!     eprintln!("{}: {}", finding.found, finding.fix);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Work also joins a transaction that the application begins and commits itself:
//!
//! ```no_run
//! # use semel_core::{Command, Context, Executor, Key};
//! # use semel_sql::postgres::PgStore;
//! # use sqlx::{PgConnection, PgPool};
//! # async fn example(executor: Executor<PgStore>, pool: PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let command = Command::new(Key::command("acme", "ORDER_CREATE", "k-1")?);
//! let mut transaction = pool.begin().await?;
//! let place = async |connection: &mut PgConnection, context: &Context| {
//!     let id = context.operation_id().to_string();
//!     let order = sqlx::query("insert into orders (id) values ($1)").bind(id.clone());
//!     order.execute(connection).await?;
//!     Ok::<_, sqlx::Error>(id)
//! };
//! let answer = executor.transact_in(&mut transaction, command, place).await?;
//! transaction.commit().await?;
//! # assert!(!answer.in_progress());
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "ids")]
mod business;
mod busy;
#[cfg(feature = "ids")]
mod idmap;
mod inspect;
mod ledger;
mod message;
mod options;
mod outbox;
mod pool;
mod renew;
mod replication;
mod schema;
mod session;
mod statement;
mod transaction;
mod wake;
mod watermark;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel_core::claim::Lease;
use semel_core::key::{Hint, Key};
use semel_core::record::Version;
use semel_core::store::{
    Change, Draft, Finding, Guarantee, Listen, Opened, Peeked, Result, Settled, Settlement, Store,
    Swapped, Swept,
};
use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, PgPool, Row};
use tokio::time::{Instant, timeout};

use crate::batcher::{Batcher, SettleRequest};
use crate::error::{Stage, timed_out};
use crate::pool::{ConnectionPool, Lifecycle};
use crate::row::SWEPT;
use busy::{Patience, is_busy};
use ledger::Ledger;
use pool::SessionPool;
use replication::Durability;
use session::{Naming, Session, is_pooled, pooled};
use statement::{failed, transaction_session, unconnected};
use transaction::TransactionPool;

#[cfg(feature = "ids")]
pub use business::PgTable;
pub use options::PgOptions;
pub use renew::PgRenewer;
pub use schema::{MIGRATIONS, print};
pub use session::Pooling;
pub use transaction::PgTransaction;

/// The ledger in PostgreSQL. Cheap to clone: clones share connections.
///
/// The store's connections belong to the tokio runtime on which it was connected.
#[derive(Clone)]
pub struct PgStore(Arc<Inner>);

struct Inner {
    batcher: Batcher<Ledger>,
    transactions: TransactionPool,
    /// Sessions for sweeping and for operators.
    operators: SessionPool,
    outbox: outbox::OutboxSessions,
    #[cfg(feature = "ids")]
    id_map: SessionPool,
    durability: Durability,
    /// Opens sessions with the settings of the server.
    plain: Session,
    /// Opens sessions with the settings of the ledger.
    ours: Session,
    naming: Naming,
    address: PgConnectOptions,
    announcer: wake::Announcer,
    limit: Duration,
}

impl PgStore {
    /// Connects with the defaults of [`PgOptions`]. The schema is created by [`migrate`](Self::migrate).
    ///
    /// ```no_run
    /// # async fn example() -> semel_core::store::Result<()> {
    /// use semel_sql::postgres::PgStore;
    ///
    /// let store = PgStore::connect("postgres://app@localhost/app").await?;
    /// store.migrate().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Misconfigured` for an invalid URL, refused credentials or a database whose encoding is not
    /// UTF8, `Unavailable` if the server cannot be reached.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// Returns the settings of a store at this URL.
    ///
    /// ```no_run
    /// # async fn example() -> semel_core::store::Result<()> {
    /// use semel_sql::postgres::PgStore;
    ///
    /// let store = PgStore::builder("postgres://app@localhost/app").transactions(32).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(url: &str) -> PgOptions {
        PgOptions::new(url)
    }

    /// Connects to the server of the application's pool, with the pool's user, TLS and database. See
    /// [`PgOptions::from_pool`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use semel_sql::postgres::PgStore;
    /// use semel_sql::sqlx::PgPool;
    ///
    /// let pool = PgPool::connect("postgres://app@localhost/app").await?;
    /// let store = PgStore::from_pool(&pool).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn from_pool(pool: &PgPool) -> Result<Self> {
        PgOptions::from_pool(pool).connect().await
    }

    /// Checks the server's settings and the schema, and returns what is wrong. An empty list means
    /// that nothing is.
    ///
    /// ```no_run
    /// # async fn example(store: semel_sql::postgres::PgStore) -> semel_core::store::Result<()> {
    /// for finding in store.check().await? {
    ///     eprintln!("{}: {}", finding.found, finding.fix);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the server cannot be queried.
    pub async fn check(&self) -> Result<Vec<Finding>> {
        let (inner, naming) = (Arc::clone(&self.0), self.0.naming);
        let checking = self.0.operators.transact("check", move |connection| {
            Box::pin(async move {
                let mut findings = schema::check(naming, connection).await?;
                let observed = inner.durability.observe(connection).await;
                findings.extend(observed.map_err(failed("check"))?);
                Ok(findings)
            })
        });
        let mut findings = checking.await?;
        let pooling = self.0.plain.pooling();
        let found = pooling != Pooling::Direct || self.shares_sessions().await?;
        findings.extend(pooled(pooling, found));
        Ok(findings)
    }

    /// Closes the store: calls under way are answered, later ones fail with `Unavailable`, and
    /// every pooled connection is closed. Clones are closed with it. Renewers and listeners stay
    /// open: each ends with the executor that created it.
    pub async fn close(&self) {
        let Inner { batcher, transactions, operators, outbox, announcer, .. } = &*self.0;
        batcher.close();
        transactions.close();
        operators.close();
        outbox.close();
        #[cfg(feature = "ids")]
        self.0.id_map.close();
        announcer.close();
    }

    async fn assemble(settings: &PgOptions) -> Result<Self> {
        let address = settings.plain()?;
        let limit = settings.statement_timeout;
        let durability = Durability::new(settings.replication);
        // A wrong address or wrong credentials fail here, not on first use.
        let greeting = async {
            let direct = Session::plain(address.clone(), Pooling::Direct);
            let mut first = schema::greet(&direct).await?;
            let looked = durability.observe(&mut first).await;
            looked.map_err(unconnected("connect"))?;
            let pooling = match settings.pooling {
                Some(pooling) => pooling,
                None => look_for_pooler(&direct, &mut first).await?,
            };
            Ok((first, pooling))
        };
        let (first, pooling) = timeout(limit, greeting)
            .await
            .map_err(|_| timed_out(Stage::Connecting, "connect", limit))??;
        let plain = Session::plain(address.clone(), pooling);
        let ours = Session::ledger(address.clone(), pooling, limit.as_millis());
        let lent = match pooling {
            Pooling::Direct => transaction_session(address.clone(), first.server_version_num()),
            Pooling::Prepared | Pooling::Unprepared => address.clone(),
        };
        let lifecycle = Lifecycle::new(settings.max_lifetime);
        let ledger = Ledger { session: ours.clone(), lifecycle: Arc::clone(&lifecycle) };
        let operators =
            SessionPool::new(plain.clone(), 1, &lifecycle, limit).patient(OPERATOR_PATIENCE);
        operators.add(first);
        let batched = ConnectionPool::new(settings.connections, &lifecycle);
        Ok(Self(Arc::new(Inner {
            batcher: Batcher::new(Arc::new(ledger), batched, limit),
            transactions: TransactionPool::new(lent, pooling, settings, &lifecycle),
            operators,
            outbox: outbox::OutboxSessions::new(ours.clone(), &lifecycle, limit),
            #[cfg(feature = "ids")]
            id_map: idmap::sessions(ours.clone(), &lifecycle, limit),
            announcer: wake::Announcer::start(plain.clone(), limit),
            durability,
            naming: plain.naming(),
            plain,
            ours,
            address,
            limit,
        })))
    }

    /// Returns the answer of a step that wrote. If the step took unusually long, its wait for a
    /// standby may have been cancelled, so a later commit must confirm it first.
    async fn confirmed<T>(
        &self,
        operation: &'static str,
        began: Instant,
        answer: Result<T>,
    ) -> Result<T> {
        if self.0.durability.doubts(began, &answer) {
            self.confirm(operation).await?;
        }
        answer
    }

    /// Waits until a later commit confirms every step in doubt, if commits wait for a standby.
    /// After that, nothing that this server returns can be on this server alone.
    pub(crate) async fn confirm(&self, operation: &'static str) -> Result<()> {
        let Inner { durability, plain, limit, .. } = &*self.0;
        durability.confirm(plain, operation, *limit).await
    }
}

/// How many times longer than a caller's statement an operator's statement may take.
const OPERATOR_PATIENCE: u32 = 6;

impl fmt::Debug for PgStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStore").finish_non_exhaustive()
    }
}

impl Store for PgStore {
    type Renewer = PgRenewer;

    async fn open(&self, draft: &Draft) -> Result<Opened> {
        storable_draft("open", draft)?;
        let began = Instant::now();
        let opened = self.0.batcher.step(draft).await;
        let opened = self.confirmed("open", began, opened).await?;
        if matches!(opened, Opened::Existing { .. }) && self.0.durability.in_doubt() {
            self.confirm("open").await?;
        }
        Ok(opened)
    }

    async fn swap(&self, key: &Key, judged: Version, change: &Change) -> Result<Swapped> {
        storable_change(change)?;
        let began = Instant::now();
        let swapped = self.0.batcher.swap(key, judged, change).await;
        self.confirmed("swap", began, swapped).await
    }

    async fn settle(&self, lease: &Lease, settlement: &Settlement) -> Result<Settled> {
        storable_settlement("settle", settlement)?;
        let settlement = SettleRequest { lease: *lease, settlement: settlement.clone() };
        let patience = Patience::new();
        loop {
            let began = Instant::now();
            let answer = self.0.batcher.step(&settlement).await;
            let answer = self.confirmed("settle", began, answer).await;
            if !patience.again(answer.as_ref().is_err_and(is_busy)).await {
                return answer;
            }
        }
    }

    async fn peek(&self, key: &Key) -> Result<Option<Peeked>> {
        let peeked = self.0.batcher.step(&key.digest()).await?;
        if peeked.is_some() && self.0.durability.in_doubt() {
            self.confirm("peek").await?;
        }
        Ok(peeked)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let (inner, naming) = (Arc::clone(&self.0), self.0.naming);
        self.0
            .operators
            .run("sweep", move |connection| {
                Box::pin(async move {
                    let swept = sweep(naming, connection, limit).await?;
                    // Standbys come and go while the store runs.
                    inner.durability.observe(connection).await.map_err(failed("sweep"))?;
                    Ok(swept)
                })
            })
            .await
    }

    async fn renewer(&self) -> Result<PgRenewer> {
        PgRenewer::connect(self.0.ours.clone(), self.0.limit).await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Listen>>> {
        match self.0.plain.pooling() {
            Pooling::Direct => wake::listen(self.0.address.clone(), self.0.limit).await.map(Some),
            Pooling::Prepared | Pooling::Unprepared => Ok(None),
        }
    }

    fn announce(&self, hint: Hint) {
        self.0.announcer.announce(hint);
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        PgStore::check(self).await
    }

    fn guarantee(&self) -> Guarantee {
        self.0.durability.limit(Guarantee::Fenced)
    }
}

impl PgStore {
    /// Returns whether a pooler shares the server's sessions among connections.
    async fn shares_sessions(&self) -> Result<bool> {
        let Inner { plain, limit, .. } = &*self.0;
        let looking = async {
            let mut first = plain.connect().await?;
            is_pooled(plain, &mut first).await
        };
        let looked = timeout(*limit, looking).await;
        looked
            .map_err(|_| timed_out(Stage::Connecting, "check", *limit))?
            .map_err(unconnected("check"))
    }
}

/// Opens a second connection to find out whether a pooler is in front of the server.
async fn look_for_pooler(session: &Session, first: &mut PgConnection) -> Result<Pooling> {
    let pooled = is_pooled(session, first).await.map_err(unconnected("connect"))?;
    Ok(if pooled { Pooling::Unprepared } else { Pooling::Direct })
}

async fn sweep(naming: Naming, connection: &mut PgConnection, limit: u32) -> Result<Swept> {
    let Some(now) = watermark::trusted_now(naming, connection, "sweep").await? else {
        return Ok(Swept { clock_suspect: true, ..Swept::default() });
    };
    let query = naming.query(statement::SWEEP).bind(i64::from(limit)).bind(SWEPT).bind(now);
    let row = query.fetch_one(connection).await.map_err(failed("sweep"))?;
    let count = |at: usize| -> Result<u32> {
        let count: i64 = row.try_get(at).map_err(failed("sweep"))?;
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    };
    let (removed, suspended) = (count(0)?, count(1)?);
    let more = removed + suspended >= limit;
    Ok(Swept { removed, suspended, more, clock_suspect: false })
}

fn storable_settlement(operation: &'static str, settlement: &Settlement) -> Result<()> {
    match crate::row::SettlementRow::of(settlement).content_type {
        Some(content_type) => ledger::storable(operation, "content type", content_type),
        None => Ok(()),
    }
}

fn storable_draft(operation: &'static str, draft: &Draft) -> Result<()> {
    ledger::storable(operation, "owner", &draft.owner)?;
    match &draft.retry_payload {
        Some(retry_payload) => {
            ledger::storable(operation, "content type", retry_payload.content_type())
        }
        None => Ok(()),
    }
}

fn storable_change(change: &Change) -> Result<()> {
    match change {
        Change::Regrant(draft) | Change::Replace(draft) => storable_draft("swap", draft),
        Change::Settle(settlement) => storable_settlement("swap", settlement),
        Change::Redrive | Change::Redate => Ok(()),
    }
}
