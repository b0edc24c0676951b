//! The outbox in MySQL and MariaDB: appending in a caller's transaction, leasing, marking.
//!
//! Claims and marks run on connections of their own, so that neither the ledger nor another batch
//! waits for them. Their texts contain only numbers and hexadecimal literals, never a caller's
//! text, and several are sent in one trip. The operators' verbs are in `operators`, the selection
//! of rows in `claim`.

mod claim;
mod mark;
mod operators;
mod put_off;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use semel_core::claim::AttemptId;
use semel_core::event::Event;
use semel_core::outbox::{
    Applied, Backlog, Bell, ClaimRequest, Cleaned, Disposition, Leased, Marked, Outbox, Row,
    RowAction, Selection, Ticket,
};
use semel_core::store::{Error, ErrorKind, Result};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row as _};
use tokio::time::timeout;

use super::MySqlStore;
use super::ledger::{Ledger, failed};
use super::message::{Value, bind, inline};
use super::pool::{PooledSession, SessionPool};
use super::session::{OVERHEAD, Server, refused_contents};
use super::statement::{CLOCK, repeat};
use crate::error::{Stage, timed_out};
use crate::outbox::{Cursor, EventRow, LARGEST, Marks, Scanned, Search, Stored, chunks};
use crate::pool::Lifecycle;

/// The largest number of rows in one statement of an append. It is a power of two, as in all
/// smaller statements: each size is prepared once.
const CHUNK: usize = 32;
/// The largest number of bytes in one statement of an append, if the server accepts as many.
const BYTES: usize = 4 << 20;

/// The outbox's own sessions and bell, and how far a test's claims have come.
pub(super) struct OutboxSessions {
    sessions: SessionPool,
    bell: Bell,
    cursor: Cursor,
}

impl OutboxSessions {
    pub(super) fn new(ledger: &Arc<Ledger>, lifecycle: &Arc<Lifecycle>) -> Self {
        // A claim or a mark takes a few milliseconds of a connection.
        let sessions = SessionPool::new(ledger, 4, lifecycle);
        Self { sessions, bell: Bell::default(), cursor: Cursor::default() }
    }

    /// Closes the sessions.
    pub(super) fn close(&self) {
        self.sessions.close();
    }
}

impl MySqlStore {
    /// Fails if an event is too large for the server, here or as the retry payload of an inbox.
    /// Checked beforehand, because the server would close the connection.
    pub(super) fn takes(&self, event: &Event, row: &EventRow<'_>) -> Result<()> {
        let Server { packet, .. } = self.ledger.server;
        let most = packet.saturating_sub(OVERHEAD);
        if row.size() <= most && event.fits(most) {
            return Ok(());
        }
        let size = row.size().max(event.packed_size()) + OVERHEAD;
        let text = format!(
            "the event {} takes about {size} bytes, but the server's max_allowed_packet is {packet}; \
             raise it, or store the payload elsewhere and send where",
            row.id
        );
        Err(Error::new(ErrorKind::Misconfigured, "append", text))
    }
}

impl Outbox for MySqlStore {
    type Connection = MySqlConnection;

    async fn append(&self, connection: &mut MySqlConnection, events: &[Event]) -> Result<()> {
        let limit = self.ledger.limit;
        let rows: Vec<EventRow<'_>> = events.iter().map(EventRow::of).collect();
        events.iter().zip(&rows).try_for_each(|(event, row)| self.takes(event, row))?;
        let bytes = BYTES.min(self.ledger.server.packet / 2);
        for mut chunk in chunks(&rows, CHUNK, bytes) {
            while !chunk.is_empty() {
                let (block, rest) = chunk.split_at(1 << chunk.len().ilog2());
                let query = sqlx::query(AssertSqlSafe(append(block.len())));
                let sent = bind(query, &appended(block)).execute(&mut *connection);
                let done = match timeout(limit, sent).await {
                    Ok(done) => done.map(drop).map_err(|error| refused_contents("append", error)),
                    Err(_) => Err(timed_out(Stage::Running, "append", limit)),
                };
                // The caller's transaction did not commit, so nothing happened.
                done.map_err(|error| {
                    let lost = error.kind() == ErrorKind::Ambiguous;
                    if lost { error.with_kind(ErrorKind::Unavailable) } else { error }
                })?;
                chunk = rest;
            }
        }
        Ok(())
    }

    async fn claim(&self, ask: ClaimRequest) -> Result<Vec<Leased>> {
        let mut search = Search::new(ask.limit);
        let mut session = self.outbox.sessions.get("claim").await?;
        let leased = loop {
            let (token, after) = (AttemptId::generate(), self.outbox.cursor.after());
            let claiming = async |connection: &mut MySqlConnection| {
                claim::claim(connection, ask, token, after, search.window()).await
            };
            let Some((leased, more)) = session.settled(claiming).await? else { continue };
            if !ask.look_further {
                // What there is in the window is all that was asked for.
            } else if leased.is_empty() {
                if more && search.goes_on(put_off(&mut session, &search).await?) {
                    continue;
                }
            } else if more && leased.len() < ask.limit as usize {
                // For the next claim. The leased rows are returned even if this fails.
                if put_off(&mut session, &search).await.is_err() {
                    return Ok(leased);
                }
            }
            break leased;
        };
        if search.gave_up() {
            self.outbox.bell.ring();
        }
        self.outbox.cursor.passed(&leased);
        Ok(leased)
    }

    async fn mark(&self, marks: &[(Ticket, Disposition)]) -> Result<Vec<Marked>> {
        let marks = Marks::of(marks);
        let mut written = Vec::with_capacity(marks.rows.len());
        let mut session = self.outbox.sessions.get("mark").await?;
        for (part, rows) in marks.rows.chunks(mark::CHUNK).enumerate() {
            let held = loop {
                let marking =
                    async |connection: &mut MySqlConnection| mark::mark(connection, rows).await;
                if let Some(held) = session.settled(marking).await? {
                    break held;
                }
            };
            written.extend(held.into_iter().map(|place| part * mark::CHUNK + place));
        }
        Ok(marks.answers(written))
    }

    async fn backlog(&self) -> Result<Backlog> {
        let mut session = self.outbox.sessions.get("backlog").await?;
        let backlog = loop {
            if let Some(backlog) = session.read(operators::backlog).await? {
                break backlog;
            }
        };
        Ok(backlog)
    }

    async fn list(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Vec<Row>> {
        let session = self.operators.get("list").await?;
        let list = async |connection: &mut MySqlConnection| {
            operators::list(connection, selection, after, limit).await
        };
        let rows = session.operate(list).await?;
        rows.into_iter().map(crate::outbox::Listed::row).collect()
    }

    async fn count(&self, selection: &Selection, verb: &RowAction) -> Result<u64> {
        let session = self.operators.get("count").await?;
        let count = async |connection: &mut MySqlConnection| {
            operators::count(connection, selection, verb).await
        };
        session.operate(count).await
    }

    async fn apply(
        &self,
        selection: &Selection,
        verb: &RowAction,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Applied> {
        let mut session = self.outbox.sessions.get("apply").await?;
        let applied = loop {
            let applying = async |connection: &mut MySqlConnection| {
                operators::apply(connection, selection, verb, after, limit).await
            };
            if let Some(applied) = session.settled(applying).await? {
                break applied;
            }
        };
        self.outbox.bell.ring();
        Ok(applied)
    }

    async fn clean(&self, keep: Duration, limit: u32) -> Result<Cleaned> {
        let mut session = self.outbox.sessions.get("clean").await?;
        let cleaned = loop {
            let cleaning = async |connection: &mut MySqlConnection| {
                operators::clean(connection, keep, limit).await
            };
            if let Some(cleaned) = session.settled(cleaning).await? {
                break cleaned;
            }
        };
        Ok(cleaned)
    }

    fn bell(&self) -> &Bell {
        &self.outbox.bell
    }
}

/// Puts off the due rows that wait behind others of their partition, among those that are due
/// first.
async fn put_off(session: &mut PooledSession<'_>, search: &Search) -> Result<Scanned> {
    loop {
        let putting = async |connection: &mut MySqlConnection| {
            put_off::put_off(connection, search.step(), search.window()).await
        };
        if let Some(scanned) = session.settled(putting).await? {
            return Ok(scanned);
        }
    }
}

/// Returns the statement of an append. An event that already exists is not changed, whatever its
/// status. INSERT IGNORE is not used, since it would also ignore other errors.
fn append(count: usize) -> String {
    let row = format!("(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {CLOCK}, {CLOCK})");
    format!(
        "INSERT INTO semel_outbox (id, tenant, aggregatetype, aggregateid, type, source, payload, \
         content_type, headers, occurred_at, due_at, created_at) VALUES {} \
         ON DUPLICATE KEY UPDATE created_at = created_at",
        repeat(&row, count, ", ")
    )
}

/// Returns the values of [`append`], as bytes, so that no character set of the caller's session
/// changes them.
fn appended<'a>(rows: &'a [EventRow<'_>]) -> Vec<Value<'a>> {
    let values = |row: &'a EventRow<'_>| {
        [
            Value::text(&row.id),
            Value::text(row.tenant),
            Value::text(row.aggregatetype),
            Value::maybe_text(row.aggregateid),
            Value::text(row.kind),
            Value::text(row.source),
            Value::bytes(row.payload),
            Value::text(row.content_type),
            Value::text(&row.headers),
            Value::text(&row.occurred_at),
        ]
    };
    rows.iter().flat_map(values).collect()
}

/// Returns the statement that appends events, with its values in the text.
pub(super) fn append_text(rows: &[EventRow<'_>]) -> String {
    inline(&append(rows.len()), &appended(rows))
}

/// The columns of an event as bytes, in the order in which [`stored`] reads them.
macro_rules! columns {
    ($payload:literal) => {
        concat!(
            "CAST(id AS BINARY), tenant, CAST(aggregatetype AS BINARY), CAST(aggregateid AS BINARY), \
             CAST(type AS BINARY), CAST(source AS BINARY), ",
            $payload,
            ", CAST(content_type AS BINARY), CAST(headers AS BINARY), CAST(occurred_at AS BINARY)"
        )
    };
}

/// The columns of an event for relays. A payload larger than that of any event ([`LARGEST`]) is not read.
const COLUMNS: &str = columns!("IF(OCTET_LENGTH(payload) <= 15728640, payload, NULL)");
const _: () = assert!(LARGEST == 15_728_640, "the number in the text");
/// The columns of an event for lists, with an empty payload.
const OUTLINE: &str = columns!("CAST('' AS BINARY)");

/// Reads the columns of an event from position `at` on, or returns why they cannot be read.
fn stored(row: &MySqlRow, at: usize) -> std::result::Result<Stored, String> {
    let maybe = |offset: usize, column: &str| -> std::result::Result<Option<String>, String> {
        let bytes: Option<Vec<u8>> = row.try_get(at + offset).map_err(|e| e.to_string())?;
        let text = |bytes| String::from_utf8(bytes).map_err(|e| format!("column {column}: {e}"));
        bytes.map(text).transpose()
    };
    let text = |offset: usize, column: &str| {
        maybe(offset, column)?.ok_or_else(|| format!("column {column} is null"))
    };
    Ok(Stored {
        id: text(0, "id")?,
        tenant: text(1, "tenant")?,
        aggregatetype: text(2, "aggregatetype")?,
        aggregateid: maybe(3, "aggregateid")?,
        kind: text(4, "type")?,
        source: text(5, "source")?,
        payload: row.try_get(at + 6).map_err(|e| e.to_string())?,
        content_type: text(7, "content_type")?,
        headers: text(8, "headers")?,
        occurred_at: text(9, "occurred_at")?,
    })
}

/// Returns bytes as a hexadecimal literal.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len() + 3);
    text.push_str("x'");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\'');
    text
}

/// Returns numbers as a comma-separated list.
fn numbers(all: impl IntoIterator<Item = i64>) -> String {
    all.into_iter().map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}
