//! Validates the names of a table and its columns. They become part of statements, so they are
//! checked and quoted.

use semel_core::key::check_tenant;
use semel_core::store::{Error, ErrorKind, Result};

/// The length of the longest name that every database accepts.
const MAX_NAME: usize = 63;

/// The name of a business table and of its columns. The defaults are common names.
///
/// Names are case-sensitive and consist of letters, digits, `_` and `$`, not beginning with a
/// digit. A table may be `schema.table`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Layout {
    table: String,
    key: String,
    tenant: Tenancy,
    public: String,
    internal: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Tenancy {
    Column(String),
    Fixed(String),
}

impl Layout {
    /// Returns the layout of a table with the columns `id`, `tenant_id`, `public_id` and `internal_id`.
    ///
    /// ```
    /// use semel_sql::business::Layout;
    ///
    /// let layout = Layout::new("shop.orders").key("order_id").tenant("acme");
    /// ```
    pub fn new(table: &str) -> Self {
        Self {
            table: table.to_owned(),
            key: "id".to_owned(),
            tenant: Tenancy::Column("tenant_id".to_owned()),
            public: "public_id".to_owned(),
            internal: "internal_id".to_owned(),
        }
    }

    /// Sets the column by which rows are read in order: unique; integers, text, bytes or UUIDs.
    /// Default `id`.
    pub fn key(mut self, column: &str) -> Self {
        column.clone_into(&mut self.key);
        self
    }

    /// Sets the column with the tenant of a row: text, integers or UUIDs. Default `tenant_id`.
    pub fn tenant_column(mut self, column: &str) -> Self {
        self.tenant = Tenancy::Column(column.to_owned());
        self
    }

    /// Declares that all rows belong to this tenant, instead of a column with tenants.
    pub fn tenant(mut self, tenant: &str) -> Self {
        self.tenant = Tenancy::Fixed(tenant.to_owned());
        self
    }

    /// Sets the column with the public ids. Default `public_id`.
    pub fn public_id(mut self, column: &str) -> Self {
        column.clone_into(&mut self.public);
        self
    }

    /// Sets the column with the internal ids: 16 bytes, a UUID, or the text of a ULID. Default
    /// `internal_id`.
    pub fn internal_id(mut self, column: &str) -> Self {
        column.clone_into(&mut self.internal);
        self
    }
}

/// The validated names of a [`Layout`].
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) schema: Option<String>,
    pub(crate) table: String,
    pub(crate) key: String,
    /// The column with the tenants; `None` if all rows belong to the tenant `fixed`.
    pub(crate) tenant: Option<String>,
    pub(crate) fixed: Option<String>,
    pub(crate) public: String,
    pub(crate) internal: String,
    quote: char,
}

impl Names {
    /// Validates the names of a layout. `quote` is the character that quotes them in statements.
    pub(crate) fn of(layout: Layout, quote: char) -> Result<Self> {
        let Layout { table, key, tenant, public, internal } = layout;
        let (schema, table) = match table.split_once('.') {
            Some((schema, table)) => (Some(schema.to_owned()), table.to_owned()),
            None => (None, table),
        };
        let (tenant, fixed) = match tenant {
            Tenancy::Column(column) => (Some(column), None),
            Tenancy::Fixed(tenant) => (None, Some(tenant)),
        };
        if let Some(fixed) = &fixed {
            check_tenant(fixed).map_err(|invalid| wrong(invalid.to_string()))?;
        }
        for name in [&table, &key, &public, &internal].into_iter().chain(&schema).chain(&tenant) {
            check(name)?;
        }
        Ok(Self { schema, table, key, tenant, fixed, public, internal, quote })
    }

    /// Returns a name in quotes.
    pub(crate) fn quoted(&self, name: &str) -> String {
        format!("{0}{name}{0}", self.quote)
    }

    /// Returns the table in quotes, with its schema.
    pub(crate) fn from(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", self.quoted(schema), self.quoted(&self.table)),
            None => self.quoted(&self.table),
        }
    }

    /// Returns the table without quotes, for messages.
    pub(crate) fn shown(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{schema}.{}", self.table),
            None => self.table.clone(),
        }
    }

    /// Describes the table and its columns in one line, for checkpoints.
    pub(crate) fn describe(&self, dialect: &str) -> String {
        let tenant = match (&self.tenant, &self.fixed) {
            (Some(column), _) => format!("tenant in {column}"),
            (None, Some(tenant)) => format!("tenant {tenant:?}"),
            (None, None) => unreachable!("a layout has a tenant or a column of tenants"),
        };
        let Self { key, public, internal, .. } = self;
        format!("{dialect} table {} by {key} ({tenant}, {public}, {internal})", self.shown())
    }
}

fn check(name: &str) -> Result<()> {
    let mut letters = name.chars();
    let begins = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if begins
        && name.len() <= MAX_NAME
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$')
    {
        return Ok(());
    }
    Err(wrong(format!(
        "{name:?} cannot be the name of a table or column; names are at most {MAX_NAME} letters, \
         digits, _ and $, not beginning with a digit"
    )))
}

fn wrong(text: String) -> Error {
    Error::new(ErrorKind::Misconfigured, "name a business table", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_inject_sql_is_refused() {
        for good in ["orders", "_o", "Orders2", "shop.orders", "a$b"] {
            Names::of(Layout::new(good), '"').expect(good);
        }
        let long = "x".repeat(64);
        for bad in ["", "1a", "a b", "a\"b", "a`b", "a;--", "a.b.c", ".a", "a.", "é", "a'", &long]
        {
            let table = Names::of(Layout::new(bad), '"').expect_err(bad);
            assert_eq!(table.kind(), ErrorKind::Misconfigured);
            for layout in [
                Layout::new("t").key(bad),
                Layout::new("t").tenant_column(bad),
                Layout::new("t").public_id(bad),
                Layout::new("t").internal_id(bad),
            ] {
                Names::of(layout, '"').expect_err(bad);
            }
        }
        Names::of(Layout::new("t").key("a.b"), '"').expect_err("a column has no schema");
        Names::of(Layout::new("t").tenant(" "), '"').expect_err("not a tenant");
    }

    #[test]
    fn every_name_is_quoted() {
        let names = Names::of(Layout::new("shop.order"), '`').expect("names");
        assert_eq!((names.from(), names.quoted("key")), ("`shop`.`order`".into(), "`key`".into()));
    }
}
