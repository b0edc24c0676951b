//! The id map in SQLite: inserting in a caller's transaction, finding on the readers' connections.
//!
//! Verbs that change many rows borrow the writer for a transaction, as an application does. That is
//! rare, and other steps run between two such transactions.

use std::collections::HashSet;

use semel_core::store::{Error, ErrorKind, Result, TransactionalStore};
use semel_ids::PublicId;
use semel_ids::map::{Binding, IdMap, Inserted, MapKey, MapRow};
use semel_ids::resource::ResourceType;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Executor, QueryBuilder, Row as _, Sqlite};

use super::{SqliteStore, SqliteTransaction, failure};
use crate::idmap::{ExistingRow, Raw, Rounds, Twins, Window, judged};
use crate::row::undecodable;

/// A subquery that returns bindings as rows. ?1 is JSON of type, tenant, public id and internal id,
/// all in hex, because SQLite's JSON ends a text at its first NUL.
macro_rules! asked {
    () => {
        "(SELECT q.key AS place, CAST(unhex(q.value ->> 0) AS TEXT) AS resource_type, \
         CAST(unhex(q.value ->> 1) AS TEXT) AS tenant, \
         CAST(unhex(q.value ->> 2) AS TEXT) AS public_id, \
         unhex(q.value ->> 3) AS internal_id FROM json_each(?1) AS q)"
    };
}

/// Inserts the bindings that conflict with no row: ?1 the bindings, ?2 now. The parser needs `WHERE
/// true` before ON CONFLICT.
const PUT: &str = concat!(
    "INSERT INTO semel_id_map (resource_type, tenant, public_id, internal_id, status, created_at, \
     updated_at) SELECT q.resource_type, q.tenant, q.public_id, q.internal_id, 1, ?2, ?2 FROM ",
    asked!(),
    " AS q WHERE true ON CONFLICT DO NOTHING RETURNING resource_type, tenant, public_id"
);

/// Selects the rows that conflict with the bindings ?1: at most two rows per binding.
const LOOK: &str = concat!(
    "WITH q AS MATERIALIZED ",
    asked!(),
    " SELECT q.place, m.internal_id = q.internal_id, m.status FROM q CROSS JOIN semel_id_map AS m \
     ON m.resource_type = q.resource_type AND m.tenant = q.tenant AND m.public_id = q.public_id \
     UNION ALL \
     SELECT q.place, 0, m.status FROM q CROSS JOIN semel_id_map AS m \
     INDEXED BY semel_id_map_internal \
     ON m.resource_type = q.resource_type AND m.tenant = q.tenant \
     AND m.internal_id = q.internal_id WHERE m.public_id <> q.public_id"
);

/// Selects rows by public id: ?1 the type, ?2 the tenant, ?3 JSON of public ids, which are ASCII.
const FIND: &str = "SELECT public_id, internal_id, status FROM semel_id_map WHERE resource_type = ?1 \
     AND tenant = ?2 AND public_id IN (SELECT value FROM json_each(?3))";

/// Revokes those of the rows ?1 that are live; ?2 is now.
const REVOKE: &str = concat!(
    "UPDATE semel_id_map SET status = 0, updated_at = ?2 FROM ",
    asked!(),
    " AS q WHERE semel_id_map.resource_type = q.resource_type AND semel_id_map.tenant = q.tenant \
     AND semel_id_map.public_id = q.public_id AND semel_id_map.status = 1"
);

/// Removes the rows that have the internal id of a binding in ?1 but another public id.
const EVICT: &str = concat!(
    "DELETE FROM semel_id_map WHERE (resource_type, tenant, public_id) IN (\
     SELECT m.resource_type, m.tenant, m.public_id FROM ",
    asked!(),
    " AS q CROSS JOIN semel_id_map AS m INDEXED BY semel_id_map_internal \
     ON m.resource_type = q.resource_type AND m.tenant = q.tenant \
     AND m.internal_id = q.internal_id WHERE m.public_id <> q.public_id)"
);

/// Stores the bindings ?1 as live, in place of any other binding of their public ids; ?2 is now. A
/// row that is already right is not touched.
const OVERWRITE: &str = concat!(
    "INSERT INTO semel_id_map (resource_type, tenant, public_id, internal_id, status, created_at, \
     updated_at) SELECT q.resource_type, q.tenant, q.public_id, q.internal_id, 1, ?2, ?2 FROM ",
    asked!(),
    " AS q WHERE true ON CONFLICT (resource_type, tenant, public_id) DO UPDATE SET \
     internal_id = excluded.internal_id, status = 1, updated_at = excluded.updated_at \
     WHERE semel_id_map.internal_id <> excluded.internal_id OR semel_id_map.status <> 1"
);

const LIST: &str = "SELECT tenant, public_id, internal_id, status FROM semel_id_map \
                    WHERE resource_type = ";

impl IdMap for SqliteStore {
    type Connection = SqliteConnection;

    async fn insert(
        &self,
        connection: &mut SqliteConnection,
        binding: &Binding,
    ) -> Result<Inserted> {
        let mut inserted = self.put(connection, &[binding]).await?;
        Ok(inserted.pop().expect("one answer per binding"))
    }

    async fn insert_many(&self, bindings: &[Binding]) -> Result<Vec<Inserted>> {
        let rounds = Rounds::of(bindings, Twins::Follow);
        let mut inserted = Vec::new();
        let mut transaction = self.begin().await?;
        for round in rounds.each() {
            inserted.push(self.put(Self::connection(&mut transaction), &round).await?);
        }
        self.commit(transaction).await?;
        Ok(rounds.answers(inserted))
    }

    async fn find(
        &self,
        tenant: &str,
        kind: ResourceType,
        publics: &[PublicId],
    ) -> Result<Vec<MapRow>> {
        if publics.is_empty() {
            return Ok(Vec::new());
        }
        let publics: Vec<&str> = publics.iter().map(PublicId::as_str).collect();
        let publics = serde_json::to_string(&publics).expect("texts");
        let query = sqlx::query(FIND).bind(kind.name()).bind(tenant).bind(publics);
        let mut reader = self.0.readers.reader("find").await?;
        let rows = match reader.connection().fetch_all(query).await {
            Ok(rows) => rows,
            Err(error) => return Err(reader.failed("find", error)),
        };
        let found = |row: &SqliteRow| -> sqlx::Result<Raw> {
            let (public, internal, status) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            Ok(Raw { tenant: tenant.to_owned(), public, internal, status })
        };
        rows.iter().map(|row| found(row).map_err(|e| undecodable("find", e))?.row("find")).collect()
    }

    async fn revoke(&self, tenant: &str, kind: ResourceType, public: &PublicId) -> Result<bool> {
        let place = MapKey { tenant: tenant.to_owned(), public: public.as_str().to_owned() };
        Ok(self.revoke_rows(kind, &[place]).await? > 0)
    }

    async fn revoke_in(
        &self,
        connection: &mut SqliteConnection,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> Result<bool> {
        let place = MapKey { tenant: tenant.to_owned(), public: public.as_str().to_owned() };
        Ok(self.revoke_in_transaction(connection, kind, &[place]).await? > 0)
    }

    async fn overwrite(&self, bindings: &[Binding]) -> Result<()> {
        let failed = |error| failure::in_transaction("overwrite", error);
        let rounds = Rounds::of(bindings, Twins::Repeat);
        let mut transaction = self.begin().await?;
        let now = self.0.shared.clock.now().as_micros();
        for round in rounds.each() {
            let connection = Self::connection(&mut transaction);
            let asked = asked(&round);
            let evict = sqlx::query(EVICT).bind(&asked);
            connection.execute(evict).await.map_err(failed)?;
            let overwrite = sqlx::query(OVERWRITE).bind(&asked).bind(now);
            connection.execute(overwrite).await.map_err(failed)?;
        }
        self.commit(transaction).await
    }

    async fn revoke_rows(&self, kind: ResourceType, rows: &[MapKey]) -> Result<u32> {
        if rows.is_empty() {
            return Ok(0);
        }
        let mut transaction: SqliteTransaction = self.begin().await?;
        let revoked =
            self.revoke_in_transaction(Self::connection(&mut transaction), kind, rows).await?;
        self.commit(transaction).await?;
        Ok(revoked)
    }

    async fn list(
        &self,
        kind: ResourceType,
        tenant: Option<&str>,
        after: Option<&MapKey>,
        limit: u32,
    ) -> Result<Vec<MapRow>> {
        let Some(window) = Window::of(tenant, after) else { return Ok(Vec::new()) };
        let mut query = list(kind, window, limit);
        let mut reader = self.0.readers.reader("list").await?;
        let rows = match reader.connection().fetch_all(query.build()).await {
            Ok(rows) => rows,
            Err(error) => return Err(reader.failed("list", error)),
        };
        let listed = |row: &SqliteRow| -> sqlx::Result<Raw> {
            Ok(Raw {
                tenant: row.try_get(0)?,
                public: row.try_get(1)?,
                internal: row.try_get(2)?,
                status: row.try_get(3)?,
            })
        };
        let read = |row| listed(row).map_err(|e| undecodable("list", e))?.row("list");
        rows.iter().map(read).collect()
    }
}

impl SqliteStore {
    /// Revokes rows in the transaction that `connection` is in, and returns how many were live.
    async fn revoke_in_transaction(
        &self,
        connection: &mut SqliteConnection,
        kind: ResourceType,
        rows: &[MapKey],
    ) -> Result<u32> {
        let texts = rows.iter().map(|row| [kind.name(), &row.tenant, &row.public].map(hex));
        let texts = serde_json::to_string(&texts.collect::<Vec<_>>()).expect("texts");
        let now = self.0.shared.clock.now().as_micros();
        let done = connection.execute(sqlx::query(REVOKE).bind(texts).bind(now)).await;
        let done = done.map_err(|error| failure::in_transaction("revoke", error))?;
        Ok(u32::try_from(done.rows_affected()).unwrap_or(u32::MAX))
    }

    /// Inserts bindings that share no id, in the transaction that `connection` is in. Once the
    /// transaction has written it is the only writer, so a conflicting row stays until it is read.
    async fn put(
        &self,
        connection: &mut SqliteConnection,
        bindings: &[&Binding],
    ) -> Result<Vec<Inserted>> {
        let failed = |error| failure::in_transaction("insert", error);
        let now = self.0.shared.clock.now().as_micros();
        let query = sqlx::query(PUT).bind(asked(bindings)).bind(now);
        let written = connection.fetch_all(query).await.map_err(failed)?;
        let name = |row: &SqliteRow| -> sqlx::Result<(String, String, String)> {
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
        };
        let written = written.iter().map(name).collect::<sqlx::Result<HashSet<_>>>();
        let written = written.map_err(failed)?;
        let is_new = |binding: &Binding| {
            let kind = binding.kind().name().to_owned();
            let name = (kind, binding.tenant().to_owned(), binding.public().as_str().to_owned());
            written.contains(&name)
        };
        let mut answers = vec![Inserted::New; bindings.len()];
        let old: Vec<usize> = (0..bindings.len()).filter(|at| !is_new(bindings[*at])).collect();
        if old.is_empty() {
            return Ok(answers);
        }
        let query = old.iter().map(|at| bindings[*at]).collect::<Vec<_>>();
        let query = sqlx::query(LOOK).bind(asked(&query));
        let rows = connection.fetch_all(query).await.map_err(failed)?;
        let existing = rows.iter().map(existing).collect::<sqlx::Result<Vec<_>>>();
        let found = judged(old.len(), &existing.map_err(failed)?);
        for (at, found) in old.into_iter().zip(found) {
            let gone = "a conflicting row was gone when it was read";
            let gone = || Error::new(ErrorKind::RetryTransaction, "insert", gone);
            answers[at] = found.ok_or_else(gone)?;
        }
        Ok(answers)
    }
}

/// Returns bindings as the JSON that the statements expect.
fn asked(bindings: &[&Binding]) -> String {
    let rows = bindings.iter().map(|binding| {
        let (kind, internal) = (binding.kind(), binding.internal().to_bytes());
        let texts = [kind.name(), binding.tenant(), binding.public().as_str()];
        let [kind, tenant, public] = texts.map(hex);
        [kind, tenant, public, super::outbox::hex(&internal)]
    });
    serde_json::to_string(&rows.collect::<Vec<_>>()).expect("texts")
}

fn hex(text: &str) -> String {
    super::outbox::hex(text.as_bytes())
}

fn existing(row: &SqliteRow) -> sqlx::Result<ExistingRow> {
    let place: i64 = row.try_get(0)?;
    let place = usize::try_from(place).unwrap_or(usize::MAX);
    Ok(ExistingRow { place, same: row.try_get(1)?, status: row.try_get(2)? })
}

fn list(kind: ResourceType, window: Window<'_>, limit: u32) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::<Sqlite>::new(LIST);
    query.push_bind(kind.name().to_owned());
    match window {
        Window::All => {}
        Window::After(tenant, public) => {
            query.push(" AND (tenant, public_id) > (").push_bind(tenant.to_owned());
            query.push(", ").push_bind(public.to_owned()).push(")");
        }
        Window::Of(tenant) => {
            query.push(" AND tenant = ").push_bind(tenant.to_owned());
        }
        Window::OfAfter(tenant, public) => {
            query.push(" AND tenant = ").push_bind(tenant.to_owned());
            query.push(" AND public_id > ").push_bind(public.to_owned());
        }
    }
    query.push(" ORDER BY tenant, public_id LIMIT ").push_bind(i64::from(limit));
    query
}

#[cfg(test)]
mod tests {
    use semel_ids::resource::{Order, Resource as _};
    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{AssertSqlSafe, ConnectOptions};

    use super::*;
    use crate::sqlite::MIGRATIONS;

    /// Returns SQLite's query plan for a statement, one step per line.
    async fn plan(text: &str) -> String {
        let options = SqliteConnectOptions::new().in_memory(true);
        let mut connection = options.connect().await.unwrap();
        for migration in MIGRATIONS {
            connection.execute(migration.sql).await.unwrap();
        }
        let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {text}"));
        let rows = connection.fetch_all(explain).await.unwrap();
        let steps = rows.iter().map(|row| row.get::<String, _>("detail"));
        steps
            .filter(|step| !step.contains("SCAN q") && !step.contains("json_each"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[tokio::test]
    async fn rows_are_looked_up_by_the_whole_of_a_key() {
        let (public, internal) = (
            "(resource_type=? AND tenant=? AND public_id=?)",
            "(resource_type=? AND tenant=? AND internal_id=?)",
        );
        for (text, keys) in [
            (FIND, &[public][..]),
            (LOOK, &[public, internal]),
            (REVOKE, &[public]),
            (EVICT, &[public, internal]),
        ] {
            let plan = plan(text).await;
            assert!(keys.iter().all(|key| plan.contains(key)), "{text}\n{plan}");
            assert!(!plan.contains("SCAN m") && !plan.contains("SCAN semel_id_map"), "{plan}");
        }
    }

    #[tokio::test]
    async fn pages_begin_where_the_last_one_ended_and_are_not_sorted() {
        for (window, key) in [
            (Window::All, "(resource_type=?)"),
            (Window::After("t", "p"), "(resource_type=? AND (tenant,public_id)>(?,?))"),
            (Window::Of("t"), "(resource_type=? AND tenant=?)"),
            (Window::OfAfter("t", "p"), "(resource_type=? AND tenant=? AND public_id>?)"),
        ] {
            let plan = plan(list(Order::TYPE, window, 9).sql().as_ref()).await;
            assert!(plan.contains(key), "{window:?}: {plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{plan}");
        }
    }
}
