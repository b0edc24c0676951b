//! A SQL database behind one type: its ledger, outbox and id map, and transactions that cover all three.
//!
//! Code that is generic over its store is compiled once for [`Database`] instead of once for each kind of
//! database. An open transaction is its own connection: which statements it takes depends on its kind.

use std::time::Duration;

use semel_core::event::Event;
use semel_core::outbox::{
    Applied, Backlog, Bell, ClaimRequest, Cleaned, Disposition, Leased, Marked, Outbox, Row,
    RowAction, Selection, Ticket,
};
use semel_core::store::{
    AnyRenewer, Change, Committed, Cursor, Draft, Filter, Finding, Guarantee, Held, Inspect,
    Listed, Listen, Opened, Page, Peeked, Result, Settled, Settlement, Store, Swapped, Swept,
    Tally, TransactionalStore,
};
use semel_core::{AnyStore, Hint, Key, Lease, Version};
use semel_ids::create::CreatingStore;
use semel_ids::map::{Binding, Inserted, MapKey, MapRow};
use semel_ids::{IdMap, PublicId, ResourceType};
use semel_sql::mysql::{MySqlStore, MySqlTransaction};
use semel_sql::postgres::{PgStore, PgTransaction};
use semel_sql::sqlite::{SqliteStore, SqliteTransaction};

/// A SQL database that holds a ledger. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Database {
    ledger: AnyStore,
    store: SqlStore,
}

#[derive(Clone, Debug)]
enum SqlStore {
    Sqlite(SqliteStore),
    Postgres(PgStore),
    MySql(MySqlStore),
}

/// An open transaction of a [`Database`], and the connection that its statements run on.
pub(crate) enum DatabaseTransaction {
    Sqlite(SqliteTransaction),
    Postgres(PgTransaction),
    MySql(MySqlTransaction),
}

/// The connection of an open transaction, for statements of the caller's.
pub(crate) enum SqlConnection<'a> {
    Sqlite(&'a mut sqlx::SqliteConnection),
    Postgres(&'a mut sqlx::PgConnection),
    MySql(&'a mut sqlx::MySqlConnection),
}

impl DatabaseTransaction {
    /// Returns the connection inside.
    pub(crate) fn sql(&mut self) -> SqlConnection<'_> {
        match self {
            DatabaseTransaction::Sqlite(open) => {
                SqlConnection::Sqlite(SqliteStore::connection(open))
            }
            DatabaseTransaction::Postgres(open) => {
                SqlConnection::Postgres(PgStore::connection(open))
            }
            DatabaseTransaction::MySql(open) => SqlConnection::MySql(MySqlStore::connection(open)),
        }
    }
}

macro_rules! kinds {
    ($($kind:ident: $store:ty, $transaction:ty;)*) => {$(
        impl From<$store> for Database {
            fn from(store: $store) -> Self {
                Self { ledger: AnyStore::new(store.clone()), store: SqlStore::$kind(store) }
            }
        }

        impl From<$transaction> for DatabaseTransaction {
            fn from(open: $transaction) -> Self {
                Self::$kind(open)
            }
        }
    )*};
}

kinds! {
    Sqlite: SqliteStore, SqliteTransaction;
    Postgres: PgStore, PgTransaction;
    MySql: MySqlStore, MySqlTransaction;
}

/// The executor hands every transaction back to the store that began it.
const FOREIGN: &str = "the transaction belongs to a database of another kind";

/// Evaluates `$work` with the store of `$database` as `$store` and, in the second form, the inner
/// transaction of `$transaction` as `$open`.
macro_rules! of_kind {
    ($database:expr, $store:ident => $work:expr) => {
        match &$database.store {
            SqlStore::Sqlite($store) => $work,
            SqlStore::Postgres($store) => $work,
            SqlStore::MySql($store) => $work,
        }
    };
    ($database:expr, $transaction:expr, $store:ident, $open:ident => $work:expr) => {
        match (&$database.store, $transaction) {
            (SqlStore::Sqlite($store), DatabaseTransaction::Sqlite($open)) => $work,
            (SqlStore::Postgres($store), DatabaseTransaction::Postgres($open)) => $work,
            (SqlStore::MySql($store), DatabaseTransaction::MySql($open)) => $work,
            _ => unreachable!("{FOREIGN}"),
        }
    };
}

/// Awaits `$work` with the store inside as `$store`. Boxed: one future must not be as large as three.
macro_rules! with_store {
    ($database:expr, $store:ident => $work:expr) => {
        of_kind!($database, $store => Box::pin($work).await)
    };
}

/// Awaits `$work` with the store inside as `$store` and the transaction's connection as `$connection`.
macro_rules! in_transaction {
    ($database:expr, $transaction:expr, $store:ident, $connection:ident => $work:expr) => {
        of_kind!($database, $transaction, $store, open => {
            let $connection = connection($store, open);
            Box::pin($work).await
        })
    };
}

fn connection<'t, S: TransactionalStore>(
    _of: &S,
    open: &'t mut S::Transaction,
) -> &'t mut S::Connection {
    S::connection(open)
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl Store for Database {
    type Renewer = AnyRenewer;

    async fn open(&self, draft: &Draft) -> Result<Opened> {
        self.ledger.open(draft).await
    }

    async fn swap(&self, key: &Key, judged: Version, change: &Change) -> Result<Swapped> {
        self.ledger.swap(key, judged, change).await
    }

    async fn settle(&self, lease: &Lease, settlement: &Settlement) -> Result<Settled> {
        self.ledger.settle(lease, settlement).await
    }

    async fn peek(&self, key: &Key) -> Result<Option<Peeked>> {
        self.ledger.peek(key).await
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.ledger.sweep(limit).await
    }

    async fn renewer(&self) -> Result<AnyRenewer> {
        self.ledger.renewer().await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Listen>>> {
        self.ledger.listen().await
    }

    fn announce(&self, hint: Hint) {
        self.ledger.announce(hint);
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        self.ledger.check().await
    }

    async fn writable(&self) -> Result<()> {
        self.ledger.writable().await
    }

    fn guarantee(&self) -> Guarantee {
        self.ledger.guarantee()
    }

    fn max_retry_payload(&self) -> Option<usize> {
        self.ledger.max_retry_payload()
    }

    fn is_in_process(&self) -> bool {
        self.ledger.is_in_process()
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl Inspect for Database {
    async fn list(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        self.ledger.list(filter, after, limit).await
    }

    async fn survey(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Listed>> {
        self.ledger.survey(filter, after, limit).await
    }

    async fn tally(&self, filter: &Filter) -> Result<Tally> {
        self.ledger.tally(filter).await
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl TransactionalStore for Database {
    type Connection = DatabaseTransaction;
    type Transaction = DatabaseTransaction;

    async fn begin(&self) -> Result<DatabaseTransaction> {
        of_kind!(self, store => Ok(Box::pin(store.begin()).await?.into()))
    }

    fn connection(transaction: &mut DatabaseTransaction) -> &mut DatabaseTransaction {
        transaction
    }

    async fn adopt(&self, open: &mut DatabaseTransaction) -> Result<()> {
        in_transaction!(self, open, store, connection => store.adopt(connection))
    }

    async fn open_in(&self, open: &mut DatabaseTransaction, draft: &Draft) -> Result<Opened> {
        in_transaction!(self, open, store, connection => store.open_in(connection, draft))
    }

    async fn swap_in(
        &self,
        open: &mut DatabaseTransaction,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> Result<Swapped> {
        in_transaction!(self, open, store, connection => {
            store.swap_in(connection, key, judged, change)
        })
    }

    async fn hold_in(&self, open: &mut DatabaseTransaction, lease: &Lease) -> Result<Held> {
        in_transaction!(self, open, store, connection => store.hold_in(connection, lease))
    }

    async fn settle_in(
        &self,
        open: &mut DatabaseTransaction,
        lease: &Lease,
        settlement: &Settlement,
    ) -> Result<Settled> {
        in_transaction!(self, open, store, connection => {
            store.settle_in(connection, lease, settlement)
        })
    }

    async fn begin_and_open(&self, draft: &Draft) -> Result<(DatabaseTransaction, Opened)> {
        of_kind!(self, store => {
            let (open, opened) = Box::pin(store.begin_and_open(draft)).await?;
            Ok((open.into(), opened))
        })
    }

    fn defer_events(&self, open: &mut DatabaseTransaction, events: Vec<Event>) -> Vec<Event> {
        of_kind!(self, open, store, open => store.defer_events(open, events))
    }

    async fn settle_and_commit(
        &self,
        transaction: DatabaseTransaction,
        lease: &Lease,
        settlement: &Settlement,
    ) -> Committed {
        of_kind!(self, transaction, store, open => {
            Box::pin(store.settle_and_commit(open, lease, settlement)).await
        })
    }

    async fn commit(&self, transaction: DatabaseTransaction) -> Result<()> {
        of_kind!(self, transaction, store, open => Box::pin(store.commit(open)).await)
    }

    async fn rollback(&self, transaction: DatabaseTransaction) {
        of_kind!(self, transaction, store, open => Box::pin(store.rollback(open)).await);
    }

    fn work_limit(&self, lease: Duration) -> Option<Duration> {
        of_kind!(self, store => store.work_limit(lease))
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl Outbox for Database {
    type Connection = DatabaseTransaction;

    async fn append(&self, open: &mut DatabaseTransaction, events: &[Event]) -> Result<()> {
        in_transaction!(self, open, store, connection => store.append(connection, events))
    }

    async fn claim(&self, ask: ClaimRequest) -> Result<Vec<Leased>> {
        with_store!(self, store => store.claim(ask))
    }

    async fn mark(&self, marks: &[(Ticket, Disposition)]) -> Result<Vec<Marked>> {
        with_store!(self, store => store.mark(marks))
    }

    async fn backlog(&self) -> Result<Backlog> {
        with_store!(self, store => store.backlog())
    }

    async fn list(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Row>> {
        with_store!(self, store => Outbox::list(store, selection, after, limit))
    }

    async fn count(&self, selection: &Selection, verb: &RowAction) -> Result<u64> {
        with_store!(self, store => Outbox::count(store, selection, verb))
    }

    async fn apply(
        &self,
        selection: &Selection,
        verb: &RowAction,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Applied> {
        with_store!(self, store => store.apply(selection, verb, after, limit))
    }

    async fn clean(&self, keep: Duration, limit: u32) -> Result<Cleaned> {
        with_store!(self, store => store.clean(keep, limit))
    }

    fn bell(&self) -> &Bell {
        of_kind!(self, store => store.bell())
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl CreatingStore for Database {
    fn defer_binding(&self, open: &mut DatabaseTransaction, binding: &Binding) -> bool {
        of_kind!(self, open, store, open => store.defer_binding(open, binding))
    }
}

#[deny(clippy::missing_trait_methods, reason = "every call is passed on")]
impl IdMap for Database {
    type Connection = DatabaseTransaction;

    async fn insert(&self, open: &mut DatabaseTransaction, binding: &Binding) -> Result<Inserted> {
        in_transaction!(self, open, store, connection => store.insert(connection, binding))
    }

    async fn insert_many(&self, bindings: &[Binding]) -> Result<Vec<Inserted>> {
        with_store!(self, store => store.insert_many(bindings))
    }

    async fn find(
        &self,
        tenant: &str,
        kind: ResourceType,
        publics: &[PublicId],
    ) -> Result<Vec<MapRow>> {
        with_store!(self, store => store.find(tenant, kind, publics))
    }

    async fn revoke(&self, tenant: &str, kind: ResourceType, public: &PublicId) -> Result<bool> {
        with_store!(self, store => store.revoke(tenant, kind, public))
    }

    async fn revoke_in(
        &self,
        open: &mut DatabaseTransaction,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> Result<bool> {
        in_transaction!(self, open, store, connection => {
            store.revoke_in(connection, tenant, kind, public)
        })
    }

    async fn overwrite(&self, bindings: &[Binding]) -> Result<()> {
        with_store!(self, store => store.overwrite(bindings))
    }

    async fn revoke_rows(&self, kind: ResourceType, rows: &[MapKey]) -> Result<u32> {
        with_store!(self, store => store.revoke_rows(kind, rows))
    }

    async fn list(
        &self,
        kind: ResourceType,
        tenant: Option<&str>,
        after: Option<&MapKey>,
        limit: u32,
    ) -> Result<Vec<MapRow>> {
        with_store!(self, store => IdMap::list(store, kind, tenant, after, limit))
    }
}
