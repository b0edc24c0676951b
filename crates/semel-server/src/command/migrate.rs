//! `semel migrate`: the schema of a store, printed, applied or compared.
//!
//! There is no way back down: a ledger is not migrated to forget what happened.

use std::path::Path;

use clap::{Args, Subcommand};
use semel::store::{Finding, Severity};
use semel_sql::mysql::MySqlStore;
use semel_sql::{postgres, sqlite};
use serde_json::json;

use super::{At, shown};
use crate::command::doctor::finding;
use crate::failure::Failure;
use crate::place::{self, Opening, Place, StoreKind, StoreUrl};
use crate::settings::Settings;

/// Print, apply or verify the schema of a store
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    at: At,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Print the schema as a script, for those who apply it by hand; no store is asked
    Print {
        /// sqlite, postgres or mysql [default: the store's]
        #[arg(value_parser = kind)]
        kind: Option<StoreKind>,
    },
    /// Bring the schema up to date; a SQLite file that is not there is made
    Apply {
        /// Say what would be applied, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Compare the schema with what this version needs
    Verify {
        /// Warnings count, too
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
        // A URL is as good as a name.
        other => other
            .parse()
            .map(|url: StoreUrl| url.kind())
            .map_err(|_| "one of sqlite, postgres, mysql, redis, or a store's URL".to_owned()),
    }
}

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    let Arguments { at, verb } = arguments;
    let url = at.url(&settings);
    if let Verb::Print { kind } = verb {
        return print(kind.unwrap_or(url.kind()), at.json);
    }
    if matches!(url.kind(), StoreKind::Redis | StoreKind::Memory) {
        return nothing(url.kind(), at.json);
    }
    match verb {
        Verb::Apply { dry_run: false } => apply(&url, at.json).await,
        Verb::Apply { dry_run: true } => foresee(&url, at.json).await,
        Verb::Verify { strict } => verify(&url, strict, at.json).await,
        Verb::Print { .. } => unreachable!("answered above"),
    }
}

fn print(kind: StoreKind, json: bool) -> Result<(), Failure> {
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

/// What has no schema.
fn nothing(kind: StoreKind, json: bool) -> Result<(), Failure> {
    match json {
        true => shown::json(&json!({ "kind": kind.name(), "applied": [], "findings": [] })),
        false => shown::line(format!("{} has no schema: there is nothing to migrate", kind.name())),
    }
}

/// The migrations of a kind: number and name.
fn known(kind: StoreKind) -> Vec<(i32, &'static str)> {
    let all = match kind {
        StoreKind::Sqlite => sqlite::MIGRATIONS,
        StoreKind::Postgres => postgres::MIGRATIONS,
        StoreKind::MySql => MySqlStore::migrations(),
        StoreKind::Redis | StoreKind::Memory => &[],
    };
    all.iter().map(|migration| (migration.version, migration.name)).collect()
}

/// What the schema lacks, in words. Works on a database that has none of it yet.
pub(crate) async fn lacks(url: &StoreUrl) -> Result<Vec<Finding>, Failure> {
    let cannot = |failure: Failure| failure.during(format_args!("cannot verify {url}"));
    let found = match url.kind() {
        StoreKind::Sqlite => {
            let path = url.path().unwrap_or(Path::new(""));
            if !path.exists() {
                return Err(cannot(Failure::unreachable("there is no such file")));
            }
            return place::lacks(path).await.map_err(cannot);
        }
        StoreKind::Postgres | StoreKind::MySql => {
            match Place::open(url, Opening::Look, "").await? {
                Place::Postgres(store) => store.verify().await,
                Place::MySql(store) => store.verify().await,
                Place::Sqlite(_) | Place::Redis(_) | Place::Memory(_) => Ok(Vec::new()),
            }
        }
        StoreKind::Redis | StoreKind::Memory => Ok(Vec::new()),
    };
    found.map_err(|error| cannot(error.into()))
}

/// The migrations that would be applied.
fn missing(kind: StoreKind, findings: &[Finding]) -> Vec<(i32, &'static str)> {
    let mut all = known(kind);
    let never = |version: i32| {
        let told = format!("migration {version} (");
        findings.iter().any(|f| f.code == "sql-migration-missing" && f.found.starts_with(&told))
    };
    // Of a database that is no ledger at all nothing else is said.
    let bare = findings.iter().any(|f| f.code == "sql-table-missing")
        && !findings.iter().any(|f| f.code == "sql-migration-missing");
    all.retain(|(version, _)| bare || never(*version));
    all
}

async fn foresee(url: &StoreUrl, json: bool) -> Result<(), Failure> {
    let absent = url.path().is_some_and(|path| !path.exists());
    let missing = match absent {
        true => known(url.kind()),
        false => missing(url.kind(), &lacks(url).await?),
    };
    told(&missing, true, json)
}

async fn apply(url: &StoreUrl, json: bool) -> Result<(), Failure> {
    let absent = url.path().is_some_and(|path| !path.exists());
    let before = if absent { known(url.kind()) } else { missing(url.kind(), &lacks(url).await?) };
    // Opened as a service opens it, which is what applies.
    let place = Place::open(url, Opening::Serve, "").await?;
    place.close().await;
    told(&before, false, json)
}

fn told(migrations: &[(i32, &'static str)], dry: bool, json: bool) -> Result<(), Failure> {
    if json {
        let applied: Vec<_> = migrations
            .iter()
            .map(|(version, name)| json!({ "version": version, "name": name }))
            .collect();
        return shown::json(&json!({ "applied": applied, "dry_run": dry }));
    }
    if migrations.is_empty() {
        return shown::line("the schema is up to date");
    }
    let verb = if dry { "would apply" } else { "applied" };
    for (version, name) in migrations {
        shown::line(format!("{verb} migration {version} ({name})"))?;
    }
    Ok(())
}

async fn verify(url: &StoreUrl, strict: bool, json: bool) -> Result<(), Failure> {
    let findings = lacks(url).await?;
    let bad = |f: &&Finding| strict || f.severity == Severity::Error;
    let count = findings.iter().filter(bad).count();
    if json {
        let list: Vec<_> = findings.iter().map(finding).collect();
        shown::json(&json!({ "findings": list, "ok": count == 0 }))?;
    } else if findings.is_empty() {
        shown::line("the schema is what this version needs")?;
    } else {
        for Finding { severity, found, fix, .. } in &findings {
            let word = if *severity == Severity::Error { "error" } else { "warning" };
            shown::line(format!("{word}: {found}\n  fix: {fix}"))?;
        }
    }
    match count {
        0 => Ok(()),
        count => Err(Failure::findings(format_args!(
            "{} about the schema of {url}; `semel migrate apply` mends what is missing",
            shown::counted(count as u64, "finding")
        ))),
    }
}
