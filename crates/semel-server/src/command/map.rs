//! `semel map`: a business table moves into the map of public ids; `verify` compares, `repair` mends.
//!
//! The table is read and never written. Everything may be stopped and run again.

mod caches;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use semel_core::store::{Error, ErrorKind};
use semel_ids::migration::{
    Backfilled, BusinessTable, FileCheckpoint, MapMigration, Progress, Repaired,
};
use semel_ids::{Codec, IdMap, Registry, ResourceType};
use semel_sql::business::Layout;
use semel_sql::mysql::MySqlTable;
use semel_sql::postgres::PgTable;
use semel_sql::sqlite::SqliteTable;
use serde_json::json;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

use super::audit::{AuditArgs, AuditEntry};
use super::ids::Payload;
use super::watch::Watch;
use super::{StoreArgs, no_database, words};
use crate::exit::ExitError;
use crate::settings::ServerSettings;
use crate::store::{StoreHandle, StoreUrl};

/// Connections that read the table, and how long one may take to come.
const READERS: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(5);

/// Move a business table into the map of public ids, compare the two, mend the map
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
        /// Where to keep how far it has come, so that another run goes on from there
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
    /// Make the map say what the table says
    Repair {
        #[command(flatten)]
        table: Table,
        /// Make revoked mappings live again whose rows are there
        #[arg(long)]
        revive_revoked: bool,
        /// Revoke nothing where more mappings than this are without a row
        #[arg(long, value_name = "N", default_value_t = 1_000)]
        max_revocations: u64,
        /// How old an id must be before its mapping is revoked
        #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = words::span)]
        grace: Duration,
        /// Read and report, and write nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        by: AuditArgs,
    },
}

/// The table, in the store's own database.
#[derive(Clone, Debug, Args)]
struct Table {
    /// The table, as table or schema.table
    #[arg(long, value_name = "NAME")]
    table: String,
    /// The unique column that the walk goes by
    #[arg(long, value_name = "COLUMN", default_value = "id")]
    key_column: String,
    /// The column that says whose a row is
    #[arg(long, value_name = "COLUMN", default_value = "tenant_id", conflicts_with = "tenant")]
    tenant_column: String,
    /// All rows are this tenant's
    #[arg(long)]
    tenant: Option<String>,
    /// The column of public ids
    #[arg(long, value_name = "COLUMN", default_value = "public_id")]
    public_column: String,
    /// The column of internal ids: 16 bytes, a UUID or the text of a ULID
    #[arg(long, value_name = "COLUMN", default_value = "internal_id")]
    internal_column: String,
    /// What the rows are, such as ORDER
    #[arg(long = "type", value_name = "TYPE")]
    kind: String,
    /// What their public ids begin with [default: the type's own, where it is a known one]
    #[arg(long)]
    prefix: Option<String>,
    /// How their public ids are written
    #[arg(long, value_enum, default_value_t = Payload::Ulid)]
    payload: Payload,
    /// Their public ids end with a checksum
    #[arg(long)]
    checksum: bool,
    /// Rows in one step
    #[arg(long, value_name = "N", default_value_t = 1_000,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
    /// Rows a second at most [default: as fast as it goes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Examples of each kind of trouble
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
                "`{}` is no type that this program knows; give it a --prefix",
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
    let job = Job { verb: &verb, kind, settings: &settings, json: at.json };
    let done = on(&handle, &url, &job).await;
    handle.close().await;
    done
}

/// Opens the table on connections of its own, beside the store.
async fn on(handle: &StoreHandle, url: &StoreUrl, job: &Job<'_>) -> Result<(), ExitError> {
    let layout = job.verb.table().layout();
    let unopened = |error: sqlx::Error| ExitError::unreachable(crate::exit::chain(&error));
    match handle {
        StoreHandle::Sqlite(store) => {
            let file = SqliteConnectOptions::new().filename(url.path().unwrap_or("".as_ref()));
            let pool = SqlitePoolOptions::new().max_connections(READERS).acquire_timeout(PATIENCE);
            let pool = pool.connect_with(file.read_only(true)).await.map_err(unopened)?;
            let table = SqliteTable::open(pool, layout).await.map_err(unusable)?;
            job.run(store, &table).await
        }
        StoreHandle::Postgres(store) => {
            let pool = PgPoolOptions::new().max_connections(READERS).acquire_timeout(PATIENCE);
            let pool = pool.connect(url.secret()).await.map_err(unopened)?;
            let table = PgTable::open(pool, layout).await.map_err(unusable)?;
            job.run(store, &table).await
        }
        StoreHandle::MySql(store) => {
            let pool = MySqlPoolOptions::new().max_connections(READERS).acquire_timeout(PATIENCE);
            let pool = pool.connect(url.secret()).await.map_err(unopened)?;
            let table = MySqlTable::open(pool, layout).await.map_err(unusable)?;
            job.run(store, &table).await
        }
        StoreHandle::Redis(_) | StoreHandle::Memory(_) => Err(no_database("map of public ids")),
    }
}

/// A table or column that is not there is a flag that is wrong.
fn unusable(error: Error) -> ExitError {
    if error.kind() == ErrorKind::Misconfigured {
        return ExitError::usage(crate::exit::chain(&error));
    }
    error.into()
}

/// What is to be done with a table and a map.
struct Job<'a> {
    verb: &'a Verb,
    kind: ResourceType,
    settings: &'a ServerSettings,
    json: bool,
}

impl Job<'_> {
    async fn run<M: IdMap, T: BusinessTable>(&self, map: &M, table: &T) -> Result<(), ExitError> {
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

    async fn backfill<M: IdMap, T: BusinessTable>(
        &self,
        moving: &MapMigration<'_, M, T>,
        checkpoint: Option<&PathBuf>,
        dry: bool,
        mut trail: AuditEntry,
    ) -> Result<(), ExitError> {
        let mut watch = Watch::new("backfill", None);
        let told = |progress: &Progress<'_, Backfilled>| {
            trail.counted(progress.report.written);
            watched(&mut watch, progress);
        };
        let filled = match checkpoint {
            None => moving.backfill(&(), told).await,
            Some(path) => {
                let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                if directory.is_some_and(|directory| !directory.is_dir()) || path.is_dir() {
                    return Err(ExitError::usage(format_args!(
                        "a checkpoint cannot be kept at {}: its directory is not there, or it is one",
                        path.display()
                    )));
                }
                moving.backfill(&FileCheckpoint::new(path), told).await
            }
        };
        drop(watch);
        let filled = filled.map_err(|error| match error.operation() {
            // A file that is another's, or none of ours.
            "resume the backfill" | "load the checkpoint" => {
                ExitError::usage(crate::exit::chain(&error))
            }
            _ => error.into(),
        })?;
        trail.end(filled.written);
        report::backfilled(&filled, dry, self.json)
    }

    async fn repair<M: IdMap, T: BusinessTable>(
        &self,
        moving: &MapMigration<'_, M, T>,
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
                    async move { caches.tell(&changes).await }
                },
            )
            .await?;
        drop(watch);
        trail.end(changes(&repaired));
        report::repaired(&repaired, dry, caches.missed(), self.json)
    }
}

/// Mappings that a repair has changed.
fn changes(repaired: &Repaired) -> u64 {
    let Repaired { inserted, overwritten, revived, revoked, .. } = repaired;
    [inserted, overwritten, revived, revoked].iter().map(|tally| tally.count).sum()
}

fn watched<R>(watch: &mut Watch, progress: &Progress<'_, R>) {
    watch.at(progress.seen, progress.total, || progress.to_string());
}
