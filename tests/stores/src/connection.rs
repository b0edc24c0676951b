//! A plain connection to a store's database, independent of the store.

use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, FromRow};

use crate::backend::{Address, Backend};

/// A connection to one of the SQL databases.
#[derive(Debug)]
pub enum SqlConnection {
    /// A connection to a SQLite file, which is created if it is missing.
    Sqlite(SqliteConnection),
    /// A connection to PostgreSQL.
    Postgres(PgConnection),
    /// A connection to MySQL or MariaDB.
    MySql(MySqlConnection),
}

impl SqlConnection {
    /// Connects to the database of a store; `None` if it is not a SQL database.
    ///
    /// # Errors
    /// The errors of the database.
    pub async fn open(backend: &Backend) -> sqlx::Result<Option<Self>> {
        Ok(Some(match backend.address() {
            Address::Sqlite(path) => {
                let options = SqliteConnectOptions::new().filename(path);
                Self::Sqlite(options.create_if_missing(true).connect().await?)
            }
            Address::Postgres(url) => Self::Postgres(PgConnection::connect(url).await?),
            Address::MySql(url) => Self::MySql(MySqlConnection::connect(url).await?),
            Address::Memory(_) | Address::Redis { .. } => return Ok(None),
        }))
    }

    /// Runs one statement.
    ///
    /// # Errors
    /// The errors of the database.
    pub async fn execute(&mut self, statement: impl Into<String>) -> sqlx::Result<()> {
        let statement = AssertSqlSafe(statement.into());
        match self {
            Self::Sqlite(connection) => connection.execute(statement).await.map(drop),
            Self::Postgres(connection) => connection.execute(statement).await.map(drop),
            Self::MySql(connection) => connection.execute(statement).await.map(drop),
        }
    }

    /// Returns all rows of a query.
    ///
    /// # Errors
    /// The errors of the database.
    pub async fn fetch_all<R>(&mut self, query: &'static str) -> sqlx::Result<Vec<R>>
    where
        R: for<'r> FromRow<'r, SqliteRow>
            + for<'r> FromRow<'r, PgRow>
            + for<'r> FromRow<'r, MySqlRow>
            + Send
            + Unpin,
    {
        match self {
            Self::Sqlite(connection) => sqlx::query_as(query).fetch_all(connection).await,
            Self::Postgres(connection) => sqlx::query_as(query).fetch_all(connection).await,
            Self::MySql(connection) => sqlx::query_as(query).fetch_all(connection).await,
        }
    }
}
