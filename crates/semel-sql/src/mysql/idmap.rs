//! The id map in MySQL and MariaDB: inserting in a caller's transaction, finding, repairing.
//!
//! Statements outside a caller's transaction have connections of their own at READ COMMITTED, so
//! that finding an id waits neither for the ledger nor for a relay. Texts are sent as bytes, or in
//! hex if many rows are sent as one JSON parameter.

use std::fmt::Write as _;

use semel_core::store::{ErrorKind, Result};
use semel_ids::PublicId;
use semel_ids::map::{Binding, IdMap, Inserted, MapKey, MapRow};
use semel_ids::resource::ResourceType;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, QueryBuilder, Row as _};
use tokio::time::timeout;

use super::MySqlStore;
use super::ledger::failed;
use super::statement::{CLOCK, repeat};
use crate::error::{Stage, corrupt_map, timed_out};
use crate::idmap::{ExistingRow, Raw, Rounds, Twins, Window, judged};
use crate::row::undecodable;

/// Many rows as one parameter: JSON of type, tenant, public id and internal id, in hex.
const ASKED: &str = "JSON_TABLE(?, '$[*]' COLUMNS (place FOR ORDINALITY, k VARCHAR(64) PATH '$[0]', \
     t VARCHAR(128) PATH '$[1]', p VARCHAR(128) PATH '$[2]', i VARCHAR(32) PATH '$[3]')) q";

/// The largest number of bytes of a text in the table.
const LONGEST: usize = 64;

/// The length of the longest list of a find. Smaller lists have lengths that are powers of two, so
/// that each is prepared once.
const LIST: usize = 1024;

/// The condition for the row with a binding's public id.
const BY_PUBLIC: &str = "m.resource_type = UNHEX(q.k) AND m.tenant = UNHEX(q.t) \
     AND m.public_id = UNHEX(q.p)";

/// The condition for a row that has a binding's internal id but another public id.
const BY_INTERNAL: &str = "m.resource_type = UNHEX(q.k) AND m.tenant = UNHEX(q.t) \
     AND m.internal_id = UNHEX(q.i) AND m.public_id <> UNHEX(q.p)";

impl IdMap for MySqlStore {
    type Connection = MySqlConnection;

    /// Inserts with one statement, whose answer reflects the current row at every isolation level.
    /// A conflicting row stays as it is, and is locked until the transaction ends.
    async fn insert(
        &self,
        connection: &mut MySqlConnection,
        binding: &Binding,
    ) -> Result<Inserted> {
        self.in_callers("insert", put(connection, binding)).await
    }

    async fn insert_many(&self, bindings: &[Binding]) -> Result<Vec<Inserted>> {
        let rounds = Rounds::of(bindings, Twins::Follow);
        let mut session = self.lookups.get("insert").await?;
        loop {
            let writing =
                async |connection: &mut MySqlConnection| put_all(connection, &rounds).await;
            if let Some(inserted) = session.settled(writing).await? {
                return Ok(rounds.answers(inserted));
            }
        }
    }

    async fn find(
        &self,
        tenant: &str,
        kind: ResourceType,
        publics: &[PublicId],
    ) -> Result<Vec<MapRow>> {
        let mut session = self.lookups.get("find").await?;
        let mut found = Vec::with_capacity(publics.len());
        for publics in publics.chunks(LIST) {
            let rows = loop {
                let reading = async |connection: &mut MySqlConnection| {
                    find(connection, tenant, kind, publics).await
                };
                if let Some(rows) = session.read(reading).await? {
                    break rows;
                }
            };
            for row in &rows {
                found.push(read(row, "find", 0, tenant.to_owned())?);
            }
        }
        Ok(found)
    }

    async fn revoke(&self, tenant: &str, kind: ResourceType, public: &PublicId) -> Result<bool> {
        let place = MapKey { tenant: tenant.to_owned(), public: public.as_str().to_owned() };
        Ok(self.revoke_rows(kind, &[place]).await? > 0)
    }

    async fn revoke_in(
        &self,
        connection: &mut MySqlConnection,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> Result<bool> {
        if tenant.len() > LONGEST {
            return Ok(false);
        }
        let texts = [[kind.name(), tenant, public.as_str()].map(hex)];
        let texts = serde_json::to_string(&texts).expect("texts");
        Ok(self.in_callers("revoke", revoke(connection, &texts)).await? > 0)
    }

    async fn overwrite(&self, bindings: &[Binding]) -> Result<()> {
        let rounds = Rounds::of(bindings, Twins::Repeat);
        let mut session = self.lookups.get("overwrite").await?;
        loop {
            let writing =
                async |connection: &mut MySqlConnection| overwrite(connection, &rounds).await;
            if let Some(()) = session.settled(writing).await? {
                return Ok(());
            }
        }
    }

    async fn revoke_rows(&self, kind: ResourceType, rows: &[MapKey]) -> Result<u32> {
        let storable = |row: &&MapKey| row.tenant.len() <= LONGEST && row.public.len() <= LONGEST;
        let mut rows: Vec<&MapKey> = rows.iter().filter(storable).collect();
        if rows.is_empty() {
            return Ok(0);
        }
        rows.sort_unstable_by_key(|row| (&row.tenant, &row.public));
        rows.dedup();
        let texts = rows.iter().map(|row| [kind.name(), &row.tenant, &row.public].map(hex));
        let texts = serde_json::to_string(&texts.collect::<Vec<_>>()).expect("texts");
        let mut session = self.lookups.get("revoke").await?;
        loop {
            let writing = async |connection: &mut MySqlConnection| revoke(connection, &texts).await;
            if let Some(revoked) = session.settled(writing).await? {
                return Ok(u32::try_from(revoked).unwrap_or(u32::MAX));
            }
        }
    }

    async fn list(
        &self,
        kind: ResourceType,
        tenant: Option<&str>,
        after: Option<&MapKey>,
        limit: u32,
    ) -> Result<Vec<MapRow>> {
        let Some(window) = Window::of(tenant, after) else { return Ok(Vec::new()) };
        let mut session = self.lookups.get("list").await?;
        let rows = loop {
            let reading = async |connection: &mut MySqlConnection| {
                list(kind, window, limit).build().fetch_all(connection).await
            };
            if let Some(rows) = session.read(reading).await? {
                break rows;
            }
        };
        rows.iter().map(|row| read(row, "list", 1, text(row, 0, "list", "tenant")?)).collect()
    }
}

impl MySqlStore {
    /// Runs a statement in a caller's transaction. If it fails, nothing was committed.
    async fn in_callers<T>(
        &self,
        operation: &'static str,
        doing: impl Future<Output = sqlx::Result<T>>,
    ) -> Result<T> {
        let limit = self.ledger.limit;
        let done = match timeout(limit, doing).await {
            Ok(done) => done.map_err(|error| failed(operation, error)),
            Err(_) => Err(timed_out(Stage::Running, operation, limit)),
        };
        done.map_err(|error| {
            let lost = error.kind() == ErrorKind::Ambiguous;
            if lost { error.with_kind(ErrorKind::Unavailable) } else { error }
        })
    }
}

/// Revokes the given rows, and returns how many were live.
async fn revoke(connection: &mut MySqlConnection, texts: &str) -> sqlx::Result<u64> {
    let text = format!(
        "UPDATE {ASKED} STRAIGHT_JOIN semel_id_map m FORCE INDEX (PRIMARY) ON {BY_PUBLIC} \
         SET m.status = 0, m.updated_at = {CLOCK} WHERE m.status = 1"
    );
    let done = sqlx::query(AssertSqlSafe(text)).bind(texts).execute(connection).await?;
    Ok(done.rows_affected())
}

/// Inserts one binding. If a row conflicts, the statement returns in the insert id what kind of row
/// it is.
async fn put(connection: &mut MySqlConnection, binding: &Binding) -> sqlx::Result<Inserted> {
    // A conflicting row is updated to its own values, which only locks it, and is examined
    // meanwhile. It is found by its public id first.
    let text = format!(
        "INSERT INTO semel_id_map (resource_type, tenant, public_id, internal_id, status, \
         created_at, updated_at) VALUES (?, ?, ?, ?, 1, {CLOCK}, {CLOCK}) \
         ON DUPLICATE KEY UPDATE created_at = created_at + 0 * LAST_INSERT_ID(\
         IF(public_id = ? AND internal_id = ?, IF(status = 1, 1, 2), 3))"
    );
    let (kind, internal) = (binding.kind(), binding.internal().to_bytes());
    let public = binding.public().as_bytes();
    let done = sqlx::query(AssertSqlSafe(text))
        .bind(kind.name().as_bytes())
        .bind(binding.tenant().as_bytes())
        .bind(public)
        .bind(internal.as_slice())
        .bind(public)
        .bind(internal.as_slice())
        .execute(connection)
        .await?;
    Ok(match done.last_insert_id() {
        0 => Inserted::New,
        1 => Inserted::Already,
        2 => Inserted::Revoked,
        _ => Inserted::Conflict,
    })
}

/// Reads which rows exist, then writes the missing ones. A row that appears in between makes the write fail, and
/// all of it is run again.
async fn put_all(
    connection: &mut MySqlConnection,
    rounds: &Rounds<'_>,
) -> sqlx::Result<Vec<Vec<Inserted>>> {
    let look = format!(
        "SELECT CAST(q.place AS SIGNED), CAST(m.internal_id = UNHEX(q.i) AS SIGNED), m.status \
         FROM {ASKED} STRAIGHT_JOIN semel_id_map m FORCE INDEX (PRIMARY) ON {BY_PUBLIC} \
         UNION ALL SELECT CAST(q.place AS SIGNED), 0, m.status FROM {ASKED} \
         STRAIGHT_JOIN semel_id_map m FORCE INDEX (semel_id_map_internal) ON {BY_INTERNAL}"
    );
    let write = format!("{WRITE} {ASKED} ORDER BY q.place").replace("{CLOCK}", CLOCK);
    let mut inserted = Vec::new();
    sqlx::raw_sql("START TRANSACTION").execute(&mut *connection).await?;
    for round in rounds.each() {
        let all = asked(&round);
        let query = sqlx::query(AssertSqlSafe(look.as_str())).bind(&all).bind(&all);
        let rows = query.fetch_all(&mut *connection).await?;
        let existing = rows.iter().map(existing).collect::<sqlx::Result<Vec<_>>>()?;
        let judged = judged(round.len(), &existing);
        let missing = round.iter().zip(&judged).filter(|(_, found)| found.is_none());
        let missing: Vec<&Binding> = missing.map(|(binding, _)| *binding).collect();
        if !missing.is_empty() {
            let query = sqlx::query(AssertSqlSafe(write.as_str())).bind(asked(&missing));
            query.execute(&mut *connection).await?;
        }
        inserted.push(judged.into_iter().map(|found| found.unwrap_or(Inserted::New)).collect());
    }
    sqlx::raw_sql("COMMIT").execute(connection).await?;
    Ok(inserted)
}

/// Inserts live rows; the source of the rows follows.
const WRITE: &str = "INSERT INTO semel_id_map (resource_type, tenant, public_id, internal_id, status, \
     created_at, updated_at) SELECT UNHEX(q.k), UNHEX(q.t), UNHEX(q.p), UNHEX(q.i), 1, {CLOCK}, \
     {CLOCK} FROM";

/// Stores bindings in place of others. Concurrent transactions are not locked out but detected: if
/// a free key is taken meanwhile, the statement fails.
async fn overwrite(connection: &mut MySqlConnection, rounds: &Rounds<'_>) -> sqlx::Result<()> {
    let evict = format!(
        "DELETE m FROM {ASKED} STRAIGHT_JOIN semel_id_map m FORCE INDEX (semel_id_map_internal) \
         ON {BY_INTERNAL}"
    );
    let correct = format!(
        "UPDATE {ASKED} STRAIGHT_JOIN semel_id_map m FORCE INDEX (PRIMARY) ON {BY_PUBLIC} \
         SET m.internal_id = UNHEX(q.i), m.status = 1, m.updated_at = {CLOCK} \
         WHERE m.internal_id <> UNHEX(q.i) OR m.status <> 1"
    );
    let write = format!(
        "{WRITE} {ASKED} LEFT JOIN semel_id_map m FORCE INDEX (PRIMARY) \
         ON {BY_PUBLIC} WHERE m.public_id IS NULL"
    );
    let write = write.replace("{CLOCK}", CLOCK);
    sqlx::raw_sql("START TRANSACTION").execute(&mut *connection).await?;
    for round in rounds.each() {
        let all = asked(&round);
        for text in [&evict, &correct, &write] {
            let query = sqlx::query(AssertSqlSafe(text.as_str())).bind(&all);
            query.execute(&mut *connection).await?;
        }
    }
    sqlx::raw_sql("COMMIT").execute(connection).await?;
    Ok(())
}

/// Looks up at most [`LIST`] ids. The last one is repeated to make the length of the list a power
/// of two.
async fn find(
    connection: &mut MySqlConnection,
    tenant: &str,
    kind: ResourceType,
    publics: &[PublicId],
) -> sqlx::Result<Vec<MySqlRow>> {
    let Some(last) = publics.last() else { return Ok(Vec::new()) };
    let places = publics.len().next_power_of_two();
    let text = format!(
        "SELECT m.public_id, m.internal_id, m.status FROM semel_id_map m FORCE INDEX (PRIMARY) \
         WHERE m.resource_type = ? AND m.tenant = ? AND m.public_id IN ({})",
        repeat("?", places, ",")
    );
    let query = sqlx::query(AssertSqlSafe(text));
    let query = query.bind(kind.name().as_bytes()).bind(tenant.as_bytes());
    let padding = std::iter::repeat(last);
    let ids = publics.iter().chain(padding).take(places);
    ids.fold(query, |query, public| query.bind(public.as_bytes())).fetch_all(connection).await
}

fn list(kind: ResourceType, window: Window<'_>, limit: u32) -> QueryBuilder<MySql> {
    let mut query = QueryBuilder::<MySql>::new(
        "SELECT m.tenant, m.public_id, m.internal_id, m.status FROM semel_id_map m \
         FORCE INDEX (PRIMARY) WHERE m.resource_type = ",
    );
    let bytes = |text: &str| text.as_bytes().to_vec();
    query.push_bind(bytes(kind.name()));
    match window {
        Window::All => {}
        // A comparison of pairs would scan the table.
        Window::After(tenant, public) => {
            query.push(" AND (m.tenant > ").push_bind(bytes(tenant));
            query.push(" OR m.tenant = ").push_bind(bytes(tenant));
            query.push(" AND m.public_id > ").push_bind(bytes(public)).push(")");
        }
        Window::Of(tenant) => {
            query.push(" AND m.tenant = ").push_bind(bytes(tenant));
        }
        Window::OfAfter(tenant, public) => {
            query.push(" AND m.tenant = ").push_bind(bytes(tenant));
            query.push(" AND m.public_id > ").push_bind(bytes(public));
        }
    }
    query.push(" ORDER BY m.tenant, m.public_id LIMIT ").push_bind(limit);
    query
}

/// Returns bindings as the JSON that the statements expect.
fn asked(bindings: &[&Binding]) -> String {
    let rows = bindings.iter().map(|binding| {
        let kind = binding.kind();
        let texts = [kind.name(), binding.tenant(), binding.public().as_str()];
        let [kind, tenant, public] = texts.map(hex);
        [kind, tenant, public, hex_of(&binding.internal().to_bytes())]
    });
    serde_json::to_string(&rows.collect::<Vec<_>>()).expect("texts")
}

fn hex(text: &str) -> String {
    hex_of(text.as_bytes())
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn existing(row: &MySqlRow) -> sqlx::Result<ExistingRow> {
    // Positions are counted from 1.
    let place: i64 = row.try_get(0)?;
    let same: i64 = row.try_get(1)?;
    let place = usize::try_from(place - 1).unwrap_or(usize::MAX);
    Ok(ExistingRow { place, same: same != 0, status: row.try_get(2)? })
}

/// Reads a row of the map, whose public id is at position `at`.
fn read(row: &MySqlRow, operation: &'static str, at: usize, tenant: String) -> Result<MapRow> {
    let bad = |error| undecodable(operation, error);
    let raw = Raw {
        tenant,
        public: text(row, at, operation, "public_id")?,
        internal: row.try_get(at + 1).map_err(bad)?,
        status: row.try_get(at + 2).map_err(bad)?,
    };
    raw.row(operation)
}

fn text(
    row: &MySqlRow,
    at: usize,
    operation: &'static str,
    column: &'static str,
) -> Result<String> {
    let bytes: Vec<u8> = row.try_get(at).map_err(|error| undecodable(operation, error))?;
    String::from_utf8(bytes).map_err(|_| corrupt_map(operation, column))
}
