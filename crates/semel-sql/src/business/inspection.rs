//! Checks whether a business table can have public ids, and suggests the statements that would fix
//! it.

use semel_core::store::{Error, ErrorKind, Finding, Result, Severity};

use super::names::Names;

/// The kind of values that a column can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Integer,
    Text,
    Bytes,
    Uuid,
    /// Any value, as in SQLite.
    Any,
    Other,
}

/// The role of a column for public ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Key,
    Tenant,
    Public,
    Internal,
}

impl Role {
    fn takes(self, class: Class) -> bool {
        match (self, class) {
            (_, Class::Any) => true,
            (_, Class::Other) => false,
            (Role::Key, _) => true,
            (Role::Tenant, class) => class != Class::Bytes,
            (Role::Public, class) => class == Class::Text || class == Class::Bytes,
            (Role::Internal, class) => class != Class::Integer,
        }
    }

    const fn wants(self) -> &'static str {
        match self {
            Role::Key => "integers, text, bytes or UUIDs",
            Role::Tenant => "text, integers or UUIDs",
            Role::Public => "text",
            Role::Internal => "16 bytes, a UUID or the text of a ULID",
        }
    }
}

/// A column of a table, as the database describes it.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The declared type, as the database writes it.
    pub(crate) declared: String,
    pub(crate) class: Class,
    pub(crate) nullable: bool,
    /// Character set and collation, in databases where comparisons must state them.
    pub(crate) collation: Option<(String, String)>,
}

/// An index over whole columns and all rows.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub(crate) columns: Vec<String>,
    pub(crate) unique: bool,
}

/// The columns and indexes of an existing table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) columns: Vec<Column>,
    pub(crate) indexes: Vec<Index>,
}

impl Facts {
    pub(crate) fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    fn indexed(&self, columns: &[&str]) -> bool {
        self.indexes.iter().any(|index| {
            let first = index.columns.get(..columns.len());
            first.is_some_and(|first| first.iter().eq(columns.iter()))
        })
    }

    fn unique(&self, columns: &[&str]) -> bool {
        let whole = |index: &Index| index.unique && index.columns.iter().eq(columns.iter());
        self.indexes.iter().any(whole)
    }
}

/// How a database writes the suggested types and statements.
pub(crate) struct Dialect {
    pub(crate) tenant: &'static str,
    pub(crate) public: &'static str,
    pub(crate) internal: &'static str,
    /// `CREATE UNIQUE INDEX`, in the form that disturbs writers least.
    pub(crate) create_unique: &'static str,
}

/// What is wrong with a business table, and the statements that would fix it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Inspection {
    /// What is wrong. An empty list means that nothing is.
    pub findings: Vec<Finding>,
    /// Statements that would fix the table, in the database's dialect. Read them before running
    /// them: columns are suggested as nullable, because the table may have rows already.
    pub ddl: Vec<String>,
    unusable: bool,
}

impl Inspection {
    fn found(&mut self, severity: Severity, code: &'static str, found: String, fix: String) {
        self.findings.push(Finding { severity, code, found, fix });
    }

    fn refuse(&mut self, code: &'static str, found: String, fix: String) {
        self.unusable = true;
        self.found(Severity::Error, code, found, fix);
    }

    /// Returns whether nothing is wrong.
    pub fn clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Returns the facts of a table if its ids can be read.
///
/// # Errors
/// `Misconfigured`, with everything that is wrong with the table.
pub(crate) fn usable(names: &Names, facts: Option<Facts>, dialect: &Dialect) -> Result<Facts> {
    let inspection = inspect(names, facts.as_ref(), dialect);
    match facts {
        Some(facts) if !inspection.unusable => Ok(facts),
        _ => {
            let found: Vec<String> = inspection.findings.into_iter().map(|f| f.found).collect();
            let text = found.join("; ");
            Err(Error::new(ErrorKind::Misconfigured, "open the business table", text))
        }
    }
}

/// Inspects a table; `facts` is `None` if the table does not exist.
pub(crate) fn inspect(names: &Names, facts: Option<&Facts>, dialect: &Dialect) -> Inspection {
    let mut inspection = Inspection::default();
    let table = names.shown();
    let Some(facts) = facts else {
        let found = format!("there is no table {table}");
        let fix = String::from("check the name, the schema and the database of the connection");
        inspection.refuse("business-table-missing", found, fix);
        return inspection;
    };
    columns(&mut inspection, names, facts, dialect);
    if facts.column(&names.key).is_some() && !facts.unique(&[&names.key]) {
        let found =
            format!("{} of {table} is not unique, so a backfill would skip rows", names.key);
        let fix =
            String::from("choose the primary key, or a column with a unique index, as the key");
        inspection.refuse("business-key-not-unique", found, fix);
    }
    index(&mut inspection, names, facts, dialect);
    inspection
}

fn columns(inspection: &mut Inspection, names: &Names, facts: &Facts, dialect: &Dialect) {
    let table = names.shown();
    let roles = [
        (Role::Key, Some(&names.key), None),
        (Role::Tenant, names.tenant.as_ref(), Some(dialect.tenant)),
        (Role::Public, Some(&names.public), Some(dialect.public)),
        (Role::Internal, Some(&names.internal), Some(dialect.internal)),
    ];
    for (role, name, suggested) in roles {
        let Some(name) = name else { continue };
        let Some(column) = facts.column(name) else {
            let found = format!("{table} has no column {name}");
            let fix = String::from("name the right column, or add it and fill it");
            inspection.refuse("business-column-missing", found, fix);
            let add = |declared| {
                let (from, column) = (names.from(), names.quoted(name));
                format!("ALTER TABLE {from} ADD COLUMN {column} {declared};")
            };
            inspection.ddl.extend(suggested.map(add));
            continue;
        };
        if !role.takes(column.class) {
            let found = format!(
                "column {name} of {table} is {:?}, and should hold {}",
                column.declared,
                role.wants()
            );
            let fix = String::from("name the right column, or change its type");
            inspection.refuse("business-column-type", found, fix);
        }
        if column.nullable {
            let found = format!("column {name} of {table} may be null");
            let fix = String::from("make it NOT NULL once every row has a value");
            inspection.found(Severity::Warning, "business-column-nullable", found, fix);
        }
        let folds = |(_, collation): &(String, String)| !collation.ends_with("_bin");
        if role == Role::Public && column.collation.as_ref().is_some_and(folds) {
            let found = format!(
                "{name} of {table} is compared by a collation that may treat two ids as equal"
            );
            let fix = format!("declare it {}", dialect.public);
            inspection.found(Severity::Warning, "business-collation", found, fix);
        }
    }
}

/// Adds a finding if no unique index serves lookups by tenant and public id.
fn index(inspection: &mut Inspection, names: &Names, facts: &Facts, dialect: &Dialect) {
    let public = names.public.as_str();
    let wanted: Vec<&str> = names.tenant.as_deref().into_iter().chain([public]).collect();
    if facts.unique(&wanted) || facts.unique(&[public]) {
        return;
    }
    let (table, list) = (names.shown(), wanted.join(", "));
    let fix =
        String::from("create the suggested index; rows that share an id must be changed first");
    if facts.indexed(&wanted) {
        let found = format!("the index of {table} on ({list}) is not unique");
        inspection.found(Severity::Error, "business-index-not-unique", found, fix);
    } else {
        let found = format!("{table} has no index that begins with ({list}), in this order");
        inspection.found(Severity::Error, "business-index-missing", found, fix);
    }
    let columns: Vec<String> = wanted.iter().map(|name| names.quoted(name)).collect();
    let name =
        names.quoted(&format!("uk_{}_public", names.table.chars().take(50).collect::<String>()));
    let (create, from, columns) = (dialect.create_unique, names.from(), columns.join(", "));
    inspection.ddl.push(format!("{create} {name} ON {from} ({columns});"));
}
