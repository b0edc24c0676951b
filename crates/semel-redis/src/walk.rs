//! Scans all records, for operators and for the sweeper.
//!
//! Redis keeps keys in no order, and has only `SCAN`: it returns every key that stays at least
//! once, and some of them twice. Every call makes a bounded number of steps and remembers where it
//! stopped.

use std::collections::HashSet;

use bytes::Bytes;
use futures_util::future::join_all;
use redis::{Cmd, Pipeline, Value};
use semel_core::store::{
    Cursor, Error, ErrorKind, Filter, ForeignCursor, Listed, Page, Result, Settlement, Swept,
    Tally, UnreadableRecord,
};
use semel_core::{Digest, Entry, ErrorText, OnCrash, State, Timestamp};

use crate::error::{Effect, Failure, answer, unexpected};
use crate::guard::version_guard;
use crate::layout::{self, HEADER, Header, OUTLINE, Readable};
use crate::position::Position;
use crate::reply;
use crate::store::RedisStore;
use crate::transport::{BATCH, Node};

/// The number of keys that the server scans in one step: about a millisecond of its time.
const STEP: u32 = 1_000;
/// The largest number of steps of one page.
const PAGE_STEPS: u32 = 16;
/// The largest number of steps of one sweep.
const SWEEP_STEPS: u32 = 100;
struct Walk<'a> {
    store: &'a RedisStore,
    operation: &'static str,
    nodes: Vec<Node>,
    index: usize,
    position: Position,
    now: Timestamp,
}

impl<'a> Walk<'a> {
    async fn resume(
        store: &'a RedisStore,
        operation: &'static str,
        from: Option<Position>,
    ) -> Result<Self> {
        let nodes = store.transport.nodes().await.map_err(|failure| read(failure, operation))?;
        let mut position = from.unwrap_or_default();
        let index = nodes.iter().position(|node| node.address() == position.node);
        let index = index.unwrap_or_else(|| {
            // The node is gone, and its records are on other nodes: the scan begins again, since
            // showing some records twice is allowed and leaving some out is not.
            position =
                Position { pending: std::mem::take(&mut position.pending), ..Position::default() };
            0
        });
        Ok(Self { store, operation, nodes, index, position, now: Timestamp::from_micros(0) })
    }

    /// Restricts the scan to one record: its name follows from the whole digest.
    fn only(&mut self, digest: Digest) {
        self.index = self.nodes.len().saturating_sub(1);
        self.position = Position { exhausted: true, pending: vec![digest], ..Position::default() };
    }

    /// Returns whether every node has been scanned and nothing is pending.
    fn is_done(&self) -> bool {
        self.position.pending.is_empty()
            && self.position.exhausted
            && self.index + 1 >= self.nodes.len()
    }

    /// Scans about `count` keys of a node, and reads its clock.
    async fn step(&mut self, count: u32) -> Result<()> {
        if self.position.exhausted && self.index + 1 < self.nodes.len() {
            self.index += 1;
            self.position.cursor = 0;
            self.position.exhausted = false;
        }
        let Some(node) = self.nodes.get(self.index) else { return Ok(()) };
        self.position.node = node.address();
        let mut commands = Pipeline::with_capacity(2);
        commands.cmd("TIME");
        if !self.position.exhausted {
            let pattern = self.store.keys().pattern();
            commands.cmd("SCAN").arg(self.position.cursor);
            commands.arg("MATCH").arg(pattern).arg("COUNT").arg(count);
        }
        let operation = self.operation;
        let read = |failure| read(failure, operation);
        let answers = self.store.transport.send_all(node, commands).await.map_err(read)?;
        let mut answers = answers.into_iter().map(|value| answer(value).map_err(read));
        let time = answers.next().transpose()?.unwrap_or_default();
        self.now = reply::moment(&time).ok_or_else(|| unexpected(operation, &time))?;
        if let Some(scanned) = answers.next().transpose()? {
            let (cursor, names) =
                reply::scan(&scanned).ok_or_else(|| unexpected(operation, &scanned))?;
            self.position.cursor = cursor;
            self.position.exhausted = cursor == 0;
            let digests = names.iter().filter_map(|name| self.store.keys().digest(name));
            self.position.pending.extend(digests);
        }
        Ok(())
    }

    /// Takes pending records, and reads them with `command`.
    async fn take(
        &mut self,
        count: usize,
        command: impl Fn(&[u8]) -> Cmd,
    ) -> Result<Vec<(Digest, Vec<u8>)>> {
        let count = count.min(BATCH).min(self.position.pending.len());
        // The records stay pending until they have been read, so that a failure here loses none of
        // them.
        let digests = self.position.pending[..count].to_vec();
        let names: Vec<_> = digests.iter().map(|digest| self.store.keys().name(digest)).collect();
        let answers = self.store.transport.read_keys(&names, command).await;
        let answers = answers.map_err(|failure| read(failure, self.operation))?;
        self.position.pending.drain(..count);
        let mut found = Vec::with_capacity(count);
        for (digest, value) in digests.into_iter().zip(answers) {
            // Any other value means that the record is gone meanwhile, or that the key is not a
            // record.
            if let Value::BulkString(bytes) = value
                && !bytes.is_empty()
            {
                found.push((digest, bytes));
            }
        }
        Ok(found)
    }
}

impl Walk<'_> {
    /// Decodes a record, or its outline, and verifies that it is stored under its own digest.
    /// Returns `None` if the record vanished before all of it was read.
    async fn read(
        &self,
        digest: &Digest,
        bytes: Vec<u8>,
        outline: bool,
    ) -> Result<Option<Readable<(Entry, Option<u64>)>>> {
        let cut = outline && bytes.len() == OUTLINE;
        let whole = |bytes| layout::decode_entry(Bytes::from(bytes)).map(|entry| (entry, None));
        let mut read = match outline {
            true => layout::decode_outline(Bytes::from(bytes)),
            false => whole(bytes),
        };
        if cut && read.is_err() {
            // The bytes before the body may be longer than an outline, so the whole record is read.
            let names = [self.store.keys().name(digest)];
            let answers = self.store.transport.read_keys(&names, get).await;
            let answers = answers.map_err(|failure| self::read(failure, self.operation))?;
            let Some(Value::BulkString(bytes)) = answers.into_iter().next() else {
                return Ok(None);
            };
            read = whole(bytes);
        }
        Ok(Some(read.and_then(|read| match read.0.key.digest() == *digest {
            true => Ok(read),
            false => Err("it is stored under the name of another record".to_owned()),
        })))
    }
}

fn read(failure: Failure, operation: &'static str) -> Error {
    failure.during(operation, Effect::Reads)
}

/// Returns a page of matching records.
pub(crate) async fn list(
    store: &RedisStore,
    filter: &Filter,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Page> {
    let Page { entries, unreadable, next } = page(store, filter, after, limit, false).await?;
    let entries = entries.into_iter().map(|(entry, _)| entry).collect();
    Ok(Page { entries, unreadable, next })
}

/// Returns a page of matching records without the bytes of outcomes and retry payloads, which are
/// not read.
pub(crate) async fn survey(
    store: &RedisStore,
    filter: &Filter,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Page<Listed>> {
    let Page { entries, unreadable, next } = page(store, filter, after, limit, true).await?;
    let listed = |(entry, size): (Entry, Option<u64>)| {
        let mut listed = Listed::from(entry);
        if let (Some(content), Some(size)) = (&mut listed.content, size) {
            content.bytes = size;
        }
        listed
    };
    Ok(Page { entries: entries.into_iter().map(listed).collect(), unreadable, next })
}

/// Returns a page of matching records, or of their outlines with the lengths of their bodies.
async fn page(
    store: &RedisStore,
    filter: &Filter,
    after: Option<&Cursor>,
    limit: u32,
    outlines: bool,
) -> Result<Page<(Entry, Option<u64>)>> {
    let from = match after {
        None => None,
        Some(cursor) => Some(
            Position::from_cursor(cursor)
                .ok_or_else(|| Error::new(ErrorKind::Misconfigured, "list", ForeignCursor))?,
        ),
    };
    let limit = usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
    let mut walk = Walk::resume(store, "list", from).await?;
    if let (None, Some(digest)) = (after, filter.digest.as_deref().and_then(Digest::from_bytes)) {
        walk.only(digest);
    }
    let mut page = Page::default();
    let mut steps = 0;
    // At least one step is made: it reads the time, which the filter `due` needs.
    let count = u32::try_from(limit).unwrap_or(STEP).clamp(16, STEP);
    while page.entries.len() < limit && steps < PAGE_STEPS && !(steps > 0 && walk.is_done()) {
        walk.step(count).await?;
        steps += 1;
        while page.entries.len() < limit && !walk.position.pending.is_empty() {
            let room = limit - page.entries.len();
            for (digest, bytes) in walk.take(room, if outlines { get_outline } else { get }).await?
            {
                // Of a record that cannot be read, only the digest is known.
                let head = filter.digest.as_deref().unwrap_or_default();
                match walk.read(&digest, bytes, outlines).await? {
                    Some(Ok(read)) if filter.matches(&read.0, walk.now) => page.entries.push(read),
                    Some(Err(why)) if digest.as_bytes().starts_with(head) => {
                        let digest = digest.as_bytes().to_vec();
                        page.unreadable.push(UnreadableRecord { digest, why });
                    }
                    Some(Ok(_) | Err(_)) | None => {}
                }
            }
        }
    }
    page.next = (!walk.is_done()).then(|| walk.position.to_cursor());
    Ok(page)
}

/// Counts the matching records. Of records in another state only the header is read; every request
/// covers a bounded number of keys.
pub(crate) async fn tally(store: &RedisStore, filter: &Filter) -> Result<Tally> {
    let mut walk = Walk::resume(store, "tally", None).await?;
    if let Some(digest) = filter.digest.as_deref().and_then(Digest::from_bytes) {
        walk.only(digest);
    }
    // A scan may return a record twice.
    let (mut tally, mut seen, mut first) = (Tally::default(), HashSet::new(), true);
    while std::mem::take(&mut first) || !walk.is_done() {
        walk.step(STEP).await?;
        while !walk.position.pending.is_empty() {
            let headers = walk.take(BATCH, get_header).await?;
            let fitting = headers.into_iter().filter_map(|(digest, bytes)| {
                let header = Header::read(&bytes).ok()?;
                let fits = filter.state.is_none_or(|state| header.state == state);
                (fits && !seen.contains(&digest)).then_some(digest)
            });
            let fitting: Vec<Digest> = fitting.collect();
            if fitting.is_empty() {
                continue;
            }
            let names: Vec<_> = fitting.iter().map(|digest| store.keys().name(digest)).collect();
            let answers = store.transport.read_keys(&names, get_outline).await;
            let answers = answers.map_err(|failure| read(failure, "tally"))?;
            for (digest, value) in fitting.into_iter().zip(answers) {
                let Value::BulkString(bytes) = value else { continue };
                if let Some(Ok((entry, _))) = walk.read(&digest, bytes, true).await?
                    && filter.matches(&entry, walk.now)
                    && seen.insert(digest)
                {
                    tally.add(entry.record.attempt);
                }
            }
        }
    }
    Ok(tally)
}

fn get_outline(key: &[u8]) -> Cmd {
    let mut command = redis::cmd("GETRANGE");
    command.arg(key).arg(0).arg(OUTLINE - 1);
    command
}

fn get(key: &[u8]) -> Cmd {
    let mut command = redis::cmd("GET");
    command.arg(key);
    command
}

fn get_header(key: &[u8]) -> Cmd {
    let mut command = redis::cmd("GETRANGE");
    command.arg(key).arg(0).arg(HEADER - 1);
    command
}

/// Removes and suspends due records, continuing where the last sweep stopped.
pub(crate) async fn sweep(store: &RedisStore, limit: u32) -> Result<Swept> {
    // One sweep at a time: two would only read the same keys twice.
    let mut from = store.swept.lock().await;
    let mut walk = Walk::resume(store, "sweep", from.clone()).await?;
    let mut swept = Swept::default();
    let outcome = sweep_steps(&mut walk, limit, &mut swept).await;
    // Kept after a failure too: a scan that began again at every failure would never finish.
    swept.more = !walk.is_done();
    *from = swept.more.then_some(walk.position);
    outcome.map(|()| swept)
}

async fn sweep_steps(walk: &mut Walk<'_>, limit: u32, swept: &mut Swept) -> Result<()> {
    let done = |swept: &Swept| swept.removed + swept.suspended;
    let mut steps = 0;
    while done(swept) < limit && steps < SWEEP_STEPS && !(steps > 0 && walk.is_done()) {
        walk.step(STEP).await?;
        steps += 1;
        while done(swept) < limit && !walk.position.pending.is_empty() {
            let room = usize::try_from(limit - done(swept)).unwrap_or(usize::MAX);
            sweep_some(walk, room, swept).await?;
        }
    }
    Ok(())
}

async fn sweep_some(walk: &mut Walk<'_>, room: usize, swept: &mut Swept) -> Result<()> {
    let read = walk.take(room, get_header).await?;
    let due = read.into_iter().filter_map(|(digest, bytes)| match Header::read(&bytes) {
        Ok(header) => Some((digest, header, due(&header, walk.now)?)),
        Err(what) => {
            tracing::warn!(%digest, what, "skipped an unreadable record");
            None
        }
    });
    // Every write is conditional on the version that was just read. A lapsed claim can only become
    // live by a write, so a record that was due then is still due.
    let store = walk.store;
    let settlements = due.map(|(digest, header, settlement)| async move {
        let guard = version_guard(header.version());
        let ended = store.end("sweep", &digest, &guard, &settlement).await?;
        Ok((ended, settlement == Settlement::Removed))
    });
    for ended in join_all(settlements).await {
        match ended? {
            (Value::Int(fence), true) if fence > 0 => swept.removed += 1,
            (Value::Int(fence), false) if fence > 0 => swept.suspended += 1,
            _ => {}
        }
    }
    Ok(())
}

/// Returns the settlement for a record that is no longer needed, or on which an operator must
/// decide; `None` if neither is so.
fn due(header: &Header, now: Timestamp) -> Option<Settlement> {
    let past = |moment: Option<Timestamp>| moment.is_some_and(|moment| moment <= now);
    let kept = header.lease_until.map(|until| until.after(header.keep));
    let uncertain = || {
        let error = ErrorText::new("the attempt ended without an answer (swept)");
        Settlement::Uncertain { error }
    };
    match (header.state, header.on_crash) {
        (State::Succeeded | State::Failed, _) => {
            past(header.expires_at).then_some(Settlement::Removed)
        }
        (State::Running, OnCrash::Hold) => past(header.lease_until).then(uncertain),
        (State::Running, OnCrash::Verify) => past(kept).then(uncertain),
        (State::Running, OnCrash::Rerun) => past(kept).then_some(Settlement::Removed),
        (State::Dead | State::Uncertain | State::Discarded, _) => None,
    }
}

/// Returns the names of all records, each once.
#[cfg(feature = "testing")]
pub(crate) async fn names(store: &RedisStore) -> Result<Vec<Vec<u8>>> {
    let mut walk = Walk::resume(store, "rewind", None).await?;
    let mut seen = HashSet::new();
    let mut first = true;
    while std::mem::take(&mut first) || !walk.is_done() {
        walk.step(STEP).await?;
        seen.extend(walk.position.pending.drain(..));
    }
    Ok(seen.iter().map(|digest| store.keys().name(digest)).collect())
}
