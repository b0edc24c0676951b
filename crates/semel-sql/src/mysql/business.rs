//! Reads business tables in MySQL and MariaDB. Values are sent as bytes and compared in the
//! column's own character set and collation, so that its indexes are used.

use semel_core::store::{Error, Result};
use semel_ids::migration::{BusinessRow, BusinessTable, Field, TableCursor, TablePage};
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::{Arguments, AssertSqlSafe, MySqlPool, Row};

use super::session::codes;
use crate::business::{
    Class, Column, Dialect, Facts, Index, Inspection, Layout, Names, Placed, exactly,
    foreign_cursor, hex, inspect, is_integer, page, unhex, usable,
};
use crate::error::{Stage, classify};

const DIALECT: Dialect = Dialect {
    tenant: "VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    public: "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin",
    internal: "BINARY(16)",
    create_unique: "CREATE UNIQUE INDEX",
};

/// A business table in MySQL or MariaDB, read over the application's own pool.
#[derive(Clone, Debug)]
pub struct MySqlTable {
    pool: MySqlPool,
    names: Names,
    key: Column,
    tenant: Option<Column>,
    public: Column,
    internal: Column,
}

impl MySqlTable {
    /// Opens the table: checks that its columns and its key can be used.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use semel_sql::business::Layout;
    /// use semel_sql::mysql::MySqlTable;
    /// use semel_sql::sqlx::MySqlPool;
    ///
    /// let pool = MySqlPool::connect("mysql://app@localhost/shop").await?;
    /// let orders = MySqlTable::open(pool, Layout::new("orders").key("order_id")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Misconfigured` if a name is invalid, a column is missing or of another type, or the key is
    /// not unique.
    pub async fn open(pool: MySqlPool, layout: Layout) -> Result<Self> {
        let names = Names::of(layout, '`')?;
        let facts = usable(&names, facts(&pool, &names).await?, &DIALECT)?;
        let of = |name: &str| facts.column(name).cloned().expect("a usable table has its columns");
        Ok(Self {
            key: of(&names.key),
            tenant: names.tenant.as_deref().map(of),
            public: of(&names.public),
            internal: of(&names.internal),
            pool,
            names,
        })
    }

    /// Returns what is missing or wrong about the table, with the statements that would fix it.
    ///
    /// # Errors
    /// If a name is invalid, or the database cannot be queried.
    pub async fn inspect(pool: &MySqlPool, layout: Layout) -> Result<Inspection> {
        let names = Names::of(layout, '`')?;
        Ok(inspect(&names, facts(pool, &names).await?.as_ref(), &DIALECT))
    }

    /// Returns an expression for a column as bytes: text as UTF-8, integers as digits.
    fn shown(&self, column: &Column) -> String {
        let name = self.names.quoted(&column.name);
        match &column.collation {
            Some(_) => format!("CAST(CONVERT({name} USING utf8mb4) AS BINARY)"),
            None => format!("CAST({name} AS BINARY)"),
        }
    }

    fn columns(&self) -> String {
        let tenant = self.tenant.as_ref().map(|column| self.shown(column));
        let tenant = tenant.unwrap_or_else(|| String::from("CAST(NULL AS BINARY)"));
        let [key, public, internal] =
            [&self.key, &self.public, &self.internal].map(|column| self.shown(column));
        format!("{key}, {tenant}, {public}, {internal}")
    }

    async fn fetch(&self, sql: String, arguments: MySqlArguments) -> Result<Vec<MySqlRow>> {
        let query = sqlx::query_with(AssertSqlSafe(sql), arguments);
        query.fetch_all(&self.pool).await.map_err(failed)
    }

    fn row(&self, row: &MySqlRow) -> BusinessRow {
        let tenant = match &self.names.fixed {
            Some(tenant) => Field::Value(tenant.clone()),
            None => text(bytes(row, 1)),
        };
        let key = match bytes(row, 0) {
            Field::Value(key) if self.key.class == Class::Bytes => hex(&key),
            Field::Value(key) => String::from_utf8_lossy(&key).into_owned(),
            Field::Null | Field::Unreadable => String::new(),
        };
        BusinessRow { key, tenant, public: text(bytes(row, 2)), internal: bytes(row, 3) }
    }
}

/// Returns an expression that converts a parameter to the column's type, for comparisons.
fn converted(column: &Column) -> String {
    match &column.collation {
        // Both names come from the server's own lists.
        Some((set, collation)) => format!("CONVERT(? USING {set}) COLLATE {collation}"),
        None if column.class == Class::Bytes => String::from("?"),
        None if column.declared.contains("unsigned") => String::from("CAST(? AS UNSIGNED)"),
        None => String::from("CAST(? AS SIGNED)"),
    }
}

/// Returns whether `text` can be converted to the column's type without changing its meaning.
fn can_be(column: &Column, text: &str) -> bool {
    match column.class {
        Class::Integer if column.declared.contains("unsigned") => {
            is_integer(text) && text.parse::<u64>().is_ok()
        }
        Class::Integer => is_integer(text) && text.parse::<i64>().is_ok(),
        Class::Bytes => unhex(text).is_some(),
        Class::Text | Class::Uuid | Class::Any | Class::Other => true,
    }
}

fn failed(error: sqlx::Error) -> Error {
    classify(codes, Stage::Running, "read the business table", error)
}

fn add<'q, T>(arguments: &mut MySqlArguments, value: T) -> Result<()>
where
    T: sqlx::Encode<'q, sqlx::MySql> + sqlx::Type<sqlx::MySql> + 'q,
{
    arguments.add(value).map_err(|error| failed(sqlx::Error::Encode(error)))
}

fn bytes(row: &MySqlRow, at: usize) -> Field<Vec<u8>> {
    match row.try_get_unchecked::<Option<Vec<u8>>, _>(at) {
        Ok(Some(bytes)) => Field::Value(bytes),
        Ok(None) => Field::Null,
        Err(_) => Field::Unreadable,
    }
}

fn text(field: Field<Vec<u8>>) -> Field<String> {
    match field {
        Field::Value(bytes) => String::from_utf8(bytes).map_or(Field::Unreadable, Field::Value),
        Field::Null => Field::Null,
        Field::Unreadable => Field::Unreadable,
    }
}

impl BusinessTable for MySqlTable {
    fn describe(&self) -> String {
        self.names.describe("MySQL")
    }

    fn tenant(&self) -> Option<&str> {
        self.names.fixed.as_deref()
    }

    async fn page(&self, after: Option<&TableCursor>, limit: u32) -> Result<TablePage> {
        let (columns, from) = (self.columns(), self.names.from());
        let key = self.names.quoted(&self.key.name);
        let mut arguments = MySqlArguments::default();
        let after = match after {
            None => String::from("IS NOT NULL"),
            Some(cursor) if !can_be(&self.key, cursor.as_str()) => {
                return Err(foreign_cursor(cursor));
            }
            Some(cursor) => {
                match self.key.class {
                    Class::Bytes => add(&mut arguments, unhex(cursor.as_str()))?,
                    Class::Integer | Class::Text | Class::Uuid | Class::Any | Class::Other => {
                        add(&mut arguments, cursor.as_str().to_owned())?;
                    }
                }
                format!("> {}", converted(&self.key))
            }
        };
        add(&mut arguments, i64::from(limit) + 1)?;
        let sql =
            format!("SELECT {columns} FROM {from} WHERE {key} {after} ORDER BY {key} LIMIT ?");
        let rows = self.fetch(sql, arguments).await?;
        let place = |row: &MySqlRow| {
            let row = self.row(row);
            Placed { cursor: row.key.clone(), row }
        };
        page(rows.iter().map(place).collect(), limit)
    }

    async fn find(&self, tenant: &str, publics: &[&str]) -> Result<Vec<BusinessRow>> {
        let possible = match &self.tenant {
            Some(column) => can_be(column, tenant),
            None => self.tenant() == Some(tenant),
        };
        if !possible || publics.is_empty() {
            return Ok(Vec::new());
        }
        let (columns, from) = (self.columns(), self.names.from());
        let public = self.names.quoted(&self.public.name);
        let marks = vec![converted(&self.public); publics.len()].join(", ");
        let mut sql = format!("SELECT {columns} FROM {from} WHERE {public} IN ({marks})");
        let mut arguments = MySqlArguments::default();
        for public in publics {
            match self.public.class {
                Class::Bytes => add(&mut arguments, public.as_bytes().to_vec())?,
                Class::Integer | Class::Text | Class::Uuid | Class::Any | Class::Other => {
                    add(&mut arguments, (*public).to_owned())?;
                }
            }
        }
        if let Some(column) = &self.tenant {
            sql.push_str(&format!(
                " AND {} = {}",
                self.names.quoted(&column.name),
                converted(column)
            ));
            add(&mut arguments, tenant.to_owned())?;
        }
        let rows = self.fetch(sql, arguments).await?;
        Ok(exactly(rows.iter().map(|row| self.row(row)), tenant, publics))
    }

    async fn estimate(&self) -> Result<Option<u64>> {
        let sql = "SELECT CAST(table_rows AS SIGNED) FROM information_schema.tables \
                   WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?";
        let asked = sqlx::query_scalar::<_, Option<i64>>(sql);
        let asked = asked.bind(&self.names.schema).bind(&self.names.table);
        let rows = asked.fetch_optional(&self.pool).await.map_err(failed)?.flatten();
        Ok(rows.and_then(|rows| u64::try_from(rows).ok()))
    }

    async fn keyless(&self) -> Result<u64> {
        let (from, key) = (self.names.from(), self.names.quoted(&self.key.name));
        let sql = format!("SELECT COUNT(*) FROM {from} WHERE {key} IS NULL");
        let asked = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql));
        Ok(asked.fetch_one(&self.pool).await.map_err(failed)?.unsigned_abs())
    }
}

/// Reads the columns and indexes of the table; `None` if the table does not exist.
async fn facts(pool: &MySqlPool, names: &Names) -> Result<Option<Facts>> {
    // Versions name the columns of these lists differently: they are cast, and read by position.
    let sql = "SELECT CAST(column_name AS CHAR), CAST(column_type AS CHAR), \
                   CAST(data_type AS CHAR), CAST(is_nullable AS CHAR), \
                   CAST(character_set_name AS CHAR), CAST(collation_name AS CHAR) \
               FROM information_schema.columns \
               WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ? \
               ORDER BY ordinal_position";
    type Listed = (String, String, String, String, Option<String>, Option<String>);
    let asked = sqlx::query_as::<_, Listed>(sql).bind(&names.schema).bind(&names.table);
    let columns = asked.fetch_all(pool).await.map_err(failed)?;
    if columns.is_empty() {
        return Ok(None);
    }
    let column = |(name, declared, data, nullable, set, collation): Listed| Column {
        name,
        class: class(&data),
        declared: declared.to_ascii_lowercase(),
        nullable: nullable == "YES",
        collation: set.zip(collation),
    };
    // A column of which only a prefix is indexed gets an empty name, and so is not used.
    let sql = "SELECT CAST(index_name AS CHAR), CAST(non_unique AS SIGNED), \
                   CAST(IF(sub_part IS NULL, COALESCE(column_name, ''), '') AS CHAR) \
               FROM information_schema.statistics \
               WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ? \
               ORDER BY index_name, seq_in_index";
    let asked = sqlx::query_as::<_, (String, i64, String)>(sql);
    let asked = asked.bind(&names.schema).bind(&names.table);
    let parts = asked.fetch_all(pool).await.map_err(failed)?;
    let index = |parts: &[(String, i64, String)]| Index {
        columns: parts.iter().map(|(_, _, column)| column.clone()).collect(),
        unique: parts[0].1 == 0,
    };
    Ok(Some(Facts {
        columns: columns.into_iter().map(column).collect(),
        indexes: parts.chunk_by(|one, other| one.0 == other.0).map(index).collect(),
    }))
}

fn class(data: &str) -> Class {
    match data.to_ascii_lowercase().as_str() {
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint" => Class::Integer,
        "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" => Class::Text,
        "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => Class::Bytes,
        _ => Class::Other,
    }
}
