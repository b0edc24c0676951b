//! Checks the set-up of a server for settings that break or weaken a guarantee.
//!
//! Only reads settings. `schema` checks the schema.

use semel_core::event::{MAX_PACKED_ATTRIBUTES, MAX_PAYLOAD};
use semel_core::store::{Finding, Replication, Result, Severity};
use sqlx::{MySqlConnection, Row};

use super::replication::Observed;
use super::session::{Flavour, OVERHEAD, Server, failed};
use super::variables::{finding, is_on};

/// Returns all findings about the server, and about the columns that identify records.
pub(crate) async fn check(
    connection: &mut MySqlConnection,
    server: &Server,
    declared: Option<Replication>,
    observed: &Observed,
) -> Result<Vec<Finding>> {
    let mut findings = observed.findings(declared);
    about_the_server(server, &mut findings);
    about_durability(connection, server, &mut findings).await?;
    about_identity(connection, &mut findings).await?;
    Ok(findings)
}

fn about_the_server(server: &Server, findings: &mut Vec<Finding>) {
    if server.flavour == Flavour::MySql && !server.version.starts_with("9.") {
        findings.push(finding(
            Severity::Warning,
            "mysql-not-run",
            format!(
                "the server is MySQL {}; this release was tested on MySQL 9.7 and on MariaDB",
                server.version
            ),
            "run the conformance suite of semel-testkit against your server before relying on it",
        ));
    }
    if server.timeout_rolls_back {
        findings.push(finding(
            Severity::Warning,
            "mysql-rollback-on-timeout",
            "innodb_rollback_on_timeout is on: a contended key rolls the caller's transaction back"
                .into(),
            "turn it off, or expect `RetryTransaction` instead of `InProgress`",
        ));
    }
    let largest = MAX_PAYLOAD + MAX_PACKED_ATTRIBUTES + OVERHEAD;
    if server.packet < largest {
        findings.push(finding(
            Severity::Warning,
            "mysql-packet",
            format!(
                "max_allowed_packet is {} bytes: events that take more are refused when they are \
                 appended and given up when they are received{}",
                server.packet,
                if server.packet < 4 << 20 { ", and outcomes near 1 MiB may not fit" } else { "" }
            ),
            "set max_allowed_packet to at least 16 MiB",
        ));
    }
}

async fn about_durability(
    connection: &mut MySqlConnection,
    server: &Server,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let text = match server.flavour {
        Flavour::MariaDb => {
            "SELECT CAST(@@global.read_only AS CHAR), CAST(@@innodb_read_only AS CHAR), \
             CAST(@@global.innodb_flush_log_at_trx_commit AS CHAR), CAST(@@log_bin AS CHAR), \
             CAST(@@global.sync_binlog AS CHAR), CAST(@@global.tx_isolation AS CHAR), \
             CAST(@@global.binlog_format AS CHAR)"
        }
        Flavour::MySql => {
            "SELECT CAST(@@global.read_only AS CHAR), CAST(@@innodb_read_only AS CHAR), \
             CAST(@@global.innodb_flush_log_at_trx_commit AS CHAR), CAST(@@log_bin AS CHAR), \
             CAST(@@global.sync_binlog AS CHAR), CAST(@@global.transaction_isolation AS CHAR), \
             CAST(@@global.binlog_format AS CHAR)"
        }
    };
    let fail = |error| failed("check", error);
    let row = sqlx::query(text).persistent(false).fetch_one(connection).await.map_err(fail)?;
    let read = |i: usize| row.try_get::<String, _>(i).map_err(fail);
    findings.extend(judge(&Settings {
        read_only: is_on(&read(0)?) || is_on(&read(1)?),
        flush: read(2)?,
        log_bin: is_on(&read(3)?),
        sync_binlog: read(4)?,
        isolation: read(5)?,
        binlog_format: read(6)?,
    }));
    Ok(())
}

struct Settings {
    read_only: bool,
    flush: String,
    log_bin: bool,
    sync_binlog: String,
    isolation: String,
    binlog_format: String,
}

fn judge(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |severity, code, found: String, fix| {
        findings.push(finding(severity, code, found, fix));
    };
    if settings.read_only {
        let found = "the server is read-only, so nothing can be claimed on it".into();
        add(Severity::Error, "mysql-read-only", found, "connect to the primary");
    }
    if settings.flush != "1" {
        let found = format!(
            "innodb_flush_log_at_trx_commit is {}: a crash of the machine forgets acknowledged claims",
            settings.flush
        );
        add(Severity::Error, "mysql-flush-log", found, "set it to 1");
    }
    if settings.log_bin && settings.sync_binlog != "1" {
        let found = format!(
            "sync_binlog is {} while the binary log is on: after a crash replicas may have more or \
             fewer claims than the primary",
            settings.sync_binlog
        );
        add(Severity::Warning, "mysql-sync-binlog", found, "set it to 1");
    }
    if settings.log_bin && settings.binlog_format == "STATEMENT" {
        let found =
            "binlog_format is STATEMENT, with which this server refuses every write at READ \
                     COMMITTED"
                .into();
        add(Severity::Error, "mysql-binlog-format", found, "set it to ROW or MIXED");
    }
    if matches!(settings.isolation.as_str(), "READ-UNCOMMITTED" | "SERIALIZABLE") {
        let found = format!("the server's default isolation is {}", settings.isolation);
        let fix = "use READ-COMMITTED for transactions in which you call `open_in`; ours set it \
                   themselves";
        add(Severity::Warning, "mysql-isolation", found, fix);
    }
    findings
}

async fn about_identity(
    connection: &mut MySqlConnection,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let fail = |error| failed("check", error);
    let text = "SELECT CAST(column_name AS BINARY), CAST(data_type AS BINARY) \
                FROM information_schema.columns WHERE table_schema = DATABASE() \
                AND table_name = 'semel_record' AND collation_name IS NOT NULL";
    let rows =
        sqlx::query(text).persistent(false).fetch_all(&mut *connection).await.map_err(fail)?;
    for row in rows {
        let name: Vec<u8> = row.try_get(0).map_err(fail)?;
        let data_type: Vec<u8> = row.try_get(1).map_err(fail)?;
        let (name, data_type) =
            (String::from_utf8_lossy(&name), String::from_utf8_lossy(&data_type));
        findings.push(finding(
            Severity::Error,
            "mysql-collation",
            format!(
                "column {name} of semel_record is {data_type} with a collation, which merges keys"
            ),
            "change it back to the binary type of the script of `semel migrate print`",
        ));
    }
    let text = "SELECT CAST(engine AS BINARY) FROM information_schema.tables \
                WHERE table_schema = DATABASE() AND table_name = 'semel_record'";
    let row = sqlx::query(text).persistent(false).fetch_optional(connection).await.map_err(fail)?;
    if let Some(row) = row {
        let engine: Vec<u8> = row.try_get(0).map_err(fail)?;
        if !engine.eq_ignore_ascii_case(b"InnoDB") {
            findings.push(finding(
                Severity::Error,
                "mysql-engine",
                format!("semel_record is stored by {}", String::from_utf8_lossy(&engine)),
                "ALTER TABLE semel_record ENGINE = InnoDB",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_break_a_guarantee_are_reported_and_good_ones_are_not() {
        let good = || Settings {
            read_only: false,
            flush: "1".into(),
            log_bin: true,
            sync_binlog: "1".into(),
            isolation: "REPEATABLE-READ".into(),
            binlog_format: "MIXED".into(),
        };
        assert_eq!(judge(&good()), []);
        let codes =
            |settings: Settings| judge(&settings).into_iter().map(|f| f.code).collect::<Vec<_>>();
        assert_eq!(codes(Settings { read_only: true, ..good() }), ["mysql-read-only"]);
        assert_eq!(codes(Settings { flush: "2".into(), ..good() }), ["mysql-flush-log"]);
        assert_eq!(codes(Settings { sync_binlog: "0".into(), ..good() }), ["mysql-sync-binlog"]);
        let statement = Settings { binlog_format: "STATEMENT".into(), ..good() };
        assert_eq!(codes(statement), ["mysql-binlog-format"]);
        let off = Settings { log_bin: false, sync_binlog: "0".into(), ..good() };
        assert_eq!(codes(off), [""; 0]);
        let loose = Settings { isolation: "READ-UNCOMMITTED".into(), ..good() };
        assert_eq!(codes(loose), ["mysql-isolation"]);
    }
}
