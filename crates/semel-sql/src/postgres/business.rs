//! Reads business tables in PostgreSQL. Values are sent as text and compared in the column's own
//! type and collation, so that its indexes are used.

use semel_core::store::{Error, Result};
use semel_ids::migration::{BusinessRow, BusinessTable, Field, TableCursor, TablePage};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments, AssertSqlSafe, PgPool, Row};

use super::statement::failed_in;
use crate::business::{
    Class, Column, Dialect, Facts, Index, Inspection, Layout, Names, Placed, Role, exactly,
    foreign_cursor, inspect, is_integer, page, unhex, usable,
};

const DIALECT: Dialect = Dialect {
    tenant: "varchar(64)",
    public: "varchar(64) COLLATE \"C\"",
    internal: "bytea",
    create_unique: "CREATE UNIQUE INDEX CONCURRENTLY",
};

/// A business table in PostgreSQL, read over the application's own pool.
#[derive(Clone, Debug)]
pub struct PgTable {
    pool: PgPool,
    names: Names,
    key: Type,
    tenant: Option<Type>,
    public: Type,
    internal: Type,
}

/// The type of a column, as far as statements depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Integer,
    Text,
    /// `char(n)`: padded with blanks, and compared without them.
    Padded,
    Bytes,
    Uuid,
}

impl Type {
    fn of(column: &Column) -> Self {
        match column.class {
            Class::Integer => Type::Integer,
            Class::Bytes => Type::Bytes,
            Class::Uuid => Type::Uuid,
            Class::Text | Class::Any | Class::Other if column.declared == "bpchar" => Type::Padded,
            Class::Text | Class::Any | Class::Other => Type::Text,
        }
    }

    /// Returns an expression for `column` as text.
    fn shown(self, column: &str) -> String {
        match self {
            Type::Bytes => format!("encode({column}, 'hex')"),
            Type::Integer | Type::Text | Type::Padded | Type::Uuid => format!("{column}::text"),
        }
    }

    /// Returns an expression that converts a text parameter to the column's type, for comparisons.
    fn converted(self, parameter: &str) -> String {
        match self {
            Type::Integer => format!("{parameter}::text::bigint"),
            Type::Text => format!("{parameter}::text"),
            Type::Padded => format!("{parameter}::text::bpchar"),
            Type::Bytes => format!("decode({parameter}::text, 'hex')"),
            Type::Uuid => format!("{parameter}::text::uuid"),
        }
    }

    /// Returns whether `text` can be converted to the column's type.
    fn can_be(self, text: &str) -> bool {
        match self {
            Type::Integer => is_integer(text) && text.parse::<i64>().is_ok(),
            // No text in PostgreSQL contains NUL.
            Type::Text | Type::Padded => !text.contains('\0'),
            Type::Bytes => unhex(text).is_some(),
            Type::Uuid => is_uuid(text),
        }
    }

    /// Returns an expression for `column` as bytes.
    fn bytes(self, column: &str) -> String {
        match self {
            Type::Bytes => column.to_owned(),
            Type::Uuid => format!("uuid_send({column})"),
            Type::Text | Type::Padded | Type::Integer => {
                format!("convert_to({column}::text, 'UTF8')")
            }
        }
    }
}

/// Returns whether `text` is a UUID as PostgreSQL writes it.
fn is_uuid(text: &str) -> bool {
    let dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    let fits = |(at, c): (usize, u8)| match dash(at) {
        true => c == b'-',
        false => c.is_ascii_digit() || (b'a'..=b'f').contains(&c),
    };
    text.len() == 36 && text.bytes().enumerate().all(fits)
}

impl PgTable {
    /// Opens the table: checks that its columns and its key can be used.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use semel_sql::business::Layout;
    /// use semel_sql::postgres::PgTable;
    /// use semel_sql::sqlx::PgPool;
    ///
    /// let pool = PgPool::connect("postgres://app@localhost/app").await?;
    /// let orders = PgTable::open(pool, Layout::new("orders").key("order_id")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Misconfigured` if a name is invalid, a column is missing or of another type, or the key is
    /// not unique.
    pub async fn open(pool: PgPool, layout: Layout) -> Result<Self> {
        let names = Names::of(layout, '"')?;
        let facts = usable(&names, facts(&pool, &names).await?, &DIALECT)?;
        let of = |name: &str| Type::of(facts.column(name).expect("a usable table has its columns"));
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
    pub async fn inspect(pool: &PgPool, layout: Layout) -> Result<Inspection> {
        let names = Names::of(layout, '"')?;
        Ok(inspect(&names, facts(pool, &names).await?.as_ref(), &DIALECT))
    }

    fn column(&self, role: Role) -> String {
        let Names { key, tenant, public, internal, .. } = &self.names;
        match role {
            Role::Key => self.names.quoted(key),
            Role::Tenant => self.names.quoted(tenant.as_deref().unwrap_or_default()),
            Role::Public => self.names.quoted(public),
            Role::Internal => self.names.quoted(internal),
        }
    }

    fn columns(&self) -> String {
        let tenant = self.tenant.map_or_else(
            || String::from("null::text"),
            |tenant| tenant.shown(&self.column(Role::Tenant)),
        );
        let key = self.key.shown(&self.column(Role::Key));
        // The bytes of a public id are its characters.
        let public = self.public.bytes(&self.column(Role::Public));
        let internal = self.internal.bytes(&self.column(Role::Internal));
        format!("{key}, {tenant}, {public}, {internal}")
    }

    async fn fetch(&self, sql: String, arguments: PgArguments) -> Result<Vec<PgRow>> {
        let query = sqlx::query_with(AssertSqlSafe(sql), arguments);
        query.fetch_all(&self.pool).await.map_err(failed_in(READ))
    }

    fn row(&self, row: &PgRow) -> BusinessRow {
        let tenant = match &self.names.fixed {
            Some(tenant) => Field::Value(tenant.clone()),
            None => field(row.try_get::<Option<String>, _>(1)),
        };
        let public = match field(row.try_get::<Option<Vec<u8>>, _>(2)) {
            Field::Value(bytes) => String::from_utf8(bytes).map_or(Field::Unreadable, Field::Value),
            Field::Null => Field::Null,
            Field::Unreadable => Field::Unreadable,
        };
        let internal = field(row.try_get::<Option<Vec<u8>>, _>(3));
        BusinessRow { key: key(row), tenant, public, internal }
    }
}

const READ: &str = "read the business table";

fn key(row: &PgRow) -> String {
    row.try_get(0).unwrap_or_default()
}

fn field<T>(read: sqlx::Result<Option<T>>) -> Field<T> {
    match read {
        Ok(Some(value)) => Field::Value(value),
        Ok(None) => Field::Null,
        Err(_) => Field::Unreadable,
    }
}

fn add<'q, T>(arguments: &mut PgArguments, value: T) -> Result<()>
where
    T: sqlx::Encode<'q, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + 'q,
{
    let unencoded = |error| -> Error { failed_in(READ)(sqlx::Error::Encode(error)) };
    arguments.add(value).map_err(unencoded)
}

impl BusinessTable for PgTable {
    fn describe(&self) -> String {
        self.names.describe("PostgreSQL")
    }

    fn tenant(&self) -> Option<&str> {
        self.names.fixed.as_deref()
    }

    async fn page(&self, after: Option<&TableCursor>, limit: u32) -> Result<TablePage> {
        let (columns, from, key_column) =
            (self.columns(), self.names.from(), self.column(Role::Key));
        let mut arguments = PgArguments::default();
        add(&mut arguments, i64::from(limit) + 1)?;
        let after = match after {
            None => String::from("is not null"),
            Some(cursor) if !self.key.can_be(cursor.as_str()) => {
                return Err(foreign_cursor(cursor));
            }
            Some(cursor) => {
                add(&mut arguments, cursor.as_str().to_owned())?;
                format!("> {}", self.key.converted("$2"))
            }
        };
        // Qualified: an unqualified name would mean the column of the result, which is text.
        let sql = format!(
            "select {columns} from {from} as t where {key_column} {after} \
             order by t.{key_column} limit $1"
        );
        let rows = self.fetch(sql, arguments).await?;
        let place = |row: &PgRow| Placed { cursor: key(row), row: self.row(row) };
        page(rows.iter().map(place).collect(), limit)
    }

    async fn find(&self, tenant: &str, publics: &[&str]) -> Result<Vec<BusinessRow>> {
        let possible = match self.tenant {
            Some(column) => column.can_be(tenant),
            None => self.tenant() == Some(tenant),
        };
        let mut asked: Vec<&str> =
            publics.iter().copied().filter(|public| Type::Text.can_be(public)).collect();
        asked.sort_unstable();
        asked.dedup();
        if !possible || asked.is_empty() {
            return Ok(Vec::new());
        }
        let (columns, from, public) =
            (self.columns(), self.names.from(), self.column(Role::Public));
        let mut arguments = PgArguments::default();
        let (list, one) = match self.public {
            Type::Bytes => {
                let bytes: Vec<Vec<u8>> = asked.iter().map(|id| id.as_bytes().to_vec()).collect();
                add(&mut arguments, bytes)?;
                ("$1::bytea[]", "q.one")
            }
            Type::Integer | Type::Text | Type::Padded | Type::Uuid => {
                let texts: Vec<String> = asked.iter().map(|id| (*id).to_owned()).collect();
                add(&mut arguments, texts)?;
                ("$1::text[]", if self.public == Type::Padded { "q.one::bpchar" } else { "q.one" })
            }
        };
        let tenancy = match self.tenant {
            None => String::new(),
            Some(column) => {
                add(&mut arguments, tenant.to_owned())?;
                format!(" and t.{} = {}", self.column(Role::Tenant), column.converted("$2"))
            }
        };
        // Lateral, with an offset: one index lookup per id, even if the table was never analyzed.
        // Otherwise the planner would read all rows of the tenant.
        let sql = format!(
            "select r.* from unnest({list}) as q (one) cross join lateral (\
             select {columns} from {from} as t where t.{public} = {one}{tenancy} offset 0) as r"
        );
        let rows = self.fetch(sql, arguments).await?;
        Ok(exactly(rows.iter().map(|row| self.row(row)), tenant, publics))
    }

    async fn estimate(&self) -> Result<Option<u64>> {
        // The count of the last ANALYZE; -1 if there was none.
        let sql = "select reltuples::bigint from pg_class where oid = to_regclass($1)";
        let asked = sqlx::query_scalar::<_, i64>(sql).bind(self.names.from());
        let rows = asked.fetch_optional(&self.pool).await.map_err(failed_in(READ))?;
        Ok(rows.and_then(|rows| u64::try_from(rows).ok()))
    }

    async fn keyless(&self) -> Result<u64> {
        let (from, key) = (self.names.from(), self.column(Role::Key));
        let sql = format!("select count(*) from {from} where {key} is null");
        let asked = sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql));
        Ok(asked.fetch_one(&self.pool).await.map_err(failed_in(READ))?.unsigned_abs())
    }
}

/// Reads the columns and indexes of the table; `None` if the table does not exist.
async fn facts(pool: &PgPool, names: &Names) -> Result<Option<Facts>> {
    // A domain is replaced by its base type.
    let sql = "select a.attname::text, b.typname::text, a.attnotnull \
               from pg_attribute a join pg_type t on t.oid = a.atttypid \
               join pg_type b on b.oid = case t.typtype when 'd' then t.typbasetype else t.oid end \
               where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped \
               order by a.attnum";
    let asked = sqlx::query_as::<_, (String, String, bool)>(sql).bind(names.from());
    let columns = asked.fetch_all(pool).await.map_err(failed_in(READ))?;
    if columns.is_empty() {
        return Ok(None);
    }
    let column = |(name, declared, not_null): (String, String, bool)| {
        let class = class(&declared);
        Column { name, declared, class, nullable: !not_null, collation: None }
    };
    // A column of an index over an expression has no name: an empty one stands for it.
    let sql = "select i.indisunique, array(select coalesce(a.attname::text, '') \
                   from unnest(i.indkey::int2[]) with ordinality as k(attnum, at) \
                   left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum \
                   where k.at <= i.indnkeyatts order by k.at) \
               from pg_index i \
               where i.indrelid = to_regclass($1) and i.indisvalid and i.indpred is null";
    let asked = sqlx::query_as::<_, (bool, Vec<String>)>(sql).bind(names.from());
    let indexes = asked.fetch_all(pool).await.map_err(failed_in(READ))?;
    Ok(Some(Facts {
        columns: columns.into_iter().map(column).collect(),
        indexes: indexes.into_iter().map(|(unique, columns)| Index { columns, unique }).collect(),
    }))
}

fn class(declared: &str) -> Class {
    match declared {
        "int2" | "int4" | "int8" => Class::Integer,
        "text" | "varchar" | "bpchar" => Class::Text,
        "bytea" => Class::Bytes,
        "uuid" => Class::Uuid,
        _ => Class::Other,
    }
}
