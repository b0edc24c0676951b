//! The business table in the store's own database, read on separate connections.

use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Result};
use semel_ids::migration::{BusinessRow, BusinessTable, TableCursor, TablePage};
use semel_sql::business::Layout;
use semel_sql::mysql::MySqlTable;
use semel_sql::postgres::PgTable;
use semel_sql::sqlite::SqliteTable;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use super::super::no_database;
use crate::exit::{ExitError, chain};
use crate::store::{StoreKind, StoreUrl};

/// The number of connections that read the table.
const READERS: u32 = 2;
/// The longest time that a connection may take to open.
const PATIENCE: Duration = Duration::from_secs(5);

/// A business table of a SQL database.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a command has one table")]
pub(super) enum SqlTable {
    Sqlite(SqliteTable),
    Postgres(PgTable),
    MySql(MySqlTable),
}

impl SqlTable {
    /// Opens the table of the database at `url`.
    ///
    /// # Errors
    /// Returns an error if the database cannot be reached, or has no such table or columns.
    pub(super) async fn open(
        url: &StoreUrl,
        layout: Layout,
    ) -> std::result::Result<Self, ExitError> {
        let unopened = |error: sqlx::Error| ExitError::unreachable(chain(&error));
        Ok(match url.kind() {
            StoreKind::Sqlite => {
                let file = SqliteConnectOptions::new().filename(url.path().unwrap_or("".as_ref()));
                let pool = SqlitePoolOptions::new().max_connections(READERS);
                let pool = pool.acquire_timeout(PATIENCE).connect_with(file.read_only(true));
                let pool = pool.await.map_err(unopened)?;
                SqlTable::Sqlite(SqliteTable::open(pool, layout).await.map_err(unusable)?)
            }
            StoreKind::Postgres => {
                let pool = PgPoolOptions::new().max_connections(READERS).acquire_timeout(PATIENCE);
                let pool = pool.connect(url.secret()).await.map_err(unopened)?;
                SqlTable::Postgres(PgTable::open(pool, layout).await.map_err(unusable)?)
            }
            StoreKind::MySql => {
                let pool = MySqlPoolOptions::new().max_connections(READERS);
                let pool = pool.acquire_timeout(PATIENCE).connect(url.secret());
                let pool = pool.await.map_err(unopened)?;
                SqlTable::MySql(MySqlTable::open(pool, layout).await.map_err(unusable)?)
            }
            StoreKind::Redis | StoreKind::Memory => return Err(no_database("map of public ids")),
        })
    }
}

/// Converts an error of the table. A missing table or column means that a flag is wrong.
fn unusable(error: Error) -> ExitError {
    if error.kind() == ErrorKind::Misconfigured {
        return ExitError::usage(chain(&error));
    }
    error.into()
}

/// Evaluates `$work` for the table of any database, bound to `$table`.
macro_rules! with_table {
    ($self:expr, $table:ident => $work:expr) => {
        match $self {
            SqlTable::Sqlite($table) => $work,
            SqlTable::Postgres($table) => $work,
            SqlTable::MySql($table) => $work,
        }
    };
}

impl BusinessTable for SqlTable {
    fn describe(&self) -> String {
        with_table!(self, table => table.describe())
    }

    fn tenant(&self) -> Option<&str> {
        with_table!(self, table => table.tenant())
    }

    async fn page(&self, after: Option<&TableCursor>, limit: u32) -> Result<TablePage> {
        with_table!(self, table => Box::pin(table.page(after, limit)).await)
    }

    async fn find(&self, tenant: &str, publics: &[&str]) -> Result<Vec<BusinessRow>> {
        with_table!(self, table => Box::pin(table.find(tenant, publics)).await)
    }

    async fn estimate(&self) -> Result<Option<u64>> {
        with_table!(self, table => Box::pin(table.estimate()).await)
    }

    async fn keyless(&self) -> Result<u64> {
        with_table!(self, table => Box::pin(table.keyless()).await)
    }
}
