//! Migrates and checks the schema: numbered migrations inside the binary, each applied once.
//!
//! Each dialect has its own files and its own `Migrator`, which keeps two instances from migrating
//! at once. There are no down migrations: undoing one would lose records.

use std::fmt::Write as _;

use semel_core::fingerprint::Fingerprint;
use semel_core::store::{Error, ErrorKind, Finding, Result, Severity};

/// One numbered step of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The number of the migration, counted from 1, in the order of application.
    pub version: i32,
    /// A short name for what the migration creates.
    pub name: &'static str,
    /// The statements of the migration.
    pub sql: &'static str,
}

impl Migration {
    /// Returns the SHA-256 of the statements in hex. It shows whether a database ran exactly these.
    pub fn checksum(&self) -> String {
        // The first byte of a fingerprint is its scheme; the hash follows.
        let hash = Fingerprint::of_bytes(self.sql.as_bytes());
        hash.as_bytes().iter().skip(1).fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// A migration that the history of a database contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) version: i32,
    pub(crate) checksum: String,
}

/// The columns, indexes and unique keys that the statements need in a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) table: &'static str,
    pub(crate) columns: &'static [&'static str],
    pub(crate) indexes: &'static [&'static str],
    /// The sets of columns that must be unique, each by an index over exactly these columns: the
    /// statements are only correct with them.
    pub(crate) keys: &'static [&'static [&'static str]],
}

/// The ledger's table, the same in every dialect.
pub(crate) const RECORD: Shape = Shape {
    table: "semel_record",
    columns: &crate::row::COLUMNS,
    indexes: &[
        "semel_record_sweep",
        "semel_record_open",
        "semel_record_reference",
        "semel_record_tenant",
    ],
    keys: &[&["digest"]],
};

/// The table with the watermark of the database's clock.
pub(crate) const CLOCK: Shape = Shape {
    table: "semel_clock",
    columns: &["id", "trusted", "suspect"],
    indexes: &[],
    keys: &[&["id"]],
};

/// The id map's table, the same in every dialect. It is created whether or not the feature `ids` is on.
pub(crate) const ID_MAP: Shape = Shape {
    table: "semel_id_map",
    columns: &[
        "resource_type",
        "tenant",
        "public_id",
        "internal_id",
        "status",
        "created_at",
        "updated_at",
    ],
    indexes: &["semel_id_map_internal"],
    keys: &[&["resource_type", "tenant", "public_id"], &["resource_type", "tenant", "internal_id"]],
};

/// The text columns of [`ID_MAP`] that identify a row. The database must compare them byte for
/// byte.
pub(crate) const IDENTITY: [&str; 3] = ["resource_type", "tenant", "public_id"];

/// The connection over which one `apply` migrates a database.
///
/// Between `enter` and `leave` no other instance migrates. If the database has transactional DDL,
/// everything in between is one transaction; if not (MySQL commits every DDL statement), the
/// statements are written so that running them again changes nothing.
pub(crate) trait Migrator: Send {
    /// Waits until no other instance migrates, and creates the table `semel_migration` if it does
    /// not exist.
    fn enter(&mut self) -> impl Future<Output = Result<()>> + Send;
    /// Returns the migrations that were applied, in the order of their versions.
    fn applied(&mut self) -> impl Future<Output = Result<Vec<Applied>>> + Send;
    /// Runs the statements of a migration.
    fn run(&mut self, migration: &Migration) -> impl Future<Output = Result<()>> + Send;
    /// Records that `migration` was applied, at the time of the database's clock.
    fn note(
        &mut self,
        migration: &Migration,
        checksum: &str,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Ends the exclusion that `enter` began, so that another instance can migrate.
    fn leave(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// Applies the missing migrations in order and returns their versions.
///
/// # Errors
/// `Misconfigured` if the database ran other statements under the number of a known migration;
/// nothing is changed then.
pub(crate) async fn apply<M: Migrator>(migrator: &mut M, all: &[Migration]) -> Result<Vec<i32>> {
    migrator.enter().await?;
    let outcome = apply_missing(migrator, all).await;
    match outcome {
        Ok(versions) => migrator.leave().await.map(|()| versions),
        Err(error) => {
            // The first failure is reported; the lock ends with the connection anyway.
            let _ = migrator.leave().await;
            Err(error)
        }
    }
}

async fn apply_missing<M: Migrator>(migrator: &mut M, all: &[Migration]) -> Result<Vec<i32>> {
    let applied = migrator.applied().await?;
    if let Some(finding) = history(all, &applied).into_iter().find(|f| f.code == CHANGED) {
        let text = format!("{}; {}", finding.found, finding.fix);
        return Err(Error::new(ErrorKind::Misconfigured, "migrate", text));
    }
    let mut versions = Vec::new();
    for migration in all {
        if applied.iter().any(|done| done.version == migration.version) {
            continue;
        }
        migrator.run(migration).await?;
        migrator.note(migration, &migration.checksum()).await?;
        versions.push(migration.version);
    }
    Ok(versions)
}

/// Returns all statements as one script, for migrating by hand.
pub(crate) fn print(dialect: &str, all: &[Migration], note: fn(&Migration) -> String) -> String {
    let mut text = format!(
        "-- Semel's schema for {dialect}. Written by the crate (`print` of its migrations); not \
         edited by hand.\n"
    );
    for migration in all {
        let Migration { version, name, sql } = migration;
        let _ = write!(text, "\n-- {version}: {name}\n{}\n{}\n", sql.trim_end(), note(migration));
    }
    text
}

const CHANGED: &str = "sql-migration-changed";
const MISSING: &str = "sql-migration-missing";
const ABSENT: &str = "sql-table-missing";

/// Compares the history of a database with the migrations of this program.
pub(crate) fn history(all: &[Migration], applied: &[Applied]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for migration in all {
        let Migration { version, name, .. } = migration;
        match applied.iter().find(|done| done.version == *version) {
            None => findings.push(Finding {
                severity: Severity::Error,
                code: MISSING,
                found: format!("migration {version} ({name}) was never applied"),
                fix: "call `migrate`, or run `semel migrate apply`".into(),
            }),
            Some(done) if done.checksum != migration.checksum() => findings.push(Finding {
                severity: Severity::Error,
                code: CHANGED,
                found: format!("migration {version} ({name}) was applied with other statements"),
                fix: "find out what changed it, and compare the schema with the script of `semel \
                      migrate print`"
                    .into(),
            }),
            Some(_) => {}
        }
    }
    let known = all.iter().map(|migration| migration.version).max().unwrap_or(0);
    let newest = applied.iter().map(|done| done.version).max().unwrap_or(0);
    if newest > known {
        findings.push(Finding {
            severity: Severity::Warning,
            code: "sql-migration-newer",
            found: format!("the schema is at version {newest}, this program knows {known}"),
            fix: "finish the roll-out of the newer program".into(),
        });
    }
    findings
}

/// Corrects the advice for missing tables if the history contains every migration: migrating would
/// not create them again.
pub(crate) fn advise_on_missing_tables(findings: &mut [Finding]) {
    if findings.iter().any(|finding| finding.code == MISSING) {
        return;
    }
    for finding in findings.iter_mut().filter(|finding| finding.code == ABSENT) {
        finding.fix = "create it as in the script of `semel migrate print`; migrating does not, \
                       because the history has its migration already"
            .into();
    }
}

/// Returns the columns and indexes of `shape` that a table lacks. `columns` and `indexes` are the
/// names that the database lists; a table without any column does not exist.
pub(crate) fn shape(shape: &Shape, columns: &[String], indexes: &[String]) -> Vec<Finding> {
    let Shape { table, .. } = shape;
    if columns.is_empty() {
        return vec![Finding {
            severity: Severity::Error,
            code: ABSENT,
            found: format!("table {table} does not exist"),
            fix: "call `migrate`, or run `semel migrate apply`".into(),
        }];
    }
    let lacks =
        |found: &[String], name: &&&str| !found.iter().any(|n| n.eq_ignore_ascii_case(name));
    let column = shape.columns.iter().filter(|name| lacks(columns, name)).map(|name| Finding {
        severity: Severity::Error,
        code: "sql-column-missing",
        found: format!("table {table} has no column {name}"),
        fix: "compare the table with the script of `semel migrate print` and add the column".into(),
    });
    let index = shape.indexes.iter().filter(|name| lacks(indexes, name)).map(|name| Finding {
        severity: Severity::Warning,
        code: "sql-index-missing",
        found: format!("table {table} has no index {name}; sweeping or listing will be slow"),
        fix: "create the index as in the script of `semel migrate print`".into(),
    });
    column.chain(index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Migration = Migration { version: 1, name: "ledger", sql: "create table a (b int)" };
    const TWO: Migration = Migration { version: 2, name: "more", sql: "create table c (d int)" };

    fn applied(migration: &Migration) -> Applied {
        Applied { version: migration.version, checksum: migration.checksum() }
    }

    #[test]
    fn a_history_is_compared_with_the_known_migrations() {
        assert_eq!(history(&[ONE, TWO], &[applied(&ONE), applied(&TWO)]), []);
        let missing = history(&[ONE, TWO], &[applied(&ONE)]);
        assert!(missing[0].found.contains("migration 2 (more) was never applied"));
        let other = Applied { version: 1, checksum: "00".into() };
        assert_eq!(history(&[ONE], &[other])[0].code, CHANGED);
        assert_eq!(history(&[ONE], &[applied(&ONE), applied(&TWO)])[0].code, "sql-migration-newer");
    }

    #[test]
    fn a_missing_column_and_a_missing_index_are_reported() {
        let columns: Vec<String> =
            RECORD.columns.iter().filter(|c| **c != "fence").map(ToString::to_string).collect();
        let indexes = ["semel_record_open", "SEMEL_RECORD_REFERENCE", "semel_record_tenant"];
        let indexes = indexes.map(str::to_owned);
        let found: Vec<String> =
            shape(&RECORD, &columns, &indexes).into_iter().map(|f| f.found).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("no column fence"));
        assert!(found[1].contains("no index semel_record_sweep"));
        assert_eq!(shape(&RECORD, &[], &[])[0].code, ABSENT);
    }

    #[test]
    fn a_missing_table_that_was_migrated_is_created_by_hand() {
        for (done, fix) in
            [(&[][..], "semel migrate apply"), (&[applied(&ONE)], "semel migrate print")]
        {
            let mut found = shape(&RECORD, &[], &[]);
            found.extend(history(&[ONE], done));
            advise_on_missing_tables(&mut found);
            assert!(found[0].fix.contains(fix), "{found:?}");
        }
    }
}
