//! The schema on MySQL and MariaDB: its migrations, and how two instances take turns.
//!
//! Every DDL statement commits by itself, so a migration is written to be run again after a crash
//! in its middle (`IF NOT EXISTS`), and an advisory lock keeps a second instance out.

use std::collections::BTreeMap;

use semel_core::store::{Error, ErrorKind, Finding, Result, Severity};
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::ledger::failed;
use super::statement::CLOCK;
use crate::migrate::{self, Applied, ID_MAP, IDENTITY, Migration, Migrator, RECORD, Shape};
use crate::outbox::OUTBOX;
use crate::routine::{self, Dialect};

/// The migrations, in order.
pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "ledger",
        sql: include_str!("../../migrations/mysql/0001_ledger.sql"),
    },
    Migration {
        version: 2,
        name: "outbox",
        sql: include_str!("../../migrations/mysql/0002_outbox.sql"),
    },
    Migration {
        version: 3,
        name: "id map",
        sql: include_str!("../../migrations/mysql/0003_idmap.sql"),
    },
    Migration {
        version: 4,
        name: "outbox written by others",
        sql: include_str!("../../migrations/mysql/0004_outbox_written_by_others.sql"),
    },
    Migration {
        version: 5,
        name: "procedures",
        sql: include_str!("../../migrations/mysql/0005_procedures.sql"),
    },
];

const HISTORY: &str = "CREATE TABLE IF NOT EXISTS semel_migration (
    version    INT            NOT NULL PRIMARY KEY,
    checksum   VARBINARY(64)  NOT NULL,
    applied_at BIGINT         NOT NULL
) ENGINE = InnoDB";

/// Takes the lock under which one instance migrates. Its name depends on the database: two
/// databases on one server do not wait for each other.
const LOCK: &str = "SELECT GET_LOCK(CONCAT('semel:', LEFT(SHA2(DATABASE(), 256), 16)), 60)";
const UNLOCK: &str = "SELECT RELEASE_LOCK(CONCAT('semel:', LEFT(SHA2(DATABASE(), 256), 16)))";

/// Returns the whole schema as a script for the clients `mysql` and `mariadb`, which would cut a
/// procedure at its first semicolon under the usual delimiter.
pub(crate) fn print() -> String {
    let text = migrate::print("MySQL 8 and MariaDB 10.6", MIGRATIONS, |migration| {
        let Migration { version, .. } = migration;
        format!(
            "{HISTORY};\nINSERT IGNORE INTO semel_migration (version, checksum, applied_at) VALUES\n    \
             ({version}, '{}', {CLOCK});",
            migration.checksum()
        )
    });
    let procedures = MIGRATIONS.iter().filter(|migration| migration.sql.contains("PROCEDURE"));
    procedures.fold(text, |text, Migration { sql, .. }| {
        let sql = sql.trim_end();
        text.replace(sql, &format!("DELIMITER //\n{sql}\n//\nDELIMITER ;"))
    })
}

/// The connection over which the schema is migrated.
pub(crate) struct SchemaMigrator(pub(crate) MySqlConnection);

impl Migrator for SchemaMigrator {
    async fn enter(&mut self) -> Result<()> {
        let row = sqlx::query(LOCK).fetch_one(&mut self.0).await.map_err(migrating)?;
        let entered: Option<i64> = row.try_get(0).map_err(migrating)?;
        if entered != Some(1) {
            let text =
                "another instance has been migrating for a minute; try again when it is done";
            return Err(Error::new(ErrorKind::Unavailable, "migrate", text));
        }
        sqlx::raw_sql(HISTORY).execute(&mut self.0).await.map_err(migrating)?;
        Ok(())
    }

    async fn applied(&mut self) -> Result<Vec<Applied>> {
        applied(&mut self.0).await
    }

    async fn run(&mut self, migration: &Migration) -> Result<()> {
        match migration.version {
            1 => {
                refuse_other_table(&RECORD, ledger_table(&mut self.0).await?)?;
                refuse_other_table(&migrate::CLOCK, shape(&mut self.0, &migrate::CLOCK).await?)?;
            }
            2 => {
                let mut findings = outbox_table(&mut self.0).await?;
                // A later migration adds this column.
                findings.retain(|finding| !finding.found.ends_with("no column in_partition"));
                refuse_other_table(&OUTBOX, findings)?;
            }
            3 => refuse_other_table(&ID_MAP, map_table(&mut self.0).await?)?,
            _ => {}
        }
        sqlx::raw_sql(migration.sql).execute(&mut self.0).await.map_err(migrating)?;
        Ok(())
    }

    async fn note(&mut self, migration: &Migration, checksum: &str) -> Result<()> {
        let text = format!(
            "INSERT IGNORE INTO semel_migration (version, checksum, applied_at) \
             VALUES (?, ?, {CLOCK})"
        );
        let query = sqlx::query(AssertSqlSafe(text))
            .bind(migration.version)
            .bind(checksum.as_bytes().to_vec());
        query.execute(&mut self.0).await.map_err(migrating)?;
        Ok(())
    }

    async fn leave(&mut self) -> Result<()> {
        sqlx::query(UNLOCK).fetch_one(&mut self.0).await.map_err(migrating)?;
        Ok(())
    }
}

fn migrating(error: sqlx::Error) -> Error {
    failed("migrate", error)
}

async fn applied(connection: &mut MySqlConnection) -> Result<Vec<Applied>> {
    let text = "SELECT version, checksum FROM semel_migration ORDER BY version";
    let rows = sqlx::query(text).fetch_all(connection).await.map_err(migrating)?;
    let read = |row: &sqlx::mysql::MySqlRow| {
        let checksum: Vec<u8> = row.try_get(1)?;
        Ok(Applied {
            version: row.try_get(0)?,
            checksum: String::from_utf8_lossy(&checksum).into(),
        })
    };
    rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(migrating)
}

/// Checks the schema and returns what is missing or wrong.
pub(crate) async fn verify(connection: &mut MySqlConnection) -> Result<Vec<Finding>> {
    let history = "SELECT CAST(table_name AS BINARY) FROM information_schema.tables \
                   WHERE table_schema = DATABASE() AND table_name = ?";
    let done = if names(connection, history, "semel_migration").await?.is_empty() {
        Vec::new()
    } else {
        applied(connection).await?
    };
    let mut findings = migrate::history(MIGRATIONS, &done);
    findings.extend(ledger_table(connection).await?);
    findings.extend(shape(connection, &migrate::CLOCK).await?);
    findings.extend(outbox_table(connection).await?);
    findings.extend(map_table(connection).await?);
    findings.extend(procedures(connection, &done).await?);
    migrate::advise_on_missing_tables(&mut findings);
    Ok(findings)
}

/// Reports procedures that are missing or changed.
async fn procedures(connection: &mut MySqlConnection, done: &[Applied]) -> Result<Vec<Finding>> {
    let text = "SELECT CAST(routine_name AS BINARY), CAST(routine_definition AS BINARY) \
                FROM information_schema.routines \
                WHERE routine_schema = DATABASE() AND routine_type = 'PROCEDURE'";
    let fail = |error| failed("verify", error);
    let rows = sqlx::query(text).fetch_all(&mut *connection).await.map_err(fail)?;
    let body = |row: &sqlx::mysql::MySqlRow| {
        let (name, text): (Vec<u8>, Option<Vec<u8>>) = (row.try_get(0)?, row.try_get(1)?);
        let body = text.map(|text| {
            let body = routine::squeezed(&String::from_utf8_lossy(&text));
            let inner = body.strip_prefix("BEGIN").and_then(|rest| rest.strip_suffix("END"));
            inner.map_or_else(|| body.clone(), str::to_owned)
        });
        Ok((String::from_utf8_lossy(&name).into_owned(), body))
    };
    let found: BTreeMap<String, Option<String>> =
        rows.iter().map(body).collect::<sqlx::Result<_>>().map_err(fail)?;
    let asked = sqlx::query("SELECT VERSION() NOT LIKE '%MariaDB%'").fetch_one(&mut *connection);
    let is_mysql: i64 = asked.await.and_then(|row| row.try_get(0)).map_err(fail)?;
    let dialect = Dialect {
        create: "CREATE PROCEDURE ",
        begin: "\nBEGIN\n",
        end: "\nEND;",
        is_mysql: is_mysql == 1,
    };
    Ok(routine::compare(&routine::installed(MIGRATIONS, done, &dialect), &found))
}

/// Fails if a table with the name of a shape exists but has another shape. A migration uses IF NOT
/// EXISTS, because it may have been interrupted after its first statement, so an existing table is
/// accepted only if it has the right shape.
fn refuse_other_table(shape: &Shape, findings: Vec<Finding>) -> Result<()> {
    if findings.iter().any(|finding| finding.code == "sql-table-missing") {
        return Ok(());
    }
    let Some(wrong) = findings.iter().find(|finding| finding.severity == Severity::Error) else {
        return Ok(());
    };
    let text = format!(
        "there is a table {} that this crate did not make: {}; rename it or use another database",
        shape.table, wrong.found
    );
    Err(Error::new(ErrorKind::Misconfigured, "migrate", text))
}

/// Returns what the ledger's table lacks. Its primary key keeps a key from being granted twice, and
/// the sweeper and the operators use its generated columns.
async fn ledger_table(connection: &mut MySqlConnection) -> Result<Vec<Finding>> {
    let mut findings = shape(connection, &RECORD).await?;
    if findings.iter().any(|finding| finding.code == "sql-table-missing") {
        return Ok(findings);
    }
    // Includes the length of a prefix, since an index on a prefix could treat two digests as equal.
    let primary = "SELECT CAST(CONCAT(column_name, COALESCE(CONCAT('(', sub_part, ')'), '')) AS \
                   BINARY) FROM information_schema.statistics WHERE table_schema = DATABASE() \
                   AND index_name = 'PRIMARY' AND table_name = ? ORDER BY seq_in_index";
    let primary = names(connection, primary, RECORD.table).await?;
    if !matches!(primary.as_slice(), [column] if column.eq_ignore_ascii_case("digest")) {
        let found = match primary.as_slice() {
            [] => "table semel_record has no primary key: one key can be granted twice".into(),
            other => format!(
                "the primary key of semel_record is ({}), not (digest): one key can be granted \
                 twice, or two keys share a record",
                other.join(", ")
            ),
        };
        findings.push(wrong("mysql-primary-key", found));
    }
    let generated = "SELECT CAST(column_name AS BINARY) FROM information_schema.columns \
                     WHERE table_schema = DATABASE() AND table_name = ? \
                     AND COALESCE(generation_expression, '') <> ''";
    let generated = names(connection, generated, RECORD.table).await?;
    for column in ["sweep_at", "attention", "attention_at"] {
        if !generated.iter().any(|name| name.eq_ignore_ascii_case(column)) {
            let found = format!(
                "column {column} of semel_record is not generated: no statement writes it, so \
                 records are never swept or never shown"
            );
            findings.push(wrong("mysql-not-generated", found));
        }
    }
    Ok(findings)
}

/// Returns what the outbox's table lacks. Its unique key keeps an event from being stored twice,
/// and without AUTO_INCREMENT the rows would have no order.
async fn outbox_table(connection: &mut MySqlConnection) -> Result<Vec<Finding>> {
    let mut findings = shape(connection, &OUTBOX).await?;
    if findings.iter().any(|finding| finding.code == "sql-table-missing") {
        return Ok(findings);
    }
    let unique = "SELECT CAST(column_name AS BINARY) FROM information_schema.statistics \
                  WHERE table_schema = DATABASE() AND table_name = ? AND non_unique = 0 \
                  AND index_name = 'semel_outbox_event' ORDER BY seq_in_index";
    let unique = names(connection, unique, OUTBOX.table).await?;
    if unique != ["id", "tenant"] {
        let found =
            "table semel_outbox has no unique key (id, tenant): an event can be in it twice";
        findings.push(wrong("mysql-unique-key", found.into()));
    }
    let counted = "SELECT CAST(column_name AS BINARY) FROM information_schema.columns \
                   WHERE table_schema = DATABASE() AND table_name = ? AND extra LIKE '%auto_incr%'";
    if names(connection, counted, OUTBOX.table).await? != ["sequence"] {
        let found = "column sequence of semel_outbox is not AUTO_INCREMENT: events have no order";
        findings.push(wrong("mysql-not-counted", found.into()));
    }
    Ok(findings)
}

/// Returns what the map's table lacks. Its two keys must be unique, and distinguish ids that differ
/// in one byte.
async fn map_table(connection: &mut MySqlConnection) -> Result<Vec<Finding>> {
    let mut findings = shape(connection, &ID_MAP).await?;
    if findings.iter().any(|finding| finding.code == "sql-table-missing") {
        return Ok(findings);
    }
    // Includes the length of a prefix, since an index on a prefix could treat two ids as equal.
    let unique = "SELECT CAST(GROUP_CONCAT(CONCAT(column_name, COALESCE(CONCAT('(', sub_part, ')'), \
                  '')) ORDER BY seq_in_index SEPARATOR ', ') AS BINARY) \
                  FROM information_schema.statistics WHERE table_schema = DATABASE() \
                  AND table_name = ? AND non_unique = 0 GROUP BY index_name";
    let unique = names(connection, unique, ID_MAP.table).await?;
    for key in ID_MAP.keys.iter().map(|key| key.join(", ")) {
        if !unique.contains(&key) {
            let found = format!("table semel_id_map does not keep ({key}) unique");
            findings.push(wrong("mysql-unique-key", found));
        }
    }
    let collated = "SELECT CAST(column_name AS BINARY) FROM information_schema.columns \
                    WHERE table_schema = DATABASE() AND table_name = ? \
                    AND collation_name IS NOT NULL";
    for column in names(connection, collated, ID_MAP.table).await? {
        if IDENTITY.contains(&column.as_str()) {
            let found = format!(
                "column {column} of semel_id_map has a collation: ids that differ are taken for one"
            );
            findings.push(wrong("mysql-collation", found));
        }
    }
    Ok(findings)
}

/// Returns which columns and indexes a table lacks.
async fn shape(connection: &mut MySqlConnection, shape: &Shape) -> Result<Vec<Finding>> {
    let columns = "SELECT CAST(column_name AS BINARY) FROM information_schema.columns \
                   WHERE table_schema = DATABASE() AND table_name = ?";
    let indexes = "SELECT DISTINCT CAST(index_name AS BINARY) FROM information_schema.statistics \
                   WHERE table_schema = DATABASE() AND table_name = ?";
    let columns = names(connection, columns, shape.table).await?;
    let indexes = names(connection, indexes, shape.table).await?;
    Ok(migrate::shape(shape, &columns, &indexes))
}

fn wrong(code: &'static str, found: String) -> Finding {
    let fix = "compare the table with the script of `semel migrate print` and make it so".into();
    Finding { severity: Severity::Error, code, found, fix }
}

async fn names(
    connection: &mut MySqlConnection,
    text: &'static str,
    table: &str,
) -> Result<Vec<String>> {
    let fail = |error| failed("verify", error);
    let rows =
        sqlx::query(text).bind(table.to_owned()).fetch_all(connection).await.map_err(fail)?;
    let name = |row: &sqlx::mysql::MySqlRow| {
        let name: Vec<u8> = row.try_get(0)?;
        Ok(String::from_utf8_lossy(&name).into_owned())
    };
    rows.iter().map(name).collect::<sqlx::Result<_>>().map_err(fail)
}
