//! Benchmarks of a database server: the store beside a bare client's single-row statements, each
//! its own commit, and its transactions.
//!
//! There are two kinds of bare client: one runs statements like the store's on the store's table;
//! the other runs the minimum that claims and completes, on a table of four columns without the
//! store's clock, judge or indexes. Their statements are in `postgres` and `mysql`.

use std::future::Future;
use std::sync::Arc;

use semel_core::Key;
use sqlx::Connection as _;

use super::arguments::Arguments;
use super::business::{Business, id};
use super::large::{self, Crowd};
use super::ours::{self, Replay, Run, Transact};
use super::pool::ReferencePool;
use super::report::{Report, RowLabel, Target};
use super::{BoxError, TASKS, waiters};
use crate::contest::{Reference, contest};
use semel_bench::turns::Contender;

/// A bare connection to a server.
pub(crate) type Client<D> = <<D as Database>::Sql as sqlx::Database>::Connection;

/// The attempt id and the fence of a grant.
pub(crate) type Granted = ([u8; 16], i64);

/// The targets that the store must reach.
pub(crate) struct Targets {
    /// The ratio of `run` with 64 tasks.
    pub(crate) run: f64,
    /// The ratio of `transact` with 16 tasks.
    pub(crate) transact: Option<f64>,
    /// The milliseconds until a waiter on another executor has its answer.
    pub(crate) waiters: Option<f64>,
}

/// A private database on a server, and a bare client's statements.
pub(crate) trait Database: Send + Sync + Sized + 'static {
    /// The name in reports.
    const NAME: &'static str;
    const TARGETS: Targets;

    type Sql: sqlx::Database;
    type Store: Business<Connection = Client<Self>> + Clone;

    /// Creates the database, with the tables of the bare clients.
    fn create(purpose: &str) -> impl Future<Output = Result<Self, BoxError>>;

    fn remove(self) -> impl Future<Output = Result<(), BoxError>>;

    /// Opens the store with this many connections, or with its default.
    fn open_store(
        &self,
        connections: Option<usize>,
    ) -> impl Future<Output = Result<Self::Store, BoxError>>;

    /// Opens a bare connection; with `ours` it has the planner settings of the store's own
    /// connections.
    fn connect(&self, ours: bool) -> impl Future<Output = Result<Client<Self>, BoxError>>;

    /// Inserts settled records, live or expired.
    fn load(&self, count: u32, expired: bool) -> impl Future<Output = Result<(), BoxError>>;

    /// Claims with the minimal statement.
    fn claim(
        connection: &mut Client<Self>,
        key: &[u8; 32],
        fence: i64,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Completes with the minimal statement.
    fn complete(
        connection: &mut Client<Self>,
        key: &[u8; 32],
        fence: i64,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Claims with a statement like the store's.
    fn open(
        connection: &mut Client<Self>,
        number: u64,
    ) -> impl Future<Output = Result<Granted, BoxError>> + Send;

    /// Settles with a statement like the store's.
    fn settle(
        connection: &mut Client<Self>,
        number: u64,
        granted: Granted,
    ) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Returns the state of a record and the length of its body.
    fn select(
        connection: &mut Client<Self>,
        key: &Key,
    ) -> impl Future<Output = Result<(i64, usize), BoxError>> + Send;

    /// Returns the number of orders.
    fn orders(connection: &mut Client<Self>) -> impl Future<Output = Result<i64, BoxError>>;
}

impl<D: Database> Crowd for D {
    type Store = D::Store;

    async fn store(&self) -> Result<D::Store, BoxError> {
        self.open_store(None).await
    }

    async fn load(&self, count: u32, expired: bool) -> Result<(), BoxError> {
        Database::load(self, count, expired).await
    }
}

/// The minimum that claims and completes.
struct Minimal<D: Database>(ReferencePool<Client<D>>);

impl<D: Database> Contender for Minimal<D> {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let key = *ours::key(number).digest().as_bytes();
        D::claim(&mut *self.0.take().await, &key, id(number)).await?;
        D::complete(&mut *self.0.take().await, &key, id(number)).await
    }
}

/// Statements like the store's, from a bare client.
struct Own<D: Database>(ReferencePool<Client<D>>);

impl<D: Database> Contender for Own<D> {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let granted = D::open(&mut *self.0.take().await, number).await?;
        D::settle(&mut *self.0.take().await, number, granted).await
    }
}

/// Reads a row by its key.
struct Select<D: Database>(ReferencePool<Client<D>>, u64);

impl<D: Database> Contender for Select<D> {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let key = ours::key(self.1 + number % 256);
        match D::select(&mut *self.0.take().await, &key).await? {
            (1, 190..) => Ok(()),
            other => Err(format!("a settled record was expected: {other:?}").into()),
        }
    }
}

/// The transaction that a caller would write without Semel: BEGIN, claim, order, completion,
/// COMMIT.
struct Naive<D: Database>(ReferencePool<Client<D>>);

impl<D: Database> Contender for Naive<D> {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let key = *ours::key(number).digest().as_bytes();
        let mut seat = self.0.take().await;
        let mut transaction = seat.begin().await?;
        D::claim(&mut transaction, &key, id(number)).await?;
        D::Store::place(&mut transaction, number).await?;
        D::complete(&mut transaction, &key, id(number)).await?;
        Ok(transaction.commit().await?)
    }
}

/// The same transaction with statements like the store's.
struct NaiveOwn<D: Database>(ReferencePool<Client<D>>);

impl<D: Database> Contender for NaiveOwn<D> {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let mut seat = self.0.take().await;
        let mut transaction = seat.begin().await?;
        let granted = D::open(&mut transaction, number).await?;
        D::Store::place(&mut transaction, number).await?;
        D::settle(&mut transaction, number, granted).await?;
        Ok(transaction.commit().await?)
    }
}

/// Inserts the order alone.
struct Unprotected<D: Database>(ReferencePool<Client<D>>);

impl<D: Database> Contender for Unprotected<D> {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let mut seat = self.0.take().await;
        let mut transaction = seat.begin().await?;
        D::Store::place(&mut transaction, number).await?;
        Ok(transaction.commit().await?)
    }
}

async fn pool<D: Database>(
    database: &D,
    count: usize,
    ours: bool,
) -> Result<ReferencePool<Client<D>>, BoxError> {
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        connections.push(database.connect(ours).await?);
    }
    Ok(ReferencePool::new(connections))
}

fn beside(
    (name, connections): (&str, usize),
    contender: impl Contender,
    target: Option<Target>,
) -> Reference {
    let name = format!("{name}, {connections} connections");
    Reference { name, contender: Arc::new(contender), target }
}

pub(crate) async fn bench<D: Database>(
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    let database = D::create("run").await?;
    let done = measure(&database, arguments, report).await;
    database.remove().await?;
    done?;
    let Some(many) = arguments.large else { return Ok(()) };
    let (small, large) = (D::create("small").await?, D::create("large").await?);
    let done = large::bench(report, D::NAME, (&small, &large), many, arguments.pace).await;
    small.remove().await?;
    large.remove().await?;
    done
}

async fn measure<D: Database>(
    database: &D,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    let (store, pace) = (database.open_store(arguments.store_connections).await?, arguments.pace);
    let label = |bench, concurrency| RowLabel { bench, store: D::NAME, concurrency };
    for tasks in TASKS {
        let target = match tasks {
            1 => Some(Target::AtLeast(0.9)),
            64 => Some(Target::AtLeast(D::TARGETS.run)),
            _ => None,
        };
        let count = tasks.min(arguments.connections);
        let own = Own::<D>(pool(database, count, true).await?);
        let minimal = Minimal::<D>(pool(database, count, false).await?);
        let references = vec![
            beside(("bare client, our statements", count), own, target),
            beside(("bare client, minimal claim and complete", count), minimal, target),
        ];
        let run = Run::new(ours::executor(store.clone())?);
        contest(report, label("run", tasks), run, references, pace).await?;
    }
    let first = 1 << 60;
    let replay = Replay::prepare(store.clone(), first, false).await?;
    let local = Replay::prepare(store.clone(), first + 1_000, true).await?;
    for tasks in TASKS {
        let count = tasks.min(arguments.connections);
        let select = async || {
            let select = Select::<D>(pool(database, count, true).await?, first);
            Ok::<_, BoxError>(vec![beside(("bare select", count), select, None)])
        };
        contest(report, label("replay", tasks), replay.clone(), select().await?, pace).await?;
        contest(report, label("replay-local", tasks), local.clone(), select().await?, pace).await?;
    }
    transact(database, &store, arguments, report).await?;
    let other = database.open_store(None).await?;
    waiters::bench(report, D::NAME, (store, other), D::TARGETS.waiters, pace).await
}

async fn transact<D: Database>(
    database: &D,
    store: &D::Store,
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    let mut placed = 0;
    for tasks in TASKS {
        // As many connections as the store has for transactions.
        let count = tasks.min(16);
        let target = D::TARGETS.transact.filter(|_| tasks == 16).map(Target::AtLeast);
        let naive = Naive::<D>(pool(database, count, false).await?);
        let own = NaiveOwn::<D>(pool(database, count, true).await?);
        let unprotected = Unprotected::<D>(pool(database, count, false).await?);
        let references = vec![
            beside(("naive transaction", count), naive, target),
            beside(("naive transaction, our statements", count), own, target),
            beside(("no protection", count), unprotected, None),
        ];
        let label = RowLabel { bench: "transact", store: D::NAME, concurrency: tasks };
        let ours = Transact::new(ours::executor(store.clone())?);
        placed += contest(report, label, ours, references, arguments.pace).await?;
    }
    let orders = D::orders(&mut database.connect(false).await?).await?;
    if u64::try_from(orders).ok() != Some(placed) {
        return Err(format!("{placed} transactions placed {orders} orders").into());
    }
    Ok(())
}
