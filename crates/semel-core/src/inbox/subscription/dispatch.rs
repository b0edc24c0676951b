//! Takes what is due from the store, and runs its handler: each event by itself, or the events of a partition
//! one after another.
//!
//! Whether an event is the first of its partition is read from the store each time, so that several processes
//! can serve one subscription: an event is handled only when all earlier ones of its partition are settled, and
//! what is settled stays so unless an operator changes it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Blocked, Inner, MARK, OnDead, Unit};
use crate::clock::Timestamp;
use crate::event::Event;
use crate::inbox::retry::{Retried, envelope};
use crate::inbox::{HandleError, Handled, Stored};
use crate::key::{Key, Kind};
use crate::measure;
use crate::record::{Entry, Record, State};
use crate::store::{Change, Filter, Inspect, Result, Store};

/// The number of records in one page of what is due.
const PAGE: u32 = 500;
/// The largest number of events of a partition that one look takes, and the number of records in one page of
/// them, which are read whole.
const CHAIN: usize = 100;
/// The pause until a dead event, or one that another process handles, is looked at again.
const BLOCKED: Duration = Duration::from_secs(1);
/// The pause after a look is at least this many times as long as the store took for it, and at most
/// [`LOOK_PAUSE`]: looking takes at most a fifth of the time, however many events wait.
const LOOK_FACTOR: u32 = 4;
const LOOK_PAUSE: Duration = Duration::from_secs(5);

type Counts = Arc<Mutex<Retried>>;
type Outcome = std::result::Result<Handled, HandleError>;

/// What follows one event of a partition.
enum Step {
    /// The next event may be handled.
    Next,
    /// The later events wait for at least this long.
    Wait { after: Duration, is_dead: bool },
}

/// An event of a partition that is not settled.
struct Waiting {
    order: (u64, Timestamp, Box<str>),
    key: Key,
    record: Record,
    /// `None` if the record has no event, or one that cannot be read. Such an event counts as dead.
    event: Option<Arc<Event>>,
}

impl<S: Inspect> Inner<S> {
    /// Handles what is due, until `stopping` is cancelled.
    pub(super) async fn dispatch(
        self: Arc<Self>,
        tasks: &TaskTracker,
        stopping: &CancellationToken,
    ) {
        let counts = Counts::default();
        loop {
            let pause = match self.look(tasks, stopping, &counts).await {
                Ok(reading) => (reading * LOOK_FACTOR).min(LOOK_PAUSE),
                Err(error) => {
                    measure::store_failed(&error);
                    tracing::warn!(group = &*self.name, %error, "could not list due events; retrying");
                    self.look_every
                }
            };
            let every = self.look_every.mul_f64(0.9 + 0.2 * fastrand::f64());
            let woken = async {
                tokio::time::sleep(pause).await;
                tokio::select! {
                    () = tokio::time::sleep(every) => {}
                    () = self.stored.notified() => {}
                }
            };
            tokio::select! {
                () = woken => {}
                () = stopping.cancelled() => return,
            }
        }
    }

    /// Starts a task for everything that is due and not in progress. Returns the time that the store took.
    pub(super) async fn look(
        self: &Arc<Self>,
        tasks: &TaskTracker,
        stopping: &CancellationToken,
        counts: &Counts,
    ) -> Result<Duration> {
        let (mut after, mut reading, mut seen) = (None, Duration::ZERO, HashSet::new());
        let filter = Filter {
            kind: Some(Kind::Event),
            scope: Some(self.name.to_string()),
            below: true,
            due: true,
            ..Filter::default()
        };
        loop {
            if !(self.takes)() {
                return Ok(reading);
            }
            let since = Instant::now();
            let page = self.inbox.executor().store().survey(&filter, after.as_ref(), PAGE).await?;
            reading += since.elapsed();
            for unreadable in &page.unreadable {
                tracing::warn!(
                    group = &*self.name,
                    why = unreadable.why,
                    "the record of a due event cannot be read; inspect it with `semel records`"
                );
            }
            for listed in page.entries {
                let unit = self.unit(&listed.key);
                if !seen.insert(unit.clone()) || !self.busy().begin(&unit) {
                    continue;
                }
                let permit = tokio::select! {
                    permit = Arc::clone(&self.permits).acquire_owned() => permit.expect("never closed"),
                    () = stopping.cancelled() => {
                        self.busy().running.remove(&unit);
                        return Ok(reading);
                    }
                };
                let (inner, stopping) = (Arc::clone(self), stopping.clone());
                let counts = Arc::clone(counts);
                tasks.spawn(async move {
                    let served = inner.serve(&unit, &listed.key, &stopping, &counts).await;
                    inner.busy().running.remove(&unit);
                    drop(permit);
                    if served && matches!(unit, Unit::Partition(_)) {
                        // An event may have been stored since the partition was last read.
                        inner.stored.notify_one();
                    }
                });
            }
            after = page.next;
            if after.is_none() {
                // What is not due any more is blocked no more.
                self.busy().blocked.retain(|unit, _| seen.contains(unit));
                return Ok(reading);
            }
        }
    }

    fn unit(&self, key: &Key) -> Unit {
        match self.ordered {
            Some(_) if key.scope().contains(MARK) => Unit::Partition(key.scope().into()),
            Some(_) | None => Unit::Event(key.digest()),
        }
    }

    /// Serves one unit. Returns whether the store could be read.
    async fn serve(
        &self,
        unit: &Unit,
        key: &Key,
        stopping: &CancellationToken,
        counts: &Counts,
    ) -> bool {
        let served = match unit {
            Unit::Event(_) => match self.turn(stopping).await {
                true => self.serve_one(key, counts).await,
                false => return true,
            },
            Unit::Partition(scope) => {
                self.serve_partition(scope, stopping, counts).await.map(|blocked| {
                    let mut busy = self.busy();
                    match blocked {
                        Some(blocked) => drop(busy.blocked.insert(unit.clone(), blocked)),
                        None => drop(busy.blocked.remove(unit)),
                    }
                })
            }
        };
        if let Err(error) = &served {
            measure::store_failed(error);
            tracing::warn!(group = &*self.name, %error, "could not read due events; retrying");
        }
        served.is_ok()
    }

    /// Waits until an event may be handled. Returns `false` if no further one is to be handled.
    async fn turn(&self, stopping: &CancellationToken) -> bool {
        if let Some(pace) = &self.pace {
            tokio::select! {
                () = pace.turn() => {}
                () = stopping.cancelled() => return false,
            }
        }
        !stopping.is_cancelled() && (self.takes)()
    }

    async fn serve_one(&self, key: &Key, counts: &Counts) -> Result<()> {
        let Some(found) = self.inbox.executor().store().peek(key).await? else { return Ok(()) };
        if let Some(event) = envelope(key, &found.record) {
            let result = self.handle(key, &found.record, Arc::new(event)).await?;
            count(counts, Some(result));
        } else if found.record.state != State::Succeeded {
            count(counts, None);
        }
        Ok(())
    }

    /// Handles the events of a partition in their order, until one blocks it or none is left.
    async fn serve_partition(
        &self,
        scope: &str,
        stopping: &CancellationToken,
        counts: &Counts,
    ) -> Result<Option<Blocked>> {
        loop {
            let mut handled = false;
            for Waiting { key, record, event, .. } in self.first_of(scope).await? {
                if stopping.is_cancelled() {
                    return Ok(None);
                }
                let step = match event {
                    Some(event) if matches!(record.state, State::Failed | State::Running) => {
                        if !self.turn(stopping).await {
                            return Ok(None);
                        }
                        let result = self.handle(&key, &record, event).await?;
                        handled |= result.as_ref().is_ok_and(Handled::succeeded);
                        let step = self.after(&result);
                        count(counts, Some(result));
                        step
                    }
                    Some(_) | None => self.behind_dead(),
                };
                if let Step::Wait { after, is_dead } = step {
                    return Ok(Some(Blocked { until: Instant::now() + after, is_dead }));
                }
            }
            if !handled {
                return Ok(None);
            }
        }
    }

    fn after(&self, result: &Outcome) -> Step {
        let wait = |after| Step::Wait { after, is_dead: false };
        match result {
            Ok(Handled::Done { .. } | Handled::Replayed { .. }) => Step::Next,
            Ok(Handled::Dead { .. }) | Err(HandleError::Failed { stored: Stored::Dead, .. }) => {
                self.behind_dead()
            }
            Ok(Handled::Deferred { retry_after: after, .. })
            | Err(HandleError::Failed { stored: Stored::Retry(after), .. }) => wait(*after),
            Ok(Handled::InProgress { .. }) | Err(_) => wait(BLOCKED),
        }
    }

    fn behind_dead(&self) -> Step {
        match self.ordered {
            Some(OnDead::Hold) => Step::Wait { after: BLOCKED, is_dead: true },
            Some(OnDead::Pass) | None => Step::Next,
        }
    }

    /// Returns whether later events pass one in this state.
    fn passes(&self, state: State) -> bool {
        match state {
            State::Succeeded | State::Discarded => true,
            State::Dead | State::Uncertain => self.ordered == Some(OnDead::Pass),
            State::Running | State::Failed => false,
        }
    }

    /// Returns the first events of a partition that are not settled, in their order.
    async fn first_of(&self, scope: &str) -> Result<Vec<Waiting>> {
        let filter = Filter {
            kind: Some(Kind::Event),
            scope: Some(scope.to_owned()),
            open: true,
            ..Filter::default()
        };
        let (mut first, mut after) = (Vec::<Waiting>::new(), None);
        let page_size = u32::try_from(CHAIN).unwrap_or(u32::MAX);
        loop {
            let store = self.inbox.executor().store();
            let page = store.list(&filter, after.as_ref(), page_size).await?;
            for entry in page.entries {
                let Entry { key, record } = entry;
                if self.passes(record.state) {
                    continue;
                }
                let event = envelope(&key, &record).map(Arc::new);
                let sequence = event.as_ref().map(|event| event.sequence().unwrap_or(u64::MAX));
                let order = (sequence.unwrap_or(0), record.created_at, key.id().into());
                first.push(Waiting { order, key, record, event });
            }
            first.sort_by(|a, b| a.order.cmp(&b.order));
            // A store may list a record twice.
            first.dedup_by(|a, b| a.key == b.key);
            first.truncate(CHAIN);
            after = page.next;
            if after.is_none() {
                return Ok(first);
            }
        }
    }
}

impl<S: Store> Inner<S> {
    /// Runs the handler for an event from the store, unless the event is settled or not due.
    async fn handle(&self, key: &Key, record: &Record, event: Arc<Event>) -> Result<Outcome> {
        // The process that stored the event ended between its two writes. Its claim is no attempt.
        if record.state == State::Running && record.number == 1 {
            let store = self.inbox.executor().store();
            let found = store.peek(key).await?;
            let half = found.filter(|found| {
                found.record.version() == record.version() && !found.record.held(found.now)
            });
            if half.is_some() {
                let _ = store.swap(key, record.version(), &Change::Redrive).await?;
            }
        }
        let handler = Arc::clone(&self.handler);
        let work = move |event, claim| handler(event, claim);
        Ok(self.inbox.run(key.clone(), &event, work).await)
    }
}

impl super::Busy {
    /// Returns whether this process is to begin with `unit` now.
    fn begin(&mut self, unit: &Unit) -> bool {
        let blocked = self.blocked.get(unit).is_some_and(|blocked| blocked.until > Instant::now());
        !blocked && self.running.insert(unit.clone())
    }
}

fn count(counts: &Counts, result: Option<Outcome>) {
    counts.lock().unwrap_or_else(PoisonError::into_inner).add(result);
}
