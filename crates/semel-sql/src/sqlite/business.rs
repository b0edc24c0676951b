//! Reads business tables in SQLite. A column can hold values of any type there, so every value is
//! read by its own type.

use semel_core::store::{Error, Result};
use semel_ids::migration::{BusinessRow, BusinessTable, Field, TableCursor, TablePage};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Row, SqlitePool, TypeInfo, ValueRef};

use super::failure;
use crate::business::{
    Class, Column, Dialect, Facts, Index, Inspection, Layout, Names, Placed, exactly,
    foreign_cursor, hex, inspect, page, unhex, usable,
};

const DIALECT: Dialect = Dialect {
    tenant: "TEXT",
    public: "TEXT",
    internal: "BLOB",
    create_unique: "CREATE UNIQUE INDEX",
};

/// A business table in a SQLite file, read over the application's own pool.
#[derive(Clone, Debug)]
pub struct SqliteTable {
    pool: SqlitePool,
    names: Names,
}

impl SqliteTable {
    /// Opens the table: checks that its columns and its key can be used.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use semel_sql::business::Layout;
    /// use semel_sql::sqlite::SqliteTable;
    /// use semel_sql::sqlx::{Executor, SqlitePool};
    ///
    /// let pool = SqlitePool::connect("sqlite::memory:").await?;
    /// pool.execute(
    ///     "CREATE TABLE orders (id INTEGER PRIMARY KEY, tenant_id TEXT NOT NULL, \
    ///      public_id TEXT NOT NULL UNIQUE, internal_id TEXT NOT NULL UNIQUE)",
    /// )
    /// .await?;
    /// let orders = SqliteTable::open(pool, Layout::new("orders")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Misconfigured` if a name is invalid, a column is missing or of another type, or the key is
    /// not unique.
    pub async fn open(pool: SqlitePool, layout: Layout) -> Result<Self> {
        let names = Names::of(layout, '"')?;
        usable(&names, facts(&pool, &names).await?, &DIALECT)?;
        Ok(Self { pool, names })
    }

    /// Returns what is missing or wrong about the table, with the statements that would fix it.
    ///
    /// # Errors
    /// If a name is invalid, or the database cannot be queried.
    pub async fn inspect(pool: &SqlitePool, layout: Layout) -> Result<Inspection> {
        let names = Names::of(layout, '"')?;
        Ok(inspect(&names, facts(pool, &names).await?.as_ref(), &DIALECT))
    }

    fn columns(&self) -> String {
        let Names { key, tenant, public, internal, .. } = &self.names;
        // If all rows belong to one tenant, there is no column to read.
        let tenant =
            tenant.as_ref().map_or_else(|| "NULL".to_owned(), |name| self.names.quoted(name));
        let [key, public, internal] = [key, public, internal].map(|name| self.names.quoted(name));
        format!("{key}, {tenant}, {public}, {internal}")
    }

    async fn fetch(&self, sql: String, arguments: SqliteArguments) -> Result<Vec<SqliteRow>> {
        let query = sqlx::query_with(AssertSqlSafe(sql), arguments);
        query.fetch_all(&self.pool).await.map_err(failed)
    }

    fn row(&self, row: &SqliteRow) -> BusinessRow {
        let tenant = match &self.names.fixed {
            Some(tenant) => Field::Value(tenant.clone()),
            None => text(value(row, 1), true),
        };
        let internal = match value(row, 3) {
            Value::Bytes(bytes) => Field::Value(bytes),
            Value::Text(text) => Field::Value(text.into_bytes()),
            Value::Null => Field::Null,
            Value::Integer(_) | Value::Real(_) | Value::Garbled(_) => Field::Unreadable,
        };
        BusinessRow {
            key: value(row, 0).shown(),
            tenant,
            public: match value(row, 2) {
                // A column of bytes may hold the id as text.
                Value::Bytes(bytes) => {
                    String::from_utf8(bytes).map_or(Field::Unreadable, Field::Value)
                }
                value @ (Value::Null
                | Value::Integer(_)
                | Value::Real(_)
                | Value::Text(_)
                | Value::Garbled(_)) => text(value, false),
            },
            internal,
        }
    }
}

impl BusinessTable for SqliteTable {
    fn describe(&self) -> String {
        self.names.describe("SQLite")
    }

    fn tenant(&self) -> Option<&str> {
        self.names.fixed.as_deref()
    }

    async fn page(&self, after: Option<&TableCursor>, limit: u32) -> Result<TablePage> {
        let (columns, from) = (self.columns(), self.names.from());
        let key = self.names.quoted(&self.names.key);
        let mut arguments = SqliteArguments::default();
        let after = match after {
            None => "IS NOT NULL",
            Some(cursor) => Value::parse(cursor)?.bind_after(&mut arguments)?,
        };
        add(&mut arguments, i64::from(limit) + 1)?;
        let sql =
            format!("SELECT {columns} FROM {from} WHERE {key} {after} ORDER BY {key} LIMIT ?");
        let rows = self.fetch(sql, arguments).await?;
        let place = |row: &SqliteRow| Placed { cursor: value(row, 0).cursor(), row: self.row(row) };
        page(rows.iter().map(place).collect(), limit)
    }

    async fn find(&self, tenant: &str, publics: &[&str]) -> Result<Vec<BusinessRow>> {
        if publics.is_empty() || self.tenant().is_some_and(|own| own != tenant) {
            return Ok(Vec::new());
        }
        let (columns, from) = (self.columns(), self.names.from());
        let public = self.names.quoted(&self.names.public);
        // As text and as bytes: in SQLite the two are never equal.
        let marks = vec!["?, ?"; publics.len()].join(", ");
        let mut arguments = SqliteArguments::default();
        let mut sql = format!("SELECT {columns} FROM {from} WHERE {public} IN ({marks})");
        for public in publics {
            add(&mut arguments, (*public).to_owned())?;
            add(&mut arguments, public.as_bytes().to_vec())?;
        }
        if let Some(column) = &self.names.tenant {
            // As text: SQLite converts it to an integer if the column holds integers.
            sql.push_str(&format!(" AND {} = ?", self.names.quoted(column)));
            add(&mut arguments, tenant.to_owned())?;
        }
        let rows = self.fetch(sql, arguments).await?;
        Ok(exactly(rows.iter().map(|row| self.row(row)), tenant, publics))
    }

    async fn estimate(&self) -> Result<Option<u64>> {
        // The highest rowid, if the table has rowids: counting would read the whole table.
        let sql = format!("SELECT max(rowid) FROM {}", self.names.from());
        let asked = sqlx::query_scalar::<_, Option<i64>>(AssertSqlSafe(sql));
        let highest = asked.fetch_one(&self.pool).await.unwrap_or(None);
        Ok(highest.and_then(|highest| u64::try_from(highest).ok()))
    }

    async fn keyless(&self) -> Result<u64> {
        let (from, key) = (self.names.from(), self.names.quoted(&self.names.key));
        let sql = format!("SELECT count(*) FROM {from} WHERE {key} IS NULL");
        let count: i64 =
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.pool).await.map_err(failed)?;
        Ok(count.unsigned_abs())
    }
}

fn failed(error: sqlx::Error) -> Error {
    failure::in_transaction("read the business table", error)
}

fn add<'q, T>(arguments: &mut SqliteArguments, value: T) -> Result<()>
where
    T: sqlx::Encode<'q, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite> + 'q,
{
    arguments.add(value).map_err(|error| failed(sqlx::Error::Encode(error)))
}

/// A value with its storage type.
enum Value {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// Text that is not valid UTF-8.
    Garbled(Vec<u8>),
}

fn value(row: &SqliteRow, at: usize) -> Value {
    let read = || -> sqlx::Result<Value> {
        let raw = row.try_get_raw(at)?;
        if raw.is_null() {
            return Ok(Value::Null);
        }
        let kind = raw.type_info().name().to_owned();
        Ok(match kind.as_str() {
            "INTEGER" => Value::Integer(row.try_get_unchecked(at)?),
            "REAL" => Value::Real(row.try_get_unchecked(at)?),
            "TEXT" => match String::from_utf8(row.try_get_unchecked(at)?) {
                Ok(text) => Value::Text(text),
                Err(garbled) => Value::Garbled(garbled.into_bytes()),
            },
            _ => Value::Bytes(row.try_get_unchecked(at)?),
        })
    };
    read().unwrap_or(Value::Null)
}

impl Value {
    fn shown(&self) -> String {
        match self {
            Value::Null => String::from("NULL"),
            Value::Integer(number) => number.to_string(),
            Value::Real(number) => number.to_string(),
            Value::Text(text) => text.clone(),
            Value::Bytes(bytes) => hex(bytes),
            Value::Garbled(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        }
    }

    /// Returns the value as a cursor, with its type: SQLite compares values of different types by
    /// their types first.
    fn cursor(&self) -> String {
        match self {
            Value::Integer(number) => format!("i:{number}"),
            Value::Real(number) => format!("r:{}", number.to_bits()),
            Value::Text(text) => format!("t:{text}"),
            Value::Bytes(bytes) => format!("b:{}", hex(bytes)),
            Value::Garbled(bytes) => format!("g:{}", hex(bytes)),
            // No page contains a null key.
            Value::Null => String::from("n:"),
        }
    }

    fn parse(cursor: &TableCursor) -> Result<Self> {
        let parsed = cursor.as_str().split_once(':').and_then(|(kind, rest)| match kind {
            "i" => rest.parse().ok().map(Value::Integer),
            "r" => rest.parse().ok().map(|bits| Value::Real(f64::from_bits(bits))),
            "t" => Some(Value::Text(rest.to_owned())),
            "b" => unhex(rest).map(Value::Bytes),
            "g" => unhex(rest).map(Value::Garbled),
            _ => None,
        });
        parsed.ok_or_else(|| foreign_cursor(cursor))
    }

    /// Binds the value, and returns the condition for rows after it.
    fn bind_after(self, arguments: &mut SqliteArguments) -> Result<&'static str> {
        match self {
            Value::Integer(number) => add(arguments, number)?,
            Value::Real(number) => add(arguments, number)?,
            Value::Text(text) => add(arguments, text)?,
            Value::Bytes(bytes) => add(arguments, bytes)?,
            Value::Garbled(bytes) => {
                add(arguments, bytes)?;
                return Ok("> CAST(? AS TEXT)");
            }
            Value::Null => return Ok("IS NOT NULL"),
        }
        Ok("> ?")
    }
}

fn text(value: Value, numbers: bool) -> Field<String> {
    match value {
        Value::Text(text) => Field::Value(text),
        Value::Integer(number) if numbers => Field::Value(number.to_string()),
        Value::Null => Field::Null,
        Value::Integer(_) | Value::Real(_) | Value::Bytes(_) | Value::Garbled(_) => {
            Field::Unreadable
        }
    }
}

/// Reads the columns and indexes of the table; `None` if the table does not exist.
async fn facts(pool: &SqlitePool, names: &Names) -> Result<Option<Facts>> {
    let schema = names.schema.as_deref().unwrap_or("main");
    let sql = "SELECT name, type, \"notnull\", pk FROM pragma_table_info(?, ?)";
    let rows: Vec<(String, String, i64, i64)> = sqlx::query_as(sql)
        .bind(&names.table)
        .bind(schema)
        .fetch_all(pool)
        .await
        .map_err(failed)?;
    if rows.is_empty() {
        return Ok(None);
    }
    let mut facts = Facts::default();
    let primary: Vec<&(String, String, i64, i64)> = rows.iter().filter(|row| row.3 > 0).collect();
    // An INTEGER PRIMARY KEY is the rowid, which is in no list of indexes.
    let own_number = match primary.as_slice() {
        [(name, declared, ..)] if declared.eq_ignore_ascii_case("INTEGER") => Some(name.clone()),
        _ => None,
    };
    for (name, declared, not_null, _) in &rows {
        let nullable = *not_null == 0 && own_number.as_ref() != Some(name);
        let (name, declared) = (name.clone(), declared.clone());
        let class = class(&declared);
        facts.columns.push(Column { name, declared, class, nullable, collation: None });
    }
    facts.indexes.extend(own_number.map(|name| Index { columns: vec![name], unique: true }));
    let sql = "SELECT l.name, l.\"unique\", coalesce(i.name, '') \
               FROM pragma_index_list(?1, ?2) AS l, pragma_index_info(l.name, ?2) AS i \
               WHERE l.partial = 0 ORDER BY l.seq, i.seqno";
    let indexed: Vec<(String, i64, String)> = sqlx::query_as(sql)
        .bind(&names.table)
        .bind(schema)
        .fetch_all(pool)
        .await
        .map_err(failed)?;
    for parts in indexed.chunk_by(|one, other| one.0 == other.0) {
        let columns = parts.iter().map(|(_, _, column)| column.clone()).collect();
        facts.indexes.push(Index { columns, unique: parts[0].1 == 1 });
    }
    Ok(Some(facts))
}

/// Returns the class of a declared type, by SQLite's rules of affinity. A type without an affinity
/// of its own accepts any value.
fn class(declared: &str) -> Class {
    let declared = declared.to_ascii_uppercase();
    let has = |part: &str| declared.contains(part);
    if has("INT") {
        Class::Integer
    } else if has("CHAR") || has("CLOB") || has("TEXT") {
        Class::Text
    } else if has("BLOB") || declared.is_empty() {
        Class::Bytes
    } else if has("REAL") || has("FLOA") || has("DOUB") {
        Class::Other
    } else {
        Class::Any
    }
}
