//! The schema: numbered migrations inside the binary, applied once each, and a check in words.
//!
//! A dialect brings its files and its `Migrator`: how it keeps two instances from migrating at once.
//! There is no way back down: a ledger is never migrated to forget what happened.

use std::fmt::Write as _;

use semel_core::fingerprint::Fingerprint;
use semel_core::store::{Error, ErrorKind, Finding, Result, Severity};

/// One numbered step of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Its place in the order, counted from 1.
    pub version: i32,
    /// What it brings.
    pub name: &'static str,
    /// Its statements.
    pub sql: &'static str,
}

impl Migration {
    /// SHA-256 of the statements, in hex: shows whether the database ran exactly these.
    pub fn checksum(&self) -> String {
        // The first byte of a stored fingerprint names its scheme; the hash is what follows.
        let hash = Fingerprint::of_bytes(self.sql.as_bytes());
        hash.as_bytes().iter().skip(1).fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// What a database says that it has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) version: i32,
    pub(crate) checksum: String,
}

/// A table as our statements need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) table: &'static str,
    pub(crate) columns: &'static [&'static str],
    pub(crate) indexes: &'static [&'static str],
    /// What must be unique, each by an index over exactly these columns: all correctness rests on it.
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

/// What is remembered of the clock.
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

/// Its columns of text: two that differ in one byte are two.
pub(crate) const IDENTITY: [&str; 3] = ["resource_type", "tenant", "public_id"];

/// A database under construction, for as long as one `apply` takes.
///
/// Between `enter` and `leave` no other instance migrates. Where the database can, the whole of it
/// is one transaction; where it cannot (MySQL commits every DDL statement), the statements are
/// written so that running them again changes nothing.
pub(crate) trait Migrator: Send {
    /// Waits until no other instance migrates, and creates the table `semel_migration` if need be.
    fn enter(&mut self) -> impl Future<Output = Result<()>> + Send;
    /// What has been applied, in order of version.
    fn applied(&mut self) -> impl Future<Output = Result<Vec<Applied>>> + Send;
    /// Runs the statements of a migration.
    fn run(&mut self, migration: &Migration) -> impl Future<Output = Result<()>> + Send;
    /// Notes that it was run, by the database's clock.
    fn note(
        &mut self,
        migration: &Migration,
        checksum: &str,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Lets the next instance in.
    fn leave(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// Applies what is missing, in order; gives the versions that it applied.
///
/// # Errors
/// `Misconfigured` if the database ran other statements under one of our numbers; nothing is
/// changed then.
pub(crate) async fn apply<M: Migrator>(migrator: &mut M, all: &[Migration]) -> Result<Vec<i32>> {
    migrator.enter().await?;
    let outcome = apply_missing(migrator, all).await;
    match outcome {
        Ok(versions) => migrator.leave().await.map(|()| versions),
        Err(error) => {
            // The first failure is the one to report; the lock ends with the connection anyway.
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

/// All statements as one script, for migrating by hand.
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

/// What the history of a database says against ours.
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

/// Says of a missing table how it comes back: not by migrating, where the history has every migration.
pub(crate) fn unmended(findings: &mut [Finding]) {
    if findings.iter().any(|finding| finding.code == MISSING) {
        return;
    }
    for finding in findings.iter_mut().filter(|finding| finding.code == ABSENT) {
        finding.fix =
            "create it as in the script of `semel migrate print`; the history says that it \
                       was made, so migrating does not"
                .into();
    }
}

/// What a table lacks of its shape. Pass the names that the database lists for it; a table with no
/// column at all is not there.
pub(crate) fn shape(shape: &Shape, columns: &[String], indexes: &[String]) -> Vec<Finding> {
    let Shape { table, .. } = shape;
    if columns.is_empty() {
        return vec![Finding {
            severity: Severity::Error,
            code: ABSENT,
            found: format!("table {table} is not there"),
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
    fn a_history_is_compared_in_words() {
        assert_eq!(history(&[ONE, TWO], &[applied(&ONE), applied(&TWO)]), []);
        let missing = history(&[ONE, TWO], &[applied(&ONE)]);
        assert!(missing[0].found.contains("migration 2 (more) was never applied"));
        let other = Applied { version: 1, checksum: "00".into() };
        assert_eq!(history(&[ONE], &[other])[0].code, CHANGED);
        assert_eq!(history(&[ONE], &[applied(&ONE), applied(&TWO)])[0].code, "sql-migration-newer");
    }

    #[test]
    fn a_lacking_column_and_index_are_named() {
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
    fn a_table_that_the_history_knows_is_not_brought_back_by_migrating() {
        for (done, fix) in
            [(&[][..], "semel migrate apply"), (&[applied(&ONE)], "semel migrate print")]
        {
            let mut found = shape(&RECORD, &[], &[]);
            found.extend(history(&[ONE], done));
            unmended(&mut found);
            assert!(found[0].fix.contains(fix), "{found:?}");
        }
    }
}
