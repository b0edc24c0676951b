//! The schema behind a place: what it lacks, and bringing it up to date.
//!
//! What is wrong with one is its store's to say. Here it is asked before and after, since a history
//! that says that everything was applied is no proof that it is still there.

use std::path::Path;

use semel_core::store::{Finding, Severity};
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;

use super::{StoreKind, StoreUrl, unopened};
use crate::exit::ExitError;

/// What became of a schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SchemaState {
    /// The versions that were applied now.
    pub(crate) applied: Vec<i32>,
    /// What is wrong with it still.
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

/// What the schema of a SQLite file lacks, in words.
///
/// # Errors
/// It cannot be opened.
pub(crate) async fn of_file(path: &Path) -> Result<Vec<Finding>, ExitError> {
    SqliteStore::verify_file(path).await.map_err(|error| unopened(path, error))
}

/// Brings the schema at `url` up to date; a SQLite file that is not there is made.
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

/// Applies what is missing. Asked first: a service's user need not be one who may make tables.
pub(crate) async fn bring_up<S: Schema + ?Sized>(schema: &S) -> Result<SchemaState, ExitError> {
    let findings = schema.verify().await?;
    if !findings.iter().any(is_unapplied) {
        return Ok(SchemaState { applied: Vec::new(), findings });
    }
    let applied = schema.migrate().await?;
    Ok(SchemaState { applied, findings: schema.verify().await? })
}

/// Whether this is a migration that was never applied.
pub(crate) fn is_unapplied(finding: &Finding) -> bool {
    finding.code == "sql-migration-missing"
}

/// Whether a store can work on such a schema. A warning, such as a missing index or the migration of a
/// newer program, is no reason not to: it is `verify`'s and `doctor`'s to tell.
///
/// # Errors
/// The first of the findings that are errors, with its fix.
pub(crate) fn usable(findings: &[Finding]) -> Result<(), ExitError> {
    match findings.iter().find(|finding| finding.severity == Severity::Error) {
        None => Ok(()),
        Some(Finding { found, fix, .. }) => Err(ExitError::failed(format_args!("{found}; {fix}"))),
    }
}
