//! The schema in PostgreSQL, and the checks of the schema and of the server.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Finding, Result, Severity};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use tokio::time::timeout;

use super::session::{Naming, Session};
use super::statement::{failed, unconnected};
use super::{OPERATOR_PATIENCE, PgStore};
use crate::error::{Stage, timed_out};
use crate::migrate::{self, Applied, CLOCK, ID_MAP, IDENTITY, Migration, Migrator, RECORD, Shape};
use crate::outbox::PG_OUTBOX;
use crate::routine::{self, Dialect};

/// The migrations, in order.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "ledger",
        sql: include_str!("../../migrations/postgres/1-ledger.sql"),
    },
    Migration {
        version: 2,
        name: "outbox",
        sql: include_str!("../../migrations/postgres/2-outbox.sql"),
    },
    Migration {
        version: 3,
        name: "id map",
        sql: include_str!("../../migrations/postgres/3-idmap.sql"),
    },
    Migration {
        version: 4,
        name: "outbox lease",
        sql: include_str!("../../migrations/postgres/4-outbox-lease.sql"),
    },
    Migration {
        version: 5,
        name: "outbox written by others",
        sql: include_str!("../../migrations/postgres/5-outbox-written-by-others.sql"),
    },
    Migration {
        version: 6,
        name: "functions",
        sql: include_str!("../../migrations/postgres/6-functions.sql"),
    },
];

/// The tables that the statements need.
const SHAPES: &[Shape] = &[RECORD, CLOCK, PG_OUTBOX, ID_MAP];

/// The advisory lock under which one instance migrates: the letters `semel`. Every version of this
/// crate must use the same number.
const LOCK: i64 = 0x0073_656d_656c;

const HISTORY: &str = "create table if not exists semel_migration (
    version    integer not null primary key,
    name       text    not null,
    checksum   text    not null,
    applied_at bigint  not null
)";

const NOTE: &str = "insert into semel_migration (version, name, checksum, applied_at)
values ($1, $2, $3, (extract(epoch from clock_timestamp()) * 1000000)::bigint)";

/// Returns the whole schema as one script, for migrating by hand.
pub fn print() -> String {
    let note = |migration: &Migration| {
        let Migration { version, name, .. } = migration;
        let checksum = migration.checksum();
        format!(
            "{HISTORY};\ninsert into semel_migration (version, name, checksum, applied_at)\nvalues \
             ({version}, '{name}', '{checksum}', (extract(epoch from clock_timestamp()) * \
             1000000)::bigint);"
        )
    };
    migrate::print("PostgreSQL", MIGRATIONS, note)
}

impl PgStore {
    /// Brings the schema up to date, in one transaction. Any number of instances may call it at
    /// once. Returns the versions that were applied, none if the schema was up to date.
    ///
    /// # Errors
    /// `Misconfigured` if the role lacks a privilege, or the database ran other statements under
    /// the number of a known migration.
    pub async fn migrate(&self) -> Result<Vec<i32>> {
        // A connection of its own, without time limits: an index on a large table takes long.
        let mut connection = self.0.plain.connect().await.map_err(unconnected("migrate"))?;
        let (naming, limit) = (self.0.naming, self.0.limit * OPERATOR_PATIENCE);
        let mut migrator = PgMigrator { connection: &mut connection, naming, limit };
        migrate::apply(&mut migrator, MIGRATIONS).await
    }

    /// Checks the schema and returns what is missing or wrong. An empty list means that nothing is.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub async fn verify(&self) -> Result<Vec<Finding>> {
        let naming = self.0.naming;
        self.0
            .operators
            .transact("verify", move |connection| Box::pin(verify(naming, connection)))
            .await
    }
}

struct PgMigrator<'c> {
    connection: &'c mut PgConnection,
    naming: Naming,
    /// How long the commit may take: no limit of the server ends it while it waits for a standby.
    /// The statements may take as long as they need.
    limit: Duration,
}

impl Migrator for PgMigrator<'_> {
    async fn enter(&mut self) -> Result<()> {
        let fail = failed("migrate");
        // Read committed, whatever the database's default: after the wait for the lock, migrations
        // applied by others must be visible.
        let begin = sqlx::raw_sql("begin isolation level read committed");
        begin.execute(&mut *self.connection).await.map_err(&fail)?;
        let lock = self.naming.query("select pg_advisory_xact_lock($1)").bind(LOCK);
        lock.execute(&mut *self.connection).await.map_err(&fail)?;
        sqlx::raw_sql(HISTORY).execute(&mut *self.connection).await.map_err(&fail)?;
        Ok(())
    }

    async fn applied(&mut self) -> Result<Vec<Applied>> {
        applied(self.naming, self.connection).await.map_err(failed("migrate"))
    }

    async fn run(&mut self, migration: &Migration) -> Result<()> {
        let run = sqlx::raw_sql(migration.sql).execute(&mut *self.connection).await;
        run.map(drop).map_err(failed("migrate"))
    }

    async fn note(&mut self, migration: &Migration, checksum: &str) -> Result<()> {
        let noted = self
            .naming
            .query(NOTE)
            .bind(migration.version)
            .bind(migration.name)
            .bind(checksum)
            .execute(&mut *self.connection)
            .await;
        noted.map(drop).map_err(failed("migrate"))
    }

    async fn leave(&mut self) -> Result<()> {
        // After a failed statement the server turns this into a rollback.
        let commit = async { sqlx::raw_sql("commit").execute(&mut *self.connection).await };
        let done = timeout(self.limit, commit).await;
        let done = done.map_err(|_| timed_out(Stage::Running, "migrate", self.limit))?;
        done.map(drop).map_err(failed("migrate"))
    }
}

async fn applied(naming: Naming, connection: &mut PgConnection) -> sqlx::Result<Vec<Applied>> {
    let query = naming.query("select version, checksum from semel_migration order by version");
    let rows = query.fetch_all(connection).await?;
    let read = |row: &sqlx::postgres::PgRow| {
        Ok(Applied { version: row.try_get(0)?, checksum: row.try_get(1)? })
    };
    rows.iter().map(read).collect()
}

/// Checks the schema. Runs in a transaction of its own.
async fn verify(naming: Naming, connection: &mut PgConnection) -> Result<Vec<Finding>> {
    let fail = failed("verify");
    let mut findings = Vec::new();
    let kept = naming.query("select to_regclass('semel_migration') is not null");
    let kept = kept.fetch_one(&mut *connection).await.and_then(|row| row.try_get(0));
    let history = match kept.map_err(&fail)? {
        true => applied(naming, connection).await.map_err(&fail)?,
        false => Vec::new(),
    };
    findings.extend(migrate::history(MIGRATIONS, &history));
    for shape in SHAPES {
        let columns = naming.query(COLUMNS).bind(shape.table);
        let columns = texts(columns.fetch_all(&mut *connection).await).map_err(&fail)?;
        let indexes = naming.query(INDEXES).bind(shape.table);
        let indexes = texts(indexes.fetch_all(&mut *connection).await).map_err(&fail)?;
        findings.extend(migrate::shape(shape, &columns, &indexes));
        findings.extend(keys(naming, connection, shape).await?);
    }
    findings.extend(collations(naming, connection).await?);
    findings.extend(functions(naming, connection, &history).await?);
    migrate::advise_on_missing_tables(&mut findings);
    Ok(findings)
}

const ROUTINES: Dialect =
    Dialect { create: "create function ", begin: "as $semel$", end: "$semel$", is_mysql: false };

/// The functions of the schema, without the schema's name. One that lost the rights of its owner or its
/// own `search_path` is another function, and so is one whose trigger is gone or disabled.
const FUNCTIONS: &str = "select p.proname::text, case
        when p.proname = 'semel_refuse_unfinished' and not exists (
            select from pg_trigger t
            where t.tgfoid = p.oid and t.tgdeferrable and t.tginitdeferred and t.tgenabled in ('O', 'A'))
            then ''
        when p.proname in ('semel_append', 'semel_begin', 'semel_complete', 'semel_fail', 'semel_handle',
            'semel_refuse_unfinished', 'semel_register_id', 'semel_resolve_id')
            and not (p.prosecdef and coalesce(p.proconfig, '{}') @> array['search_path=pg_catalog, pg_temp'])
            then ''
        else replace(p.prosrc, quote_ident(n.nspname) || '.semel_', 'semel_') end
    from pg_proc p join pg_class c on c.relnamespace = p.pronamespace join pg_namespace n on n.oid = p.pronamespace
    where c.oid = to_regclass('semel_record') and p.proname like 'semel\\_%'";

/// Reports functions that are missing or changed.
async fn functions(
    naming: Naming,
    connection: &mut PgConnection,
    history: &[Applied],
) -> Result<Vec<Finding>> {
    let rows = naming.query(FUNCTIONS).fetch_all(connection).await.map_err(failed("verify"))?;
    let body = |row: &PgRow| {
        let source: String = row.try_get(1)?;
        Ok((row.try_get(0)?, Some(routine::squeezed(&source))))
    };
    let found: BTreeMap<String, Option<String>> =
        rows.iter().map(body).collect::<sqlx::Result<_>>().map_err(failed("verify"))?;
    Ok(routine::compare(&routine::installed(MIGRATIONS, history, &ROUTINES), &found))
}

const COLUMNS: &str = "select attname::text from pg_attribute
    where attrelid = to_regclass($1) and attnum > 0 and not attisdropped";
const INDEXES: &str = "select c.relname::text
    from pg_index i join pg_class c on c.oid = i.indexrelid
    where i.indrelid = to_regclass($1) and i.indisvalid";

/// Reads the first column of each row.
fn texts(rows: sqlx::Result<Vec<PgRow>>) -> sqlx::Result<Vec<String>> {
    rows?.iter().map(|row| row.try_get(0)).collect()
}

const UNIQUE: &str = "select exists (
        select from pg_index i
        where i.indrelid = to_regclass($1) and i.indisunique and i.indisvalid
            and i.indpred is null and i.indnatts = cardinality($2::text[])
            and $2::text[] @> array(
                select a.attname::text from pg_attribute a
                where a.attrelid = i.indrelid and a.attnum = any (i.indkey)))
    where to_regclass($1) is not null";

/// Reports keys of a table that are not unique: without them, as in a table that was copied without
/// its indexes, no statement is correct.
async fn keys(
    naming: Naming,
    connection: &mut PgConnection,
    shape: &Shape,
) -> Result<Vec<Finding>> {
    let Shape { table, keys, .. } = shape;
    let mut findings = Vec::new();
    for key in *keys {
        let unique = naming.query(UNIQUE).bind(table).bind(key.to_vec());
        let unique = unique.fetch_optional(&mut *connection).await;
        let unique: Option<bool> = unique
            .and_then(|row| row.map(|row| row.try_get(0)).transpose())
            .map_err(failed("verify"))?;
        if unique == Some(false) {
            let key = key.join(", ");
            findings.push(Finding {
                severity: Severity::Error,
                code: "sql-key-missing",
                found: format!("table {table} does not keep {key} unique"),
                fix: format!("make ({key}) unique; without it an operation can take effect twice"),
            });
        }
    }
    Ok(findings)
}

/// Reports identifying columns of the id map whose collation is not `C`, `POSIX` or `ucs_basic`, which
/// compare byte by byte.
async fn collations(naming: Naming, connection: &mut PgConnection) -> Result<Vec<Finding>> {
    let query = naming.query(
        "select a.attname::text, c.collname::text
        from pg_attribute a join pg_collation c on c.oid = a.attcollation
        where a.attrelid = to_regclass($1) and a.attname = any ($2) and not a.attisdropped
            and c.collname not in ('C', 'POSIX', 'ucs_basic')
        order by a.attnum",
    );
    let query = query.bind(ID_MAP.table).bind(IDENTITY.to_vec());
    let rows = query.fetch_all(connection).await.map_err(failed("verify"))?;
    let names = |row: &PgRow| Ok((row.try_get(0)?, row.try_get(1)?));
    let others: sqlx::Result<Vec<(String, String)>> = rows.iter().map(names).collect();
    let finding = |(column, collation): (String, String)| Finding {
        severity: Severity::Error,
        code: "postgres-collation",
        found: format!("column {column} of semel_id_map is compared by the collation {collation}"),
        fix: format!(
            "alter it to `{column} text collate \"C\"`, as in the script of `semel migrate print`"
        ),
    };
    Ok(others.map_err(failed("verify"))?.into_iter().map(finding).collect())
}

const SETTINGS: &str = "select current_setting('default_transaction_isolation'),
    pg_is_in_recovery(), current_setting('server_version_num')::integer,
    current_setting('transaction_read_only'), current_setting('server_encoding')";

/// Connects, and refuses a database that cannot store every key: a key that it cannot store would
/// fail a whole batch of other callers' steps.
pub(super) async fn greet(session: &Session) -> Result<PgConnection> {
    let mut connection = session.connect().await.map_err(unconnected("connect"))?;
    let encoding = sqlx::raw_sql("show server_encoding").fetch_one(&mut connection).await;
    let encoding: String =
        encoding.and_then(|row| row.try_get(0)).map_err(unconnected("connect"))?;
    match misencoded(&encoding) {
        None => Ok(connection),
        Some(Finding { found, fix, .. }) => {
            Err(Error::new(ErrorKind::Misconfigured, "connect", format!("{found}; {fix}")))
        }
    }
}

fn misencoded(encoding: &str) -> Option<Finding> {
    (encoding != "UTF8").then(|| Finding {
        severity: Severity::Error,
        code: "postgres-encoding",
        found: format!("the database's encoding is {encoding}, which cannot hold every key"),
        fix: "use a database that was created with encoding UTF8".into(),
    })
}

/// Checks the server's set-up and the schema. Runs in a transaction of its own.
pub(super) async fn check(naming: Naming, connection: &mut PgConnection) -> Result<Vec<Finding>> {
    let fail = failed("check");
    let row = naming.query(SETTINGS).fetch_one(&mut *connection).await.map_err(&fail)?;
    let text = |at: usize| row.try_get::<String, _>(at).map_err(&fail);
    let standby: bool = row.try_get(1).map_err(&fail)?;
    let version: i32 = row.try_get(2).map_err(&fail)?;
    let mut findings = Vec::new();
    let mut find = |bad: bool, severity, code, found: String, fix: &str| {
        if bad {
            findings.push(Finding { severity, code, found, fix: fix.into() });
        }
    };
    let isolation = text(0)?;
    let found = format!("transactions run at {isolation} by default");
    let fix = "expect RetryTransaction, or set default_transaction_isolation to read committed";
    let unusual = isolation != "read committed";
    find(unusual, Severity::Warning, "postgres-isolation", found, fix);
    let found = "the server is a standby and takes no writes".to_owned();
    find(standby, Severity::Error, "postgres-standby", found, "connect to the primary");
    let read_only = !standby && text(3)? == "on";
    let found = "sessions of this role are read-only".to_owned();
    let fix = "unset default_transaction_read_only";
    find(read_only, Severity::Error, "postgres-read-only", found, fix);
    let found = format!("the server's version number is {version}");
    let fix = "use PostgreSQL 13 or later";
    find(version < 130_000, Severity::Error, "postgres-version", found, fix);
    findings.extend(misencoded(&text(4)?));
    findings.extend(verify(naming, connection).await?);
    Ok(findings)
}
