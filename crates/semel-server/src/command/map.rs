//! `semel map`: fills the map of public ids from a business table, compares the two, and repairs the map.
//!
//! The commands only read the table. Every verb may be stopped and run again.

mod caches;
mod report;
mod table;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use semel_ids::migration::{Backfilled, FileCheckpoint, MapMigration, Progress, Repaired};
use semel_ids::{Codec, Registry, ResourceType};
use semel_sql::business::Layout;
use serde_json::json;

use self::table::SqlTable;
use super::audit::{AuditArgs, AuditEntry};
use super::ids::Payload;
use super::watch::Watch;
use super::{StoreArgs, no_database, words};
use crate::exit::ExitError;
use crate::settings::ServerSettings;
use crate::store::database::Database;

/// Fill the map of public ids from a business table, compare the two, repair the map
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    at: StoreArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Write a mapping for every row that has none
    Backfill {
        #[command(flatten)]
        table: Table,
        /// File for the progress, so that another run continues from there
        #[arg(long, value_name = "FILE")]
        checkpoint: Option<PathBuf>,
        /// Read and report, and write nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        by: AuditArgs,
    },
    /// Compare every row with its mapping, and every mapping with its row
    Verify {
        #[command(flatten)]
        table: Table,
    },
    /// Make the map agree with the table
    Repair {
        #[command(flatten)]
        table: Table,
        /// Make revoked mappings live again if their rows exist
        #[arg(long)]
        revive_revoked: bool,
        /// Revoke nothing if more mappings than this have no row
        #[arg(long, value_name = "N", default_value_t = 1_000)]
        max_revocations: u64,
        /// Least age of an id before its mapping is revoked
        #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = words::span)]
        grace: Duration,
        /// Read and report, and write nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        by: AuditArgs,
    },
}

/// The business table to read, in the store's own database.
#[derive(Clone, Debug, Args)]
struct Table {
    /// Table, as table or schema.table
    #[arg(long, value_name = "NAME")]
    table: String,
    /// Unique column that orders the rows
    #[arg(long, value_name = "COLUMN", default_value = "id")]
    key_column: String,
    /// Column of the tenant
    #[arg(long, value_name = "COLUMN", default_value = "tenant_id", conflicts_with = "tenant")]
    tenant_column: String,
    /// Tenant of all rows, instead of a column
    #[arg(long)]
    tenant: Option<String>,
    /// Column of public ids
    #[arg(long, value_name = "COLUMN", default_value = "public_id")]
    public_column: String,
    /// Column of internal ids: 16 bytes, a UUID or the text of a ULID
    #[arg(long, value_name = "COLUMN", default_value = "internal_id")]
    internal_column: String,
    /// Resource type of the rows, such as ORDER
    #[arg(long = "type", value_name = "TYPE")]
    kind: String,
    /// Prefix of their public ids [default: that of the type, if it is a known one]
    #[arg(long)]
    prefix: Option<String>,
    /// Encoding of their public ids
    #[arg(long, value_enum, default_value_t = Payload::Ulid)]
    payload: Payload,
    /// Their public ids end with a checksum
    #[arg(long)]
    checksum: bool,
    /// Rows in one step
    #[arg(long, value_name = "N", default_value_t = 1_000,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
    /// Most rows per second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Examples of each kind of difference
    #[arg(long, value_name = "N", default_value_t = 10)]
    samples: usize,
}

impl Table {
    fn layout(&self) -> Layout {
        let layout = Layout::new(&self.table)
            .key(&self.key_column)
            .public_id(&self.public_column)
            .internal_id(&self.internal_column);
        match &self.tenant {
            Some(tenant) => layout.tenant(tenant),
            None => layout.tenant_column(&self.tenant_column),
        }
    }

    fn resource(&self) -> Result<ResourceType, ExitError> {
        let known = Registry::shipped().named(&self.kind).map(|kind| kind.prefix().to_string());
        let Some(prefix) = self.prefix.clone().or(known) else {
            return Err(ExitError::usage(format_args!(
                "`{}` is not a known type; give its prefix with --prefix",
                self.kind
            )));
        };
        ResourceType::parse(&self.kind, &prefix).map_err(|invalid| {
            ExitError::usage(format_args!("--type {} --prefix {prefix}: {invalid}", self.kind))
        })
    }

    fn codec(&self) -> Codec {
        self.payload.codec(self.checksum)
    }
}

impl Verb {
    fn table(&self) -> &Table {
        match self {
            Verb::Backfill { table, .. } | Verb::Verify { table } | Verb::Repair { table, .. } => {
                table
            }
        }
    }
}

pub(crate) async fn run(arguments: Arguments, settings: ServerSettings) -> Result<(), ExitError> {
    let Arguments { at, verb } = arguments;
    let kind = verb.table().resource()?;
    let url = at.url(&settings);
    let handle = at.open(&settings).await?;
    let done = match handle.database() {
        Some(map) => {
            let job = Job { verb: &verb, kind, settings: &settings, json: at.json };
            job.run(&map, &SqlTable::open(&url, verb.table().layout()).await?).await
        }
        None => Err(no_database("map of public ids")),
    };
    handle.close().await;
    done
}

/// One verb with its settings and its resource type.
struct Job<'a> {
    verb: &'a Verb,
    kind: ResourceType,
    settings: &'a ServerSettings,
    json: bool,
}

impl Job<'_> {
    async fn run(&self, map: &Database, table: &SqlTable) -> Result<(), ExitError> {
        let Table { batch, rate, samples, .. } = self.verb.table();
        let codec = self.verb.table().codec();
        let moving =
            MapMigration::new(map, table, self.kind, &codec).batch(*batch).samples(*samples);
        let moving = match rate {
            Some(rate) => moving.rows_per_second(*rate),
            None => moving,
        };
        match self.verb {
            Verb::Backfill { checkpoint, dry_run, by, .. } => {
                let moving = if *dry_run { moving.dry_run() } else { moving };
                let trail = self.trail("map backfill", by, *dry_run)?;
                self.backfill(&moving, checkpoint.as_ref(), *dry_run, trail).await
            }
            Verb::Verify { .. } => {
                let mut watch = Watch::new("verify", None);
                let verified = moving.verify(|progress| watched(&mut watch, progress)).await?;
                drop(watch);
                report::verified(&verified, self.json)
            }
            Verb::Repair { revive_revoked, max_revocations, grace, dry_run, by, .. } => {
                let moving = moving.max_revocations(*max_revocations).grace(*grace);
                let moving = if *revive_revoked { moving.revive_revoked() } else { moving };
                let moving = if *dry_run { moving.dry_run() } else { moving };
                let trail = self.trail("map repair", by, *dry_run)?;
                self.repair(&moving, *dry_run, trail).await
            }
        }
    }

    fn trail(&self, verb: &str, by: &AuditArgs, dry_run: bool) -> Result<AuditEntry, ExitError> {
        let about = json!({ "table": self.verb.table().table, "type": self.kind.name() });
        AuditEntry::begin(verb, &by.actor, by.reason.as_deref(), about, dry_run)
    }

    async fn backfill(
        &self,
        moving: &MapMigration<'_, Database, SqlTable>,
        checkpoint: Option<&PathBuf>,
        dry: bool,
        mut trail: AuditEntry,
    ) -> Result<(), ExitError> {
        let mut watch = Watch::new("backfill", None);
        let report = |progress: &Progress<'_, Backfilled>| {
            trail.counted(progress.report.written);
            watched(&mut watch, progress);
        };
        let filled = match checkpoint {
            None => moving.backfill(&(), report).await,
            Some(path) => {
                let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                if directory.is_some_and(|directory| !directory.is_dir()) || path.is_dir() {
                    return Err(ExitError::usage(format_args!(
                        "--checkpoint {}: the directory does not exist, or the path is a directory",
                        path.display()
                    )));
                }
                moving.backfill(&FileCheckpoint::new(path), report).await
            }
        };
        drop(watch);
        let filled = filled.map_err(|error| match error.operation() {
            // The file is a checkpoint of another table, or not a checkpoint.
            "resume the backfill" | "load the checkpoint" => {
                ExitError::usage(crate::exit::chain(&error))
            }
            _ => error.into(),
        })?;
        trail.end(filled.written);
        report::backfilled(&filled, dry, self.json)
    }

    async fn repair(
        &self,
        moving: &MapMigration<'_, Database, SqlTable>,
        dry: bool,
        mut trail: AuditEntry,
    ) -> Result<(), ExitError> {
        let caches = Arc::new(caches::Caches::of(self.settings)?);
        let mut watch = Watch::new("repair", None);
        let repaired = moving
            .repair(
                |progress| {
                    trail.counted(changes(progress.report));
                    watched(&mut watch, progress);
                },
                |changes| {
                    let caches = Arc::clone(&caches);
                    async move { caches.invalidate(&changes).await }
                },
            )
            .await?;
        drop(watch);
        trail.end(changes(&repaired));
        report::repaired(&repaired, dry, caches.missed(), self.json)
    }
}

/// Returns the number of mappings that a repair has changed.
fn changes(repaired: &Repaired) -> u64 {
    let Repaired { inserted, overwritten, revived, revoked, .. } = repaired;
    [inserted, overwritten, revived, revoked].iter().map(|tally| tally.count).sum()
}

fn watched<R>(watch: &mut Watch, progress: &Progress<'_, R>) {
    watch.at(progress.seen, progress.total, || progress.to_string());
}
