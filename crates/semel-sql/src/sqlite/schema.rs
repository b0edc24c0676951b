//! Opens a file, brings its schema up to date, and checks it.

use std::path::Path;
use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Finding, Result, Severity};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection as _, Executor, Row};

use super::settings::{Builder, Synchronous};
use super::statements::BEGIN;
use super::{failure, watermark};
use crate::migrate::{self, Applied, CLOCK, ID_MAP, Migration, Migrator, RECORD, Shape};
use crate::outbox::OUTBOX;

/// The migrations, in order.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "ledger",
        sql: include_str!("../../migrations/sqlite/0001_ledger.sql"),
    },
    Migration {
        version: 2,
        name: "outbox",
        sql: include_str!("../../migrations/sqlite/0002_outbox.sql"),
    },
    Migration {
        version: 3,
        name: "id map",
        sql: include_str!("../../migrations/sqlite/0003_idmap.sql"),
    },
    Migration {
        version: 4,
        name: "outbox written by others",
        sql: include_str!("../../migrations/sqlite/0004_outbox_written_by_others.sql"),
    },
];

const HISTORY: &str = "CREATE TABLE IF NOT EXISTS semel_migration (\
    version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, \
    applied_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))) STRICT";
const NOTE: &str = "INSERT INTO semel_migration (version, name, checksum) VALUES (?, ?, ?)";

/// Returns all migrations as one script, for migrating by hand.
pub fn print() -> String {
    migrate::print("SQLite", MIGRATIONS, |migration| {
        let Migration { version, name, .. } = migration;
        let checksum = migration.checksum();
        format!(
            "{HISTORY};\nINSERT INTO semel_migration (version, name, checksum) \
             VALUES ({version}, '{name}', '{checksum}');"
        )
    })
}

/// The size in bytes from which the write-ahead log is reported. SQLite checkpoints it after 4 MB,
/// unless a connection still reads an older state.
const LOG: u64 = 64 << 20;

/// The pause before another attempt to take a lock that no busy timeout covers.
const PAUSE: Duration = Duration::from_millis(10);

/// Opens the database for writing, migrates it if the settings allow that, and verifies its schema.
pub(super) async fn open(settings: &Builder) -> Result<SqliteConnection> {
    let (path, patience) = (&settings.path, settings.patience());
    let named = |error| failure::opening(path, patience, error);
    if settings.migrate {
        make_private(path);
    }
    let mut connection = patient(&settings.writing(), patience).await.map_err(named)?;
    if settings.migrate {
        bring_up(&mut connection, settings).await?;
    }
    usable(&mut connection, settings).await?;
    if settings.migrate {
        let now = settings.clock.now();
        watermark::begin(&mut connection, now).await.map_err(named)?;
    }
    Ok(connection)
}

/// Fails if the tables are not those of this version. The history alone is no proof.
async fn usable(connection: &mut SqliteConnection, settings: &Builder) -> Result<()> {
    let (path, patience) = (&settings.path, settings.patience());
    let named = |error| failure::opening(path, patience, error);
    let wrong = findings(connection).await.map_err(named)?;
    match wrong.into_iter().find(|finding| finding.severity == Severity::Error) {
        None => Ok(()),
        Some(Finding { found, fix, .. }) => {
            let text = format!("{} is no ledger of this version: {found}; {fix}", path.display());
            Err(Error::new(ErrorKind::Misconfigured, "connect", text))
        }
    }
}

/// Creates a missing file for its owner alone, since it will hold callers' responses. SQLite gives
/// the files beside it the same permissions. An error is left to SQLite, which opens the file next.
fn make_private(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    // Only a new file is opened: closing one that is open elsewhere in this process would drop its
    // locks.
    drop(options.open(path));
}

/// Verifies the schema of a file that is only read, and returns the options to open it.
pub(super) async fn open_to_read(settings: &Builder) -> Result<SqliteConnectOptions> {
    let named = |error| failure::opening(&settings.path, settings.patience(), error);
    let (options, mut connection) = to_read(settings).await.map_err(named)?;
    usable(&mut connection, settings).await?;
    connection.close().await.map_err(named)?;
    Ok(options)
}

/// Connects for reading. A cleanly closed file has no log, and if none can be created beside it,
/// SQLite refuses to open the file unless it is declared immutable.
async fn to_read(settings: &Builder) -> sqlx::Result<(SqliteConnectOptions, SqliteConnection)> {
    let connect = async |options: SqliteConnectOptions| -> sqlx::Result<_> {
        let mut connection = options.connect().await?;
        connection.execute("SELECT count(*) FROM sqlite_schema").await?;
        Ok((options, connection))
    };
    match connect(settings.reading()).await {
        Err(error) if failure::is_unwritable(&error) && settings.path.exists() => {
            connect(settings.reading().immutable(true)).await
        }
        connected => connected,
    }
}

/// Returns the finding for a file that cannot be written.
pub(super) fn unwritable(error: Error) -> Finding {
    let (code, fix) = if error.kind() == ErrorKind::Capacity {
        ("sqlite-full", "make room on the disk")
    } else {
        ("sqlite-unwritable", "make the file and its directory writable for this process")
    };
    let found = format!("nothing can be written: {error}");
    Finding { severity: Severity::Error, code, found, fix: fix.into() }
}

/// Applies the missing migrations and returns their versions.
async fn bring_up(connection: &mut SqliteConnection, settings: &Builder) -> Result<Vec<i32>> {
    let (path, patience) = (&settings.path, settings.patience());
    // Reads first: that needs no write lock, which another process may hold for long, and usually
    // shows that the schema is up to date.
    let history = applied(connection).await.unwrap_or_default();
    if migrate::history(MIGRATIONS, &history).iter().all(|f| f.severity != Severity::Error) {
        return Ok(Vec::new());
    }
    let mut migrator = SchemaMigrator { connection, path, failed: false, patience };
    migrate::apply(&mut migrator, MIGRATIONS).await
}

/// Brings the schema of a file up to date, creating the file if it does not exist.
pub(super) async fn migrate(settings: &Builder) -> Result<Vec<i32>> {
    let named = |error| failure::opening(&settings.path, settings.patience(), error);
    make_private(&settings.path);
    let mut connection = patient(&settings.writing(), settings.patience()).await.map_err(named)?;
    let versions = bring_up(&mut connection, settings).await?;
    // Closed explicitly: the last connection to close moves the log into the file.
    connection.close().await.map_err(named)?;
    Ok(versions)
}

/// Connects, and retries while the file is busy: switching a new file to WAL takes a lock that
/// SQLite does not wait for, and two instances may create the file at the same moment.
async fn patient(
    options: &SqliteConnectOptions,
    limit: Duration,
) -> sqlx::Result<SqliteConnection> {
    let connecting = async {
        loop {
            match options.connect().await {
                Err(error) if failure::is_busy(&error) => tokio::time::sleep(PAUSE).await,
                done => return done,
            }
        }
    };
    match tokio::time::timeout(limit, connecting).await {
        Ok(done) => done,
        // Tries once more after the limit, to return SQLite's own error.
        Err(_) => options.connect().await,
    }
}

/// Opens a file for reading and returns what is wrong with its schema.
pub(super) async fn verify(settings: &Builder) -> Result<Vec<Finding>> {
    let named = |error| failure::opening(&settings.path, settings.patience(), error);
    let (_, mut connection) = to_read(settings).await.map_err(named)?;
    findings(&mut connection).await.map_err(named)
}

/// Returns what is wrong with the schema.
pub(super) async fn findings(connection: &mut SqliteConnection) -> sqlx::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for shape in [RECORD, CLOCK, OUTBOX, ID_MAP] {
        // Unlike `table_info`, this lists generated columns.
        let columns = "SELECT name FROM pragma_table_xinfo(?)";
        let columns = names(connection, columns, shape.table).await?;
        let indexes = "SELECT name FROM pragma_index_list(?)";
        let indexes = names(connection, indexes, shape.table).await?;
        findings.extend(migrate::shape(&shape, &columns, &indexes));
        if shape.table == RECORD.table {
            if columns.is_empty() {
                // A file without the table is no ledger: what else it lacks is not reported.
                break;
            }
            let key = "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk";
            findings.extend(primary_key(&names(connection, key, shape.table).await?));
        } else if !columns.is_empty() {
            findings.extend(keys(connection, &shape).await?);
        }
    }
    let history = applied(connection).await.unwrap_or_default();
    findings.extend(migrate::history(MIGRATIONS, &history));
    migrate::advise_on_missing_tables(&mut findings);
    Ok(findings)
}

async fn names(
    connection: &mut SqliteConnection,
    text: &'static str,
    table: &'static str,
) -> sqlx::Result<Vec<String>> {
    let rows = connection.fetch_all(sqlx::query(text).bind(table)).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

/// Reports keys that no whole index keeps unique byte by byte. A rowid is unique by nature.
async fn keys(connection: &mut SqliteConnection, shape: &Shape) -> sqlx::Result<Vec<Finding>> {
    let unique = "SELECT group_concat(name, ', ' ORDER BY seqno) FROM (\
        SELECT l.name AS list, i.seqno, i.name FROM pragma_index_list(?) AS l, \
        pragma_index_xinfo(l.name) AS i WHERE l.\"unique\" AND NOT l.partial AND i.key \
        AND i.coll = 'BINARY') GROUP BY list";
    let mut unique = names(connection, unique, shape.table).await?;
    let rowid = "SELECT name FROM pragma_table_info(?) WHERE pk = 1 AND type = 'INTEGER'";
    unique.extend(names(connection, rowid, shape.table).await?);
    let lacking = shape.keys.iter().map(|key| key.join(", ")).filter(|key| !unique.contains(key));
    let table = shape.table;
    let finding = |key: String| Finding {
        severity: Severity::Error,
        code: "sql-key-missing",
        found: format!("table {table} does not keep ({key}) unique, byte by byte"),
        fix: "create the table as in the script of `semel migrate print` and copy the rows into it"
            .into(),
    };
    Ok(lacking.map(finding).collect())
}

/// Reports a wrong primary key of `semel_record`: a table that was copied without it would grant a
/// key twice.
fn primary_key(key: &[String]) -> Option<Finding> {
    let right = matches!(key, [only] if only.eq_ignore_ascii_case("digest"));
    (!right).then(|| Finding {
        severity: Severity::Error,
        code: "sql-key-missing",
        found: format!("the primary key of semel_record is ({}), not (digest)", key.join(", ")),
        fix: "create the table as in the script of `semel migrate print` and copy the rows into it"
            .into(),
    })
}

/// Checks the settings of the file and the file system.
pub(super) async fn set_up(
    connection: &mut SqliteConnection,
    settings: &Builder,
) -> sqlx::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mode: String = connection.fetch_one("PRAGMA journal_mode").await?.try_get(0)?;
    if !mode.eq_ignore_ascii_case("wal") {
        findings.push(Finding {
            severity: Severity::Error,
            code: "sqlite-journal-mode",
            found: format!("journal_mode is {mode}, so readers and the writer block each other"),
            fix: "put the file on a local disk and open it again: the store turns WAL on".into(),
        });
    }
    if settings.synchronous == Synchronous::Normal {
        findings.push(Finding {
            severity: Severity::Warning,
            code: "sqlite-synchronous",
            found: "synchronous is NORMAL: a power cut can undo claims that were acknowledged"
                .into(),
            fix: "use Synchronous::Full; with many callers its cost is shared".into(),
        });
    }
    let mut log = settings.path.as_os_str().to_owned();
    log.push("-wal");
    if let Some(bytes) = std::fs::metadata(log).map(|log| log.len()).ok().filter(|len| *len > LOG) {
        findings.push(Finding {
            severity: Severity::Warning,
            code: "sqlite-log",
            found: format!(
                "the write-ahead log has {} MiB: it is not folded into the file",
                bytes >> 20
            ),
            fix: "end the transaction that has been reading for long, in whichever program it is"
                .into(),
        });
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    if let Some(kind) = network(&settings.path, &mounts) {
        findings.push(Finding {
            severity: Severity::Error,
            code: "sqlite-network-filesystem",
            found: format!("the file is on {kind}, where SQLite's locks and shared memory fail"),
            fix: "move it to a local disk, or use PostgreSQL or MySQL".into(),
        });
    }
    Ok(findings)
}

/// Returns the type of the file system of `path` if it is a network file system. Works only on
/// Linux.
fn network(path: &Path, mounts: &str) -> Option<String> {
    const REMOTE: [&str; 11] = [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "lustre",
        "fuse.sshfs",
        "fuse.glusterfs",
    ];
    let path = path.canonicalize().ok()?;
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let at = mounted.filter(|(point, _)| path.starts_with(point));
    let (_, kind) = at.max_by_key(|(point, _)| point.len())?;
    REMOTE.contains(&kind).then(|| kind.to_owned())
}

async fn applied(connection: &mut SqliteConnection) -> sqlx::Result<Vec<Applied>> {
    let rows = "SELECT version, checksum FROM semel_migration ORDER BY version";
    let rows = connection.fetch_all(rows).await?;
    rows.iter()
        .map(|row| Ok(Applied { version: row.try_get(0)?, checksum: row.try_get(1)? }))
        .collect()
}

/// Migrates a file in one transaction. SQLite has one writer: a second instance waits in `enter`,
/// and then finds nothing left to do.
struct SchemaMigrator<'a> {
    connection: &'a mut SqliteConnection,
    path: &'a Path,
    patience: Duration,
    /// Whether a statement failed, so that the transaction must be rolled back.
    failed: bool,
}

impl SchemaMigrator<'_> {
    fn named<T>(&mut self, done: sqlx::Result<T>) -> Result<T> {
        self.failed |= done.is_err();
        done.map_err(|error| match failure::primary(&error) {
            Some(failure::ERROR) => {
                let text =
                    "a table or index with a name of the ledger already exists, and is not the ledger's";
                failure::explained(ErrorKind::Misconfigured, "migrate", text, error)
            }
            Some(_) | None => failure::opening(self.path, self.patience, error),
        })
    }
}

impl Migrator for SchemaMigrator<'_> {
    async fn enter(&mut self) -> Result<()> {
        let begun = self.connection.execute(BEGIN).await;
        self.named(begun)?;
        let created = self.connection.execute(HISTORY).await;
        self.named(created).map(drop)
    }

    async fn applied(&mut self) -> Result<Vec<Applied>> {
        let applied = applied(self.connection).await;
        self.named(applied)
    }

    async fn run(&mut self, migration: &Migration) -> Result<()> {
        let done = self.connection.execute(migration.sql).await;
        self.named(done).map(drop)
    }

    async fn note(&mut self, migration: &Migration, checksum: &str) -> Result<()> {
        let note = sqlx::query(NOTE).bind(migration.version).bind(migration.name);
        let done = note.bind(checksum.to_owned()).execute(&mut *self.connection).await;
        self.named(done).map(drop)
    }

    async fn leave(&mut self) -> Result<()> {
        let end = if self.failed { "ROLLBACK" } else { "COMMIT" };
        let done = self.connection.execute(end).await;
        self.named(done).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_behind_a_network_is_recognised_by_where_it_is_mounted() {
        let directory = std::env::temp_dir().canonicalize().expect("there");
        let at = directory.display();
        let local = format!("/dev/sda1 / ext4 rw 0 0\ntmpfs {at} tmpfs rw 0 0\n");
        assert_eq!(network(&directory, &local), None);
        for kind in ["nfs4", "cifs", "9p", "fuse.sshfs"] {
            let remote = format!("/dev/sda1 / ext4 rw 0 0\nhost:/share {at} {kind} rw 0 0\n");
            assert_eq!(network(&directory, &remote).as_deref(), Some(kind));
            let elsewhere =
                format!("/dev/sda1 / ext4 rw 0 0\nhost:/share {at}/other {kind} rw 0 0\n");
            assert_eq!(network(&directory, &elsewhere), None);
        }
    }
}
