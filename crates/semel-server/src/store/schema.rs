//! The schema of a store: what it lacks, and bringing it up to date.
//!
//! The stores verify their own schema. Here that is done before and after a migration: a complete history
//! does not prove that every table still exists.

use std::path::Path;

use semel_core::store::{Finding, Severity};
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;

use super::{OpenMode, StoreHandle, StoreKind, StoreUrl, unopened};
use crate::exit::ExitError;

/// The state of a schema after a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SchemaState {
    /// The versions that this migration applied.
    pub(crate) applied: Vec<i32>,
    /// What is still wrong.
    pub(crate) findings: Vec<Finding>,
}

/// A schema that can be compared and brought up to date.
pub(crate) trait Schema {
    async fn verify(&self) -> Result<Vec<Finding>, ExitError>;
    async fn migrate(&self) -> Result<Vec<i32>, ExitError>;
}

impl Schema for PgStore {
    async fn verify(&self) -> Result<Vec<Finding>, ExitError> {
        Ok(PgStore::verify(self).await?)
    }

    async fn migrate(&self) -> Result<Vec<i32>, ExitError> {
        Ok(PgStore::migrate(self).await?)
    }
}

impl Schema for MySqlStore {
    async fn verify(&self) -> Result<Vec<Finding>, ExitError> {
        Ok(MySqlStore::verify(self).await?)
    }

    async fn migrate(&self) -> Result<Vec<i32>, ExitError> {
        Ok(MySqlStore::migrate(self).await?)
    }
}

impl Schema for Path {
    async fn verify(&self) -> Result<Vec<Finding>, ExitError> {
        of_file(self).await
    }

    async fn migrate(&self) -> Result<Vec<i32>, ExitError> {
        SqliteStore::migrate_file(self).await.map_err(|error| unopened(self, error))
    }
}

/// Returns what the schema of a SQLite file lacks.
///
/// # Errors
/// The file cannot be opened.
pub(crate) async fn of_file(path: &Path) -> Result<Vec<Finding>, ExitError> {
    SqliteStore::verify_file(path).await.map_err(|error| unopened(path, error))
}

/// Returns what the schema at `url` lacks. Works on a database that has none of it yet.
///
/// # Errors
/// The store cannot be reached, or there is no such file.
pub(crate) async fn lacks(url: &StoreUrl) -> Result<Vec<Finding>, ExitError> {
    let cannot = |failure: ExitError| failure.during(format_args!("cannot verify {url}"));
    let found = match url.kind() {
        StoreKind::Sqlite => {
            let path = url.path().unwrap_or(Path::new(""));
            if !path.exists() {
                return Err(cannot(ExitError::unreachable("there is no such file")));
            }
            return of_file(path).await.map_err(cannot);
        }
        StoreKind::Postgres | StoreKind::MySql => {
            match StoreHandle::open(url, OpenMode::Inspect, "").await? {
                StoreHandle::Postgres(store) => store.verify().await,
                StoreHandle::MySql(store) => store.verify().await,
                StoreHandle::Sqlite(_) | StoreHandle::Redis(_) | StoreHandle::Memory(_) => {
                    Ok(Vec::new())
                }
            }
        }
        StoreKind::Redis | StoreKind::Memory => Ok(Vec::new()),
    };
    found.map_err(|error| cannot(error.into()))
}

/// Brings the schema at `url` up to date; a missing SQLite file is created.
pub(crate) async fn bring_up_at(url: &StoreUrl) -> Result<SchemaState, ExitError> {
    match url.kind() {
        StoreKind::Sqlite => match url.path().unwrap_or(Path::new("")) {
            path if path.exists() => bring_up(path).await,
            path => {
                let applied = path.migrate().await?;
                Ok(SchemaState { applied, findings: path.verify().await? })
            }
        },
        StoreKind::Postgres => bring_up(&PgStore::connect(url.secret()).await?).await,
        StoreKind::MySql => bring_up(&MySqlStore::connect(url.secret()).await?).await,
        StoreKind::Redis | StoreKind::Memory => Ok(SchemaState::default()),
    }
}

/// Applies missing migrations. Verifies first: the user of a service may lack the right to create tables.
pub(crate) async fn bring_up<S: Schema + ?Sized>(schema: &S) -> Result<SchemaState, ExitError> {
    let findings = schema.verify().await?;
    if !findings.iter().any(is_unapplied) {
        return Ok(SchemaState { applied: Vec::new(), findings });
    }
    let applied = schema.migrate().await?;
    Ok(SchemaState { applied, findings: schema.verify().await? })
}

/// Whether the finding is a migration that was not applied.
pub(crate) fn is_unapplied(finding: &Finding) -> bool {
    finding.code == "sql-migration-missing"
}

/// Refuses a schema that a store cannot work on. Warnings, such as a missing index or the migration of a
/// newer program, are left to `verify` and `doctor`.
///
/// # Errors
/// The first finding that is an error, with its fix.
pub(crate) fn usable(findings: &[Finding]) -> Result<(), ExitError> {
    match findings.iter().find(|finding| finding.severity == Severity::Error) {
        None => Ok(()),
        Some(Finding { found, fix, .. }) => Err(ExitError::failed(format_args!("{found}; {fix}"))),
    }
}
