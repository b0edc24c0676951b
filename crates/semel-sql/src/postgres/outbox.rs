//! The outbox in PostgreSQL: appending in a caller's transaction, leasing, marking.
//!
//! Claims and marks are one statement each, on connections of their own, so that neither the ledger
//! nor another batch waits for them. The operators' verbs are in `operators`; the statements, and
//! why they are correct with several relays, are under `queries/`.

mod operators;

use std::sync::Arc;
use std::time::Duration;

use semel_core::claim::AttemptId;
use semel_core::clock::micros;
use semel_core::event::Event;
use semel_core::outbox::{
    Applied, Backlog, Bell, ClaimRequest, Cleaned, Disposition, Leased, Marked, Outbox, Row,
    RowAction, Selection, Ticket,
};
use semel_core::store::Result;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, PgConnection, Postgres, Row as _, SqlSafeStr, SqlStr};
use tokio::time::timeout;

use super::PgStore;
use super::pool::SessionPool;
use super::session::{Naming, Session};
use super::statement::{failed, refused_in, text};
use crate::error::{Stage, timed_out};
use crate::outbox::{
    Claimed, Cursor, EventRow, LARGEST, LONG, Marks, SHORT, Scanned, Search, Stored, chunks,
};
use crate::pool::Lifecycle;

const APPEND: &str = include_str!("queries/outbox_append.sql");
pub(super) const APPEND_ONE: &str = include_str!("queries/outbox_append_one.sql");
const CLAIM: &str = include_str!("queries/outbox_claim.sql");
const PUT_OFF: &str = include_str!("queries/outbox_put_off.sql");
const MARK: &str = include_str!("queries/outbox_mark.sql");

/// The largest number of rows and of bytes in one statement of an append: enough that trips cost
/// little beside the rows.
const CHUNK: (usize, usize) = (500, 4 << 20);

/// The outbox's own sessions and bell, and how far a test's claims have come.
#[derive(Debug)]
pub(super) struct OutboxSessions {
    sessions: SessionPool,
    bell: Bell,
    cursor: Cursor,
}

impl OutboxSessions {
    /// Creates the sessions with the ledger's settings, except for three. Claims must read their
    /// index in its order, whatever the planner believes of a table that is empty at one moment and
    /// full at the next. A mark may have to wait while rows behind its own are put off, longer than
    /// the ledger waits for any lock.
    pub(super) fn new(ledger: Session, lifecycle: &Arc<Lifecycle>, limit: Duration) -> Self {
        let session = ledger
            .set("enable_bitmapscan", "off")
            .set("enable_sort", "off")
            .set("lock_timeout", "5000");
        // A claim or a mark takes a few milliseconds of a connection.
        let sessions = SessionPool::new(session, 4, lifecycle, limit);
        Self { sessions, bell: Bell::default(), cursor: Cursor::default() }
    }

    /// Closes the sessions.
    pub(super) fn close(&self) {
        self.sessions.close();
    }
}

impl PgStore {
    /// Writes events in the transaction that the connection is in.
    pub(super) async fn append_rows(
        &self,
        connection: &mut PgConnection,
        rows: &[EventRow<'_>],
    ) -> Result<()> {
        for chunk in chunks(rows, CHUNK.0, CHUNK.1) {
            let naming = self.0.naming;
            let query =
                if let [row] = chunk { append_one(naming, row) } else { append(naming, chunk) };
            let sent = query.execute(&mut *connection);
            timeout(self.0.limit, sent)
                .await
                .map_err(|_| {
                    let late = timed_out(Stage::Running, "append", self.0.limit);
                    late.with_kind(semel_core::store::ErrorKind::Unavailable)
                })?
                .map_err(refused_in("append"))?;
        }
        Ok(())
    }

    /// Puts off the due rows that wait behind others of their partition, among those that are due
    /// first.
    async fn put_off(&self, search: &Search) -> Result<Scanned> {
        let (naming, step, window) = (self.0.naming, search.step(), search.window());
        let putting =
            self.0.outbox.sessions.run("claim", move |connection| {
                Box::pin(put_off(naming, connection, step, window))
            });
        putting.await
    }
}

impl Outbox for PgStore {
    type Connection = PgConnection;

    async fn append(&self, connection: &mut PgConnection, events: &[Event]) -> Result<()> {
        let rows: Vec<EventRow<'_>> = events.iter().map(EventRow::of).collect();
        self.append_rows(connection, &rows).await
    }

    async fn claim(&self, ask: ClaimRequest) -> Result<Vec<Leased>> {
        let outbox = &self.0.outbox;
        let mut search = Search::new(ask.limit);
        loop {
            let token = AttemptId::generate();
            let (sql, window) = (claim_text(&outbox.cursor), search.window());
            let query = self.0.naming.text(sql);
            let claiming = self.0.outbox.sessions.run("claim", move |connection| {
                Box::pin(claim(connection, query, ask, token, window))
            });
            let (leased, more) = claiming.await?;
            if !ask.look_further {
                // What there is in the window is all that was asked for.
            } else if leased.is_empty() {
                if search.goes_on(self.put_off(&search).await?) {
                    continue;
                }
                if search.gave_up() {
                    outbox.bell.ring();
                }
            } else if more && leased.len() < ask.limit as usize {
                // For the next claim. The leased rows are returned even if this fails.
                let _ = self.put_off(&search).await;
            }
            outbox.cursor.passed(&leased);
            return Ok(leased);
        }
    }

    async fn mark(&self, marks: &[(Ticket, Disposition)]) -> Result<Vec<Marked>> {
        let marks = Marks::of(marks);
        if marks.rows.is_empty() {
            return Ok(marks.answers([]));
        }
        let tokens: Vec<Vec<u8>> = marks.rows.iter().map(|row| row.token.to_vec()).collect();
        let errors: Vec<Option<String>> =
            marks.rows.iter().map(|row| row.error.map(Into::into)).collect();
        let query = self
            .0
            .naming
            .query(MARK)
            .bind(marks.rows.iter().map(|row| row.sequence).collect::<Vec<_>>())
            .bind(tokens)
            .bind(marks.rows.iter().map(|row| row.disposition).collect::<Vec<_>>())
            .bind(marks.rows.iter().map(|row| row.after_us).collect::<Vec<_>>())
            .bind(errors);
        Ok(marks.answers(
            self.0
                .outbox
                .sessions
                .run("mark", |connection| Box::pin(mark(connection, query)))
                .await?,
        ))
    }

    async fn backlog(&self) -> Result<Backlog> {
        let naming = self.0.naming;
        self.0
            .outbox
            .sessions
            .run("backlog", move |connection| Box::pin(operators::backlog(naming, connection)))
            .await
    }

    async fn list(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Row>> {
        if operators::holds_nul(selection) {
            return Ok(Vec::new());
        }
        let selection = selection.clone();
        self.0
            .operators
            .run("list", move |connection| {
                Box::pin(operators::list(connection, selection, after, limit))
            })
            .await
    }

    async fn count(&self, selection: &Selection, verb: &RowAction) -> Result<u64> {
        if operators::holds_nul(selection) {
            return Ok(0);
        }
        let (selection, verb) = (selection.clone(), verb.clone());
        self.0
            .operators
            .run("count", move |connection| Box::pin(operators::count(connection, selection, verb)))
            .await
    }

    async fn apply(
        &self,
        selection: &Selection,
        verb: &RowAction,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Applied> {
        if operators::holds_nul(selection) {
            return Ok(Applied::default());
        }
        let (selection, verb) = (selection.clone(), verb.clone());
        let naming = self.0.naming;
        let applied = self
            .0
            .operators
            .transact("apply", move |connection| {
                Box::pin(operators::apply(naming, connection, selection, verb, after, limit))
            })
            .await?;
        self.0.outbox.bell.ring();
        Ok(applied)
    }

    async fn clean(&self, keep: Duration, limit: u32) -> Result<Cleaned> {
        let naming = self.0.naming;
        self.0
            .outbox
            .sessions
            .run("clean", move |connection| {
                Box::pin(operators::clean(naming, connection, keep, limit))
            })
            .await
    }

    fn bell(&self) -> &Bell {
        &self.0.outbox.bell
    }
}

fn append_one<'q>(naming: Naming, row: &'q EventRow<'q>) -> Query<'q, Postgres, PgArguments> {
    naming
        .query(APPEND_ONE)
        .bind(&*row.id)
        .bind(row.tenant)
        .bind(row.aggregatetype)
        .bind(row.aggregateid)
        .bind(row.kind)
        .bind(row.source)
        .bind(row.payload_text())
        .bind(row.payload_bytes())
        .bind(row.content_type)
        .bind(&*row.headers)
        .bind(&*row.occurred_at)
}

fn append<'q>(naming: Naming, rows: &'q [EventRow<'q>]) -> Query<'q, Postgres, PgArguments> {
    fn column<'q, C>(rows: &'q [EventRow<'q>], cell: impl Fn(&'q EventRow<'q>) -> C) -> Vec<C> {
        rows.iter().map(cell).collect()
    }
    naming
        .query(APPEND)
        .bind(column(rows, |row| &*row.id))
        .bind(column(rows, |row| row.tenant))
        .bind(column(rows, |row| row.aggregatetype))
        .bind(column(rows, |row| row.aggregateid))
        .bind(column(rows, |row| row.kind))
        .bind(column(rows, |row| row.source))
        .bind(column(rows, |row| row.payload_text()))
        .bind(column(rows, |row| row.payload_bytes()))
        .bind(column(rows, |row| row.content_type))
        .bind(column(rows, |row| &*row.headers))
        .bind(column(rows, |row| &*row.occurred_at))
}

/// Returns the statement that claims, or one that continues after a cursor if a test has disabled
/// claiming by state.
fn claim_text(cursor: &Cursor) -> SqlStr {
    match cursor.after() {
        None => text(CLAIM),
        Some(last) => {
            let condition = format!("and o.sequence > {last}");
            AssertSqlSafe(CLAIM.replace("-- claimed by state", &condition)).into_sql_str()
        }
    }
}

async fn claim(
    connection: &mut PgConnection,
    query: Query<'_, Postgres, PgArguments>,
    ask: ClaimRequest,
    token: AttemptId,
    window: i64,
) -> Result<(Vec<Leased>, bool)> {
    let rows = query
        .bind(i64::from(ask.limit))
        .bind(micros(ask.lease))
        .bind(token.to_bytes().to_vec())
        .bind(window)
        .bind(i64::try_from(ask.bytes).unwrap_or(i64::MAX))
        .bind(LARGEST)
        .fetch_all(connection)
        .await
        .map_err(failed("claim"))?;
    let claimed = |row: &PgRow| -> sqlx::Result<Leased> {
        let claimed = Claimed {
            now: row.try_get(0)?,
            sequence: row.try_get(1)?,
            attempts: row.try_get(2)?,
            created_at: row.try_get(3)?,
            stored: stored(row, 4).map_err(|error| error.to_string()),
        };
        Ok(claimed.leased(token))
    };
    let read = || -> sqlx::Result<_> {
        let more = rows.first().map(|row| row.try_get(14)).transpose()?;
        Ok((rows.iter().map(claimed).collect::<sqlx::Result<_>>()?, more.unwrap_or(false)))
    };
    read().map_err(failed("claim"))
}

async fn put_off(
    naming: Naming,
    connection: &mut PgConnection,
    step: i64,
    window: i64,
) -> Result<Scanned> {
    let query = naming
        .query(PUT_OFF)
        .bind(step)
        .bind(window)
        .bind(*SHORT.start())
        .bind(*SHORT.end())
        .bind(*LONG.start())
        .bind(*LONG.end());
    let row = query.fetch_one(connection).await.map_err(failed("claim"))?;
    let read = || Ok(Scanned { rows: row.try_get(0)?, put_off: row.try_get(1)? });
    read().map_err(failed("claim"))
}

async fn mark(
    connection: &mut PgConnection,
    query: Query<'_, Postgres, PgArguments>,
) -> Result<Vec<usize>> {
    let rows = query.fetch_all(connection).await.map_err(failed("mark"))?;
    let place = |row: &PgRow| -> sqlx::Result<usize> {
        // Positions are counted from 1.
        let place: i64 = row.try_get(0)?;
        Ok(usize::try_from(place - 1).unwrap_or(usize::MAX))
    };
    rows.iter().map(place).collect::<sqlx::Result<_>>().map_err(failed("mark"))
}

/// Reads the columns of an event, in the order of [`OUTLINE`], from position `at` on.
fn stored(row: &PgRow, at: usize) -> sqlx::Result<Stored> {
    Ok(Stored {
        id: row.try_get(at)?,
        tenant: row.try_get(at + 1)?,
        aggregatetype: row.try_get(at + 2)?,
        aggregateid: row.try_get(at + 3)?,
        kind: row.try_get(at + 4)?,
        source: row.try_get(at + 5)?,
        payload: row.try_get(at + 6)?,
        content_type: row.try_get(at + 7)?,
        headers: row.try_get(at + 8)?,
        occurred_at: row.try_get(at + 9)?,
    })
}

/// The columns of an event for lists, with an empty payload.
const OUTLINE: &str = "o.id, o.tenant, o.aggregatetype, o.aggregateid, o.type, o.source, ''::bytea, \
     o.content_type, o.headers, o.occurred_at";
