//! The id map in PostgreSQL: inserting in a caller's transaction, finding, repairing.
//!
//! Statements outside a caller's transaction have connections of their own, so that finding an id
//! waits neither for the ledger nor for a relay. The statements, and why they are correct, are
//! under `queries/`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Result};
use semel_ids::PublicId;
use semel_ids::map::{Binding, IdMap, Inserted, MapKey, MapRow};
use semel_ids::resource::ResourceType;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, QueryBuilder, Row as _};
use tokio::time::timeout;

use super::PgStore;
use super::pool::SessionPool;
use super::session::{Naming, Session};
use super::statement::{failed, failed_in};
use crate::error::{Stage, timed_out};
use crate::idmap::{ExistingRow, Raw, Rounds, Twins, Window, judged};
use crate::pool::{Lifecycle, MAX_CONFLICTS};

const PUT: &str = include_str!("queries/idmap_put.sql");
const LOOK: &str = include_str!("queries/idmap_look.sql");
const FIND: &str = include_str!("queries/idmap_find.sql");
const REVOKE: &str = include_str!("queries/idmap_revoke.sql");
const EVICT: &str = include_str!("queries/idmap_evict.sql");
const OVERWRITE: &str = include_str!("queries/idmap_overwrite.sql");

/// Returns the sessions of the id map: as the ledger's, but they wait for a concurrent writer of an
/// id, since no other caller waits behind them.
pub(super) fn sessions(
    ledger: Session,
    lifecycle: &Arc<Lifecycle>,
    limit: Duration,
) -> SessionPool {
    SessionPool::new(ledger.set("lock_timeout", "0"), 4, lifecycle, limit)
}

impl IdMap for PgStore {
    type Connection = PgConnection;

    async fn insert(&self, connection: &mut PgConnection, binding: &Binding) -> Result<Inserted> {
        let inserted = timeout(self.0.limit, put(self.0.naming, connection, &[binding])).await;
        let inserted = inserted.map_err(|_| {
            // The caller's transaction did not commit, so nothing happened.
            let late = timed_out(Stage::Running, "insert", self.0.limit);
            late.with_kind(ErrorKind::Unavailable)
        })?;
        match inserted.map_err(failed_in("insert"))?.as_slice() {
            [Some(inserted)] => Ok(*inserted),
            _ => Err(Error::new(ErrorKind::RetryTransaction, "insert", VANISHED)),
        }
    }

    async fn insert_many(&self, bindings: &[Binding]) -> Result<Vec<Inserted>> {
        let rounds = Rounds::of(bindings, Twins::Follow);
        let naming = self.0.naming;
        let mut session = self.0.id_map.get("insert").await?;
        let inserted = loop {
            let writing =
                async |connection: &mut PgConnection| put_all(naming, connection, &rounds).await;
            if let Some(inserted) = session.write(writing).await? {
                break inserted;
            }
        };
        let inserted =
            inserted.into_iter().map(|round| round.into_iter().collect::<Option<Vec<_>>>());
        let vanished = || Error::new(ErrorKind::Unavailable, "insert", VANISHED);
        Ok(rounds.answers(inserted.collect::<Option<Vec<_>>>().ok_or_else(vanished)?))
    }

    async fn find(
        &self,
        tenant: &str,
        kind: ResourceType,
        publics: &[PublicId],
    ) -> Result<Vec<MapRow>> {
        if publics.is_empty() || tenant.contains('\0') {
            return Ok(Vec::new());
        }
        let mut publics: Vec<&str> = publics.iter().map(PublicId::as_str).collect();
        publics.sort_unstable();
        publics.dedup();
        let naming = self.0.naming;
        let mut session = self.0.id_map.get("find").await?;
        let rows = loop {
            let reading = async |connection: &mut PgConnection| {
                let query = naming.query(FIND).bind(kind.name()).bind(tenant).bind(&publics);
                query.fetch_all(connection).await
            };
            if let Some(rows) = session.read(reading).await? {
                break rows;
            }
        };
        rows.iter().map(|row| found(row, tenant)).collect()
    }

    async fn revoke(&self, tenant: &str, kind: ResourceType, public: &PublicId) -> Result<bool> {
        let place = MapKey { tenant: tenant.to_owned(), public: public.as_str().to_owned() };
        Ok(self.revoke_rows(kind, &[place]).await? > 0)
    }

    async fn revoke_in(
        &self,
        connection: &mut PgConnection,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> Result<bool> {
        if tenant.contains('\0') {
            return Ok(false);
        }
        let query = self.0.naming.query(REVOKE).bind(kind.name());
        let query = query.bind([tenant]).bind([public.as_str()]);
        let done = timeout(self.0.limit, query.execute(connection)).await;
        let done = done.map_err(|_| {
            // The caller's transaction did not commit, so nothing happened.
            let late = timed_out(Stage::Running, "revoke", self.0.limit);
            late.with_kind(ErrorKind::Unavailable)
        })?;
        Ok(done.map_err(failed_in("revoke"))?.rows_affected() > 0)
    }

    async fn overwrite(&self, bindings: &[Binding]) -> Result<()> {
        let rounds = Rounds::of(bindings, Twins::Repeat);
        let naming = self.0.naming;
        let mut session = self.0.id_map.get("overwrite").await?;
        loop {
            let writing =
                async |connection: &mut PgConnection| overwrite(naming, connection, &rounds).await;
            if let Some(()) = session.write(writing).await? {
                return Ok(());
            }
        }
    }

    async fn revoke_rows(&self, kind: ResourceType, rows: &[MapKey]) -> Result<u32> {
        // No stored text contains NUL, and the server would refuse the query.
        let storable = |row: &&MapKey| !row.tenant.contains('\0') && !row.public.contains('\0');
        let mut rows: Vec<&MapKey> = rows.iter().filter(storable).collect();
        if rows.is_empty() {
            return Ok(0);
        }
        rows.sort_unstable_by_key(|row| (&row.tenant, &row.public));
        let tenants: Vec<&str> = rows.iter().map(|row| row.tenant.as_str()).collect();
        let publics: Vec<&str> = rows.iter().map(|row| row.public.as_str()).collect();
        let naming = self.0.naming;
        let mut session = self.0.id_map.get("revoke").await?;
        loop {
            let writing = async |connection: &mut PgConnection| {
                let query = naming.query(REVOKE).bind(kind.name());
                query.bind(&tenants).bind(&publics).execute(connection).await
            };
            if let Some(done) = session.write_one(writing).await? {
                return Ok(u32::try_from(done.rows_affected()).unwrap_or(u32::MAX));
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
        let Some(window) = Window::of(tenant, after).filter(|window| !window.holds_nul()) else {
            return Ok(Vec::new());
        };
        let mut session = self.0.id_map.get("list").await?;
        let rows = loop {
            let reading = async |connection: &mut PgConnection| {
                list(kind, window, limit).build().persistent(false).fetch_all(connection).await
            };
            if let Some(rows) = session.read(reading).await? {
                break rows;
            }
        };
        rows.iter().map(listed).collect()
    }
}

async fn put_all(
    naming: Naming,
    connection: &mut PgConnection,
    rounds: &Rounds<'_>,
) -> sqlx::Result<Vec<Vec<Option<Inserted>>>> {
    let mut inserted = Vec::new();
    for round in rounds.each() {
        inserted.push(put(naming, connection, &round).await?);
    }
    Ok(inserted)
}

async fn overwrite(
    naming: Naming,
    connection: &mut PgConnection,
    rounds: &Rounds<'_>,
) -> sqlx::Result<()> {
    for round in rounds.each() {
        for sql in [EVICT, OVERWRITE] {
            bound(naming.query(sql), &round).execute(&mut *connection).await?;
        }
    }
    Ok(())
}

const VANISHED: &str = "each time a conflicting row was met, it was gone when it was read";

/// Inserts bindings that share no id and returns one answer each; `None` if a conflicting row was
/// gone each time it was read.
async fn put(
    naming: Naming,
    connection: &mut PgConnection,
    bindings: &[&Binding],
) -> sqlx::Result<Vec<Option<Inserted>>> {
    let mut answers: Vec<Option<Inserted>> = vec![None; bindings.len()];
    for _ in 0..=MAX_CONFLICTS {
        let open: Vec<usize> = (0..bindings.len()).filter(|at| answers[*at].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let asked: Vec<&Binding> = open.iter().map(|at| bindings[*at]).collect();
        let written = bound(naming.query(PUT), &asked).fetch_all(&mut *connection).await?;
        let name = |row: &PgRow| -> sqlx::Result<(String, String, String)> {
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
        };
        let written = written.iter().map(name).collect::<sqlx::Result<HashSet<_>>>()?;
        let named = |binding: &Binding| {
            let kind = binding.kind().name().to_owned();
            (kind, binding.tenant().to_owned(), binding.public().as_str().to_owned())
        };
        let is_new = |at: &usize| written.contains(&named(bindings[*at]));
        let (new, old): (Vec<usize>, Vec<usize>) = open.into_iter().partition(is_new);
        for at in new {
            answers[at] = Some(Inserted::New);
        }
        if old.is_empty() {
            break;
        }
        let asked: Vec<&Binding> = old.iter().map(|at| bindings[*at]).collect();
        let rows = bound(naming.query(LOOK), &asked).fetch_all(&mut *connection).await?;
        let existing = rows.iter().map(existing).collect::<sqlx::Result<Vec<_>>>()?;
        for (at, answer) in old.iter().zip(judged(old.len(), &existing)) {
            answers[*at] = answer;
        }
    }
    Ok(answers)
}

fn bound<'q>(
    query: Query<'q, Postgres, PgArguments>,
    bindings: &[&Binding],
) -> Query<'q, Postgres, PgArguments> {
    fn column<C>(bindings: &[&Binding], cell: impl Fn(&Binding) -> C) -> Vec<C> {
        bindings.iter().map(|binding| cell(binding)).collect()
    }
    query
        .bind(column(bindings, |binding| binding.kind().name().to_owned()))
        .bind(column(bindings, |binding| binding.tenant().to_owned()))
        .bind(column(bindings, |binding| binding.public().as_str().to_owned()))
        .bind(column(bindings, |binding| binding.internal().to_bytes().to_vec()))
}

fn existing(row: &PgRow) -> sqlx::Result<ExistingRow> {
    // Positions are counted from 1.
    let place: i64 = row.try_get(0)?;
    let place = usize::try_from(place - 1).unwrap_or(usize::MAX);
    Ok(ExistingRow { place, same: row.try_get(1)?, status: row.try_get(2)? })
}

fn found(row: &PgRow, tenant: &str) -> Result<MapRow> {
    let read = || -> sqlx::Result<Raw> {
        Ok(Raw {
            tenant: tenant.to_owned(),
            public: row.try_get(0)?,
            internal: row.try_get(1)?,
            status: row.try_get(2)?,
        })
    };
    read().map_err(failed("find"))?.row("find")
}

fn list(kind: ResourceType, window: Window<'_>, limit: u32) -> QueryBuilder<Postgres> {
    let mut query = QueryBuilder::<Postgres>::new(
        "select m.tenant, m.public_id, m.internal_id, m.status from semel_id_map m \
         where m.resource_type = ",
    );
    query.push_bind(kind.name().to_owned());
    match window {
        Window::All => {}
        Window::After(tenant, public) => {
            query.push(" and (m.tenant, m.public_id) > (").push_bind(tenant.to_owned());
            query.push(", ").push_bind(public.to_owned()).push(")");
        }
        Window::Of(tenant) => {
            query.push(" and m.tenant = ").push_bind(tenant.to_owned());
        }
        Window::OfAfter(tenant, public) => {
            query.push(" and m.tenant = ").push_bind(tenant.to_owned());
            query.push(" and m.public_id > ").push_bind(public.to_owned());
        }
    }
    query.push(" order by m.tenant, m.public_id limit ").push_bind(i64::from(limit));
    query
}

fn listed(row: &PgRow) -> Result<MapRow> {
    let read = || -> sqlx::Result<Raw> {
        Ok(Raw {
            tenant: row.try_get(0)?,
            public: row.try_get(1)?,
            internal: row.try_get(2)?,
            status: row.try_get(3)?,
        })
    };
    read().map_err(failed("list"))?.row("list")
}
