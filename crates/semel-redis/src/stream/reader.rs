//! Fetches entries while a caller waits for them, and holds entries that are put off.
//!
//! The reader uses the shared connection and never blocks it: it fetches again after a publisher's
//! message, at a due time or after a short pause. Only an entry's idle time, by the server's clock,
//! decides which consumer may take it; the reader sets that time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use semel_core::AttemptId;
use semel_core::inbox::SourceError;
use semel_core::store::{Listen as _, Result};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::entry::Entry;
use super::settings::Begin;
use super::{SourceBuilder, script};
use crate::error::{Effect, Failure};
use crate::listen::Subscription;
use crate::reply;
use crate::script::Call;

/// The first and the longest pause after a fetch that found nothing. A publisher's message ends the
/// pause at once; the pause is for lost messages, and for entries that other consumers leave.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// The pause before a lost subscription is opened again.
const RESUBSCRIBE: Duration = Duration::from_secs(1);
/// The idle time after which a consumer without pending entries is removed.
const FORGET: Duration = Duration::from_secs(60 * 60);

/// The name of the consumer that owns entries that were given back.
const RETURNED: &str = "returned";

/// Fetches the entries of one source.
pub(super) struct Reader {
    pub(super) settings: SourceBuilder,
    consumer: String,
    state: Mutex<State>,
    waiting: AtomicUsize,
    /// Notified when there may be entries to fetch, or a caller that waits for one.
    bell: Notify,
    /// Notified when entries were fetched, or fetching failed.
    news: Notify,
}

#[derive(Default)]
struct State {
    /// The fetched entries, and when each was fetched.
    fetched: VecDeque<(Entry, Instant)>,
    /// The entries that are put off, and when each is due.
    put_off: Vec<(Entry, Instant)>,
    /// The cursor of the search for entries that others left, by partition.
    cursors: Vec<Vec<u8>>,
    failed: Option<SourceError>,
}

/// Counts a waiting caller until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn away(failure: Failure, operation: &'static str) -> SourceError {
    SourceError(failure.during(operation, Effect::Writes).to_string())
}

impl Reader {
    /// Joins the group on every stream.
    pub(super) async fn join(settings: SourceBuilder) -> Result<Self> {
        let unique: String =
            AttemptId::generate().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let consumer = format!("{}:{unique}", std::process::id());
        let cursors = vec![b"0-0".to_vec(); settings.shared.keys.len()];
        let state = Mutex::new(State { cursors, ..State::default() });
        let (waiting, bell, news) = (AtomicUsize::new(0), Notify::new(), Notify::new());
        let reader = Self { settings, consumer, state, waiting, bell, news };
        let begin = if reader.settings.begin == Begin::Now { "$" } else { "0" };
        for joined in reader.make_groups(begin).await {
            joined.map_err(|failure| failure.during("join the group", Effect::Writes))?;
        }
        Ok(reader)
    }

    async fn make_groups(&self, begin: &str) -> Vec<std::result::Result<Value, Failure>> {
        let args = [self.settings.group.as_bytes(), begin.as_bytes()];
        self.settings.shared.call_all(&script::JOIN, &args).await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is one step, so a poisoned lock is still good.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the entry that was fetched first, unless it waited so long that another consumer may
    /// have taken it over.
    fn pop(&self) -> Option<std::result::Result<Entry, SourceError>> {
        let mut state = self.state();
        while let Some((entry, since)) = state.fetched.pop_front() {
            if since.elapsed() < self.settings.patience / 2 {
                return Some(Ok(entry));
            }
        }
        state.failed.take().map(Err)
    }

    /// Waits for the next entry.
    pub(super) async fn next(&self) -> std::result::Result<Entry, SourceError> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let _waiting = Waiting(&self.waiting);
        loop {
            let mut news = std::pin::pin!(self.news.notified());
            news.as_mut().enable();
            if let Some(next) = self.pop() {
                return next;
            }
            self.bell.notify_one();
            news.await;
        }
    }

    /// Fetches until the source is dropped, and then gives back the entries that no caller took.
    pub(super) async fn read(self: std::sync::Arc<Self>, mut ended: watch::Receiver<()>) {
        let mut rest = PAUSE.0;
        let mut keep_at = Instant::now();
        loop {
            if keep_at <= Instant::now() {
                self.keep_put_off().await;
                keep_at = Instant::now() + self.settings.patience / 3;
            }
            let wanted =
                self.waiting.load(Ordering::Acquire) > 0 && self.state().fetched.is_empty();
            if wanted {
                match self.fetch().await {
                    Ok(0) => rest = (rest * 2).min(PAUSE.1).min(self.settings.patience / 4),
                    // A caller that finds no entry left notifies the reader again.
                    Ok(_) => {
                        rest = PAUSE.0;
                        self.news.notify_waiters();
                    }
                    Err(error) => {
                        rest = PAUSE.1;
                        self.state().failed = Some(error);
                        self.news.notify_waiters();
                    }
                }
            }
            let now = Instant::now();
            let due = self.state().put_off.iter().map(|(_, due)| *due).min();
            let until = if wanted { now + rest } else { keep_at };
            let until = until.min(keep_at).min(due.filter(|due| *due > now).unwrap_or(until));
            tokio::select! {
                _ = ended.changed() => break,
                () = self.bell.notified() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
        self.leave().await;
    }

    /// Listens for messages of publishers until the source is dropped.
    pub(super) async fn listen(self: std::sync::Arc<Self>, mut ended: watch::Receiver<()>) {
        let listening = async {
            loop {
                if let Ok(mut subscription) =
                    Subscription::open(&self.settings.shared.settings).await
                {
                    // For messages that were published while there was no subscription.
                    self.bell.notify_one();
                    while subscription.next().await.is_ok() {
                        self.bell.notify_one();
                    }
                }
                tokio::time::sleep(RESUBSCRIBE).await;
            }
        };
        tokio::select! {
            _ = ended.changed() => {}
            () = listening => {}
        }
    }

    /// Fetches from every stream once, and returns the number of entries.
    async fn fetch(&self) -> std::result::Result<usize, SourceError> {
        let settings = &self.settings;
        let script = if settings.ordered { &script::TAKE_IN_ORDER } else { &script::TAKE };
        let patience = settings.patience.as_millis().to_string();
        let count = settings.prefetch.to_string();
        let cursors = self.state().cursors.clone();
        let args: Vec<[&[u8]; 5]> = cursors
            .iter()
            .map(|cursor| {
                let (group, consumer) = (settings.group.as_bytes(), self.consumer.as_bytes());
                [group, consumer, patience.as_bytes(), count.as_bytes(), &cursor[..]]
            })
            .collect();
        let keys = settings.shared.keys.iter();
        let calls: Vec<Call<'_>> =
            keys.zip(&args).map(|(key, args)| Call { script, key: key.as_bytes(), args }).collect();
        let asked = Instant::now();
        let answers = settings.shared.transport.call_many(&calls).await;
        self.take_in(answers, asked).await
    }

    async fn take_in(
        &self,
        answers: Vec<std::result::Result<Value, Failure>>,
        asked: Instant,
    ) -> std::result::Result<usize, SourceError> {
        let (mut count, mut failed, mut unknown) = (0, None, false);
        for (partition, answer) in (0..).zip(answers) {
            let value = match answer {
                Ok(value) => value,
                Err(Failure::Refused(error)) if error.code() == "NOGROUP" => {
                    unknown = true;
                    continue;
                }
                Err(failure) => {
                    failed = Some(away(failure, "fetch"));
                    continue;
                }
            };
            let read = || {
                let [cursor, entries, Value::Int(again)] = reply::array(&value)? else {
                    return None;
                };
                let entries = (0..).zip(reply::array(entries)?);
                let entries: Option<Vec<Entry>> = entries
                    .map(|(at, entry): (i64, _)| Entry::read(partition, entry, at < *again))
                    .collect();
                Some((reply::bytes(cursor)?.to_vec(), entries?))
            };
            let Some((cursor, entries)) = read() else {
                failed = Some(SourceError(format!("the server answered {value:?}")));
                continue;
            };
            let mut state = self.state();
            state.cursors[usize::from(partition)] = cursor;
            count += entries.len();
            state.fetched.extend(entries.into_iter().map(|entry| (entry, asked)));
        }
        if unknown {
            // The stream or the group was removed: every entry that exists now is new.
            tracing::warn!(
                group = self.settings.group,
                "the consumer group is missing; creating it again"
            );
            for made in self.make_groups("0").await {
                failed = made.err().map(|failure| away(failure, "join the group")).or(failed);
            }
        }
        match failed {
            // One node of a cluster is unreachable; the entries of the others are delivered
            // meanwhile.
            Some(error) if count > 0 => {
                tracing::warn!(%error, "some streams cannot be reached; the others are read")
            }
            Some(error) => return Err(error),
            None => {}
        }
        Ok(count)
    }

    /// Sets the idle time of an entry. Returns whether this consumer still owns the entry.
    pub(super) async fn hold(
        &self,
        entry: &Entry,
        idle: Duration,
    ) -> std::result::Result<bool, SourceError> {
        self.hand_to(&self.consumer, entry, idle).await
    }

    async fn hand_to(
        &self,
        new_owner: &str,
        entry: &Entry,
        idle: Duration,
    ) -> std::result::Result<bool, SourceError> {
        let idle = idle.as_millis().to_string();
        let (group, consumer) = (self.settings.group.as_bytes(), self.consumer.as_bytes());
        let args = [group, consumer, &entry.id, idle.as_bytes(), new_owner.as_bytes()];
        let held = self.settings.shared.call(&script::HOLD, entry.partition, &args).await;
        Ok(held.map_err(|failure| away(failure, "hold"))? == Value::Int(1))
    }

    pub(super) async fn ack(&self, entry: &Entry) -> std::result::Result<(), SourceError> {
        let delete = if self.settings.delete_acked { b"1" } else { b"0" };
        let args = [self.settings.group.as_bytes(), &entry.id, delete];
        let acked = self.settings.shared.call(&script::ACK, entry.partition, &args).await;
        acked.map_err(|failure| away(failure, "ack"))?;
        if self.settings.ordered {
            // The next entry of the stream may be delivered.
            self.bell.notify_one();
        }
        Ok(())
    }

    /// Has an entry delivered again after `span`, to any consumer that fetches then.
    pub(super) async fn put_off(
        &self,
        entry: &Entry,
        span: Duration,
    ) -> std::result::Result<(), SourceError> {
        let due = Instant::now() + span.min(FORGET * 24 * 365);
        self.hold(entry, self.settings.patience.saturating_sub(span)).await?;
        self.state().put_off.push((entry.clone(), due));
        self.bell.notify_one();
        Ok(())
    }

    /// Renews the hold on entries that are put off for longer than the patience, and releases the
    /// others: from then on their idle time determines when they are due.
    async fn keep_put_off(&self) {
        let (patience, now) = (self.settings.patience, Instant::now());
        let entries = {
            let mut state = self.state();
            state.put_off.retain(|(_, due)| *due > now);
            state.put_off.clone()
        };
        for (entry, due) in entries {
            let left = due.saturating_duration_since(Instant::now());
            let held = self.hold(&entry, patience.saturating_sub(left)).await;
            if matches!(held, Ok(false)) {
                self.state().put_off.retain(|(other, _)| other.id != entry.id);
            }
        }
    }

    /// Gives back the entries that no caller took, and leaves the group.
    async fn leave(&self) {
        let left: Vec<Entry> = self.state().fetched.drain(..).map(|(entry, _)| entry).collect();
        for entry in &left {
            // If this fails, the entry is delivered again when the group's patience ends.
            let _ = self.hand_to(RETURNED, entry, self.settings.patience).await;
        }
        let (group, consumer) = (self.settings.group.as_bytes(), self.consumer.as_bytes());
        let forget = FORGET.max(self.settings.patience * 10).as_millis().to_string();
        let args = [group, consumer, forget.as_bytes()];
        for left in self.settings.shared.call_all(&script::LEAVE, &args).await {
            if let Err(failure) = left {
                tracing::debug!(error = %away(failure, "leave"), "the consumer could not be removed from its group");
            }
        }
    }
}
