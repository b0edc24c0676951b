//! `semel migrate`: prints, applies or verifies the schema of a store.
//!
//! There are no down migrations: they would lose records.

use clap::{Args, Subcommand};
use semel_core::store::{Finding, Severity};
use semel_sql::mysql::MySqlStore;
use semel_sql::{postgres, sqlite};
use serde_json::json;

use super::audit::{AuditArgs, AuditEntry};
use super::check::finding;
use super::{StoreArgs, shown};
use crate::exit::ExitError;
use crate::settings::ServerSettings;
use crate::store::schema::{self, SchemaState};
use crate::store::{StoreKind, StoreUrl};

/// Print, apply or verify the schema of a store
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    at: StoreArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Print the schema as a SQL script, to apply it by hand; no store is opened
    Print {
        /// sqlite, postgres or mysql [default: the kind of the store]
        #[arg(value_parser = kind)]
        kind: Option<StoreKind>,
    },
    /// Bring the schema up to date; a missing SQLite file is created
    Apply {
        /// Show what would be applied, and change nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        by: AuditArgs,
    },
    /// Compare the schema with what this version needs
    Verify {
        /// Exit with code 3 on warnings too
        #[arg(long)]
        strict: bool,
    },
}

fn kind(text: &str) -> Result<StoreKind, String> {
    match text {
        "sqlite" => Ok(StoreKind::Sqlite),
        "postgres" | "postgresql" => Ok(StoreKind::Postgres),
        "mysql" | "mariadb" => Ok(StoreKind::MySql),
        "redis" => Ok(StoreKind::Redis),
        // A store's URL is accepted as well.
        other => other
            .parse()
            .map(|url: StoreUrl| url.kind())
            .map_err(|_| "one of sqlite, postgres, mysql, redis, or a store's URL".to_owned()),
    }
}

pub(crate) async fn run(arguments: Arguments, settings: ServerSettings) -> Result<(), ExitError> {
    let Arguments { at, verb } = arguments;
    let url = at.url(&settings);
    if let Verb::Print { kind } = verb {
        return print(kind.unwrap_or(url.kind()), at.json);
    }
    if matches!(url.kind(), StoreKind::Redis | StoreKind::Memory) {
        return nothing(url.kind(), at.json);
    }
    match verb {
        Verb::Apply { dry_run: false, by } => apply(&url, &by, at.json).await,
        Verb::Apply { dry_run: true, .. } => foresee(&url, at.json).await,
        Verb::Verify { strict } => verify(&url, strict, at.json).await,
        Verb::Print { .. } => unreachable!("answered above"),
    }
}

fn print(kind: StoreKind, json: bool) -> Result<(), ExitError> {
    let script = match kind {
        StoreKind::Sqlite => sqlite::print(),
        StoreKind::Postgres => postgres::print(),
        StoreKind::MySql => MySqlStore::schema(),
        StoreKind::Redis | StoreKind::Memory => return nothing(kind, json),
    };
    match json {
        true => shown::json(&json!({ "kind": kind.name(), "script": script })),
        false => shown::line(script.trim_end()),
    }
}

/// Reports that a store has no schema.
fn nothing(kind: StoreKind, json: bool) -> Result<(), ExitError> {
    match json {
        true => shown::json(&json!({ "kind": kind.name(), "applied": [], "findings": [] })),
        false => shown::line(format!("{} has no schema: there is nothing to migrate", kind.name())),
    }
}

/// Returns the number and name of each migration of a kind of store.
fn known(kind: StoreKind) -> Vec<(i32, &'static str)> {
    let all = match kind {
        StoreKind::Sqlite => sqlite::MIGRATIONS,
        StoreKind::Postgres => postgres::MIGRATIONS,
        StoreKind::MySql => MySqlStore::migrations(),
        StoreKind::Redis | StoreKind::Memory => &[],
    };
    all.iter().map(|migration| (migration.version, migration.name)).collect()
}

/// Returns the migrations that are missing according to the findings.
fn missing(kind: StoreKind, findings: &[Finding]) -> Vec<(i32, &'static str)> {
    let mut all = known(kind);
    all.retain(|(version, _)| {
        let prefix = format!("migration {version} (");
        findings.iter().any(|f| schema::is_unapplied(f) && f.found.starts_with(&prefix))
    });
    all
}

async fn foresee(url: &StoreUrl, json: bool) -> Result<(), ExitError> {
    let absent = url.path().is_some_and(|path| !path.exists());
    if absent {
        return report(url, &known(url.kind()), &[], true, json);
    }
    let mut findings = schema::lacks(url).await?;
    let missing = missing(url.kind(), &findings);
    // A dry run does not report findings that the migration would fix.
    let fixed = |f: &Finding| schema::is_unapplied(f) || f.code == "sql-table-missing";
    findings.retain(|finding| missing.is_empty() || !fixed(finding));
    report(url, &missing, &findings, true, json)
}

async fn apply(url: &StoreUrl, by: &AuditArgs, json: bool) -> Result<(), ExitError> {
    let about = json!({ "store": url.to_string() });
    let trail = AuditEntry::begin("migrate apply", &by.actor, by.reason.as_deref(), about, false)?;
    let brought = schema::bring_up_at(url).await;
    let SchemaState { applied, findings } =
        brought.map_err(|failure| failure.during(format_args!("cannot migrate {url}")))?;
    trail.end(applied.len() as u64);
    let mut all = known(url.kind());
    all.retain(|(version, _)| applied.contains(version));
    report(url, &all, &findings, false, json)
}

/// Reports the migrations that were applied, or would be, and the findings that remain.
fn report(
    url: &StoreUrl,
    migrations: &[(i32, &'static str)],
    findings: &[Finding],
    dry: bool,
    json: bool,
) -> Result<(), ExitError> {
    let count = findings.iter().filter(|f| f.severity == Severity::Error).count();
    if json {
        let applied: Vec<_> = migrations
            .iter()
            .map(|(version, name)| json!({ "version": version, "name": name }))
            .collect();
        let list: Vec<_> = findings.iter().map(finding).collect();
        shown::json(&json!({ "applied": applied, "findings": list, "dry_run": dry }))?;
    } else {
        let verb = if dry { "would apply" } else { "applied" };
        for (version, name) in migrations {
            shown::line(format!("{verb} migration {version} ({name})"))?;
        }
        if migrations.is_empty() && count == 0 {
            shown::line("the schema is up to date")?;
        }
        listed(findings)?;
    }
    match count {
        0 => Ok(()),
        count => Err(ExitError::findings(format_args!(
            "{} about the schema of {url} that no migration fixes; each is listed with its fix",
            shown::counted(count as u64, "finding")
        ))),
    }
}

/// Prints each finding and its fix.
fn listed(findings: &[Finding]) -> Result<(), ExitError> {
    for Finding { severity, found, fix, .. } in findings {
        let word = if *severity == Severity::Error { "error" } else { "warning" };
        shown::line(format!("{word}: {found}\n  fix: {fix}"))?;
    }
    Ok(())
}

async fn verify(url: &StoreUrl, strict: bool, json: bool) -> Result<(), ExitError> {
    let findings = schema::lacks(url).await?;
    let bad = |f: &&Finding| strict || f.severity == Severity::Error;
    let count = findings.iter().filter(bad).count();
    if json {
        let list: Vec<_> = findings.iter().map(finding).collect();
        shown::json(&json!({ "findings": list, "ok": count == 0 }))?;
    } else if findings.is_empty() {
        shown::line("the schema is what this version needs")?;
    } else {
        listed(&findings)?;
    }
    let help = match findings.iter().any(schema::is_unapplied) {
        true => "`semel migrate apply` applies what is missing",
        false => "each is listed with its fix",
    };
    match count {
        0 => Ok(()),
        count => Err(ExitError::findings(format_args!(
            "{} about the schema of {url}; {help}",
            shown::counted(count as u64, "finding")
        ))),
    }
}
