//! What a group keeps of events that it did not handle: operators can list and change all of it,
//! and none of it expires.

use std::sync::Arc;
use std::time::Duration;

use semel_core::inbox::{
    BrokerReply, ConsumerRef, Failure, Group, HandleError, Handled, Inbox, UnhandledEvent,
};
use semel_core::store::Inspect;
use semel_core::{Context, Event, EventId, Executor, Key, Operate as _, Operated, State, Store};

use super::handling::{event, key, of_kind};
use super::handling_slowly::brief;
use super::work::{LEASE, PAST_LEASE, Work, executor};
use crate::Fixture;

/// Longer than any success is kept.
const YEARS: Duration = Duration::from_secs(3 * 365 * 24 * 60 * 60);

fn whose(handler: &str, conflict: bool) -> ConsumerRef {
    ConsumerRef { handler: Some(handler).filter(|name| !name.is_empty()).map(Into::into), conflict }
}

/// Returns all events that the group keeps in this state, over all pages, sorted by handler.
async fn kept<S: Inspect>(group: &Group<S>, state: State) -> Vec<UnhandledEvent> {
    let (mut all, mut after) = (Vec::<UnhandledEvent>::new(), None);
    loop {
        let page = group.failures(state, after.as_ref(), 2).await.expect("a list");
        for kept in page.entries {
            // A store may list a record twice.
            if all.iter().all(|seen| seen.key != kept.key) {
                all.push(kept);
            }
        }
        after = page.next;
        if after.is_none() {
            all.sort_by(|a, b| a.consumer.cmp(&b.consumer));
            return all;
        }
    }
}

async fn names<S: Inspect>(group: &Group<S>, state: State) -> Vec<ConsumerRef> {
    kept(group, state).await.into_iter().map(|kept| kept.consumer).collect()
}

async fn state<S: Store>(executor: &Executor<S>, key: &Key) -> State {
    executor.peek(key).await.expect("a store").expect("a record").record.state
}

type Done = std::future::Ready<Result<(), Failure>>;

/// Returns a handler whose first `failures` runs fail for good.
fn hopeless(
    work: &Work,
    failures: u32,
) -> impl Fn(Arc<Event>, Context) -> Done + Send + Sync + 'static {
    let work = work.clone();
    move |_, _| {
        let run = work.start();
        std::future::ready(if run <= failures { Err(Failure::hopeless("not yet")) } else { Ok(()) })
    }
}

/// Returns a group with one handler that succeeds and two that give up at first, and the run
/// counters of all three.
fn troubled<F: Fixture>(executor: &Executor<F::Store>) -> (Group<F::Store>, [Work; 3]) {
    let works = [Work::default(), Work::default(), Work::default()];
    let group = Inbox::new(executor.clone())
        .group("INVENTORY")
        .on_fenced("order.placed", hopeless(&works[0], 1))
        .on_fenced_named("audit", "order.placed", hopeless(&works[1], 0))
        .on_fenced_named("mail", "order.placed", hopeless(&works[2], 1));
    (group, works)
}

fn runs(works: &[Work; 3]) -> [u32; 3] {
    [works[0].runs(), works[1].runs(), works[2].runs()]
}

/// Handles the same event in groups with similar names.
async fn neighbours<F: Fixture>(executor: &Executor<F::Store>) {
    for group in ["INVENTORY2", "INVENTORY-EU", "INVENTOR", "inventory", "INVENTORY0"] {
        let group = Inbox::new(executor.clone())
            .group(group)
            .on_fenced_named("mail", "order.placed", hopeless(&Work::default(), 1))
            .on_fenced("order.placed", hopeless(&Work::default(), 1));
        group.handle(&event()).await;
    }
}

/// One list has the events that every handler of a group keeps, by handler, with the whole event,
/// and nothing of another group.
pub async fn a_group_shows_what_all_its_handlers_keep<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let (group, _) = troubled::<F>(&executor);
    group.handle(&event()).await;
    neighbours::<F>(&executor).await;
    let dead = kept(&group, State::Dead).await;
    let found: Vec<_> = dead.iter().map(|kept| kept.consumer.clone()).collect();
    assert_eq!(found, [whose("", false), whose("mail", false)]);
    for kept in &dead {
        assert_eq!(kept.event().as_ref(), Some(&*event()), "the whole event");
        assert_eq!(kept.record.error.as_ref().map(|error| error.as_str()), Some("not yet"));
    }
    assert!(kept(&group, State::Failed).await.is_empty());
}

/// A redrive reaches every handler that gave up, and none that has handled the event.
pub async fn a_redrive_reaches_every_handler<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let (group, works) = troubled::<F>(&executor);
    group.handle(&event()).await;
    neighbours::<F>(&executor).await;
    let reached = group.redrive("acme", event().id()).await.expect("a verb");
    let done = |name: &str| (whose(name, false), Operated::Done);
    assert_eq!(reached, [done(""), done("mail")]);
    let retried = group.retry_due().await.expect("a look");
    assert_eq!((retried.due, retried.handled, runs(&works)), (2, 2, [2, 1, 2]));
    assert!(
        group.redrive("acme", event().id()).await.expect("a verb").is_empty(),
        "every handler is done"
    );
    assert!(group.redrive("other", event().id()).await.expect("a verb").is_empty());
    assert!(group.redrive("acme", EventId::generate()).await.expect("a verb").is_empty());
    assert_eq!(
        state(&executor, &key("INVENTORY2")).await,
        State::Dead,
        "the other group is unchanged"
    );
}

/// A discard reaches every handler that has not handled the event, crashed ones included, and
/// stores the reason.
pub async fn a_discard_reaches_every_handler<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let (group, works) = troubled::<F>(&executor);
    group.handle(&event()).await;
    let failing = |_: Arc<Event>, _: Context| async { Err::<(), _>("later") };
    let more = Inbox::new(executor.clone()).group("INVENTORY");
    more.on_fenced_named("slow", "order.placed", failing).handle(&event()).await;
    let crashed = crash::<F>(&fixture, &key("INVENTORY/crashed")).await;
    fixture.advance(PAST_LEASE).await;
    let reached = group.discard("acme", event().id(), "a test order").await.expect("a verb");
    let done = |name: &str| (whose(name, false), Operated::Done);
    assert_eq!(reached, [done(""), done("crashed"), done("mail"), done("slow")]);
    let discarded = kept(&group, State::Discarded).await;
    assert_eq!(discarded.len(), 4);
    for kept in discarded {
        let error = kept.record.error.as_ref().map(|error| error.as_str());
        assert_eq!(error, Some("a test order"), "{:?}", kept.consumer);
        assert_eq!(kept.event().as_ref(), Some(&*event()), "the whole event");
    }
    assert!(kept(&group, State::Dead).await.is_empty());
    assert_eq!(group.retry_due().await.expect("a look").due, 0);
    assert_eq!(runs(&works), [1, 1, 1]);
    drop(crashed);
}

/// A discarded event that is redelivered is not handled, not even after years, and its broker gets
/// an ack. Only a redrive of this event has it handled.
pub async fn a_discarded_event_stays_discarded_until_it_is_redriven<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let (group, works) = troubled::<F>(&executor);
    group.handle(&event()).await;
    let reached = group.discard("acme", event().id(), "refunded by hand").await.expect("a verb");
    assert_eq!(reached.len(), 2);
    fixture.advance(YEARS).await;
    sweep(&executor).await;
    assert_eq!(group.receive(&event()).await, BrokerReply::Ack);
    assert_eq!((works[0].runs(), works[2].runs()), (1, 1), "the handler's success has expired");
    assert_eq!(group.redrive("acme", event().id()).await.expect("a verb").len(), 2);
    let retried = group.retry_due().await.expect("a look");
    assert_eq!((retried.handled, works[0].runs(), works[2].runs()), (2, 2, 2));
}

/// A redrive of dead events skips those that were discarded meanwhile.
pub async fn a_redrive_of_what_was_seen_dead_spares_what_was_discarded<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let (group, works) = troubled::<F>(&executor);
    group.handle(&event()).await;
    let dead = kept(&group, State::Dead).await;
    assert_eq!(executor.discard(&dead[1].key, "refunded").await.expect("a verb"), Operated::Done);
    let mut redriven = Vec::new();
    for UnhandledEvent { key, record, .. } in &dead {
        redriven.push(executor.redrive_seen(key, record.version()).await.expect("a verb"));
    }
    assert_eq!(redriven, [Operated::Done, Operated::Moved]);
    assert_eq!(group.retry_due().await.expect("a look").handled, 1);
    assert_eq!(runs(&works), [2, 1, 1]);
    assert_eq!(names(&group, State::Discarded).await, [whose("mail", false)]);
}

/// Claims an event for a holder that never settles. The test drops the returned guard at its end.
async fn crash<F: Fixture>(fixture: &F, key: &Key) -> impl Sized + use<F> {
    let executor = executor(fixture).await;
    let (running, started) = tokio::sync::oneshot::channel();
    // Its heartbeat does not reach the store either, however long the test takes.
    let (inbox, scope) = (brief(&executor, LEASE), key.scope().to_owned());
    let handling = tokio::spawn(async move {
        let handler = move |_, _| async move {
            let _ = running.send(());
            std::future::pending::<Result<(), Failure>>().await
        };
        inbox.handle(&scope, &event(), handler).await
    });
    started.await.expect("the handler starts");
    (executor, handling)
}

/// Events kept by handlers that are no longer deployed can still be listed and changed.
pub async fn handlers_that_are_gone_are_still_in_reach<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let (before, _) = troubled::<F>(&executor);
    before.handle(&event()).await;
    let now = Inbox::new(executor.clone()).group("INVENTORY");
    assert_eq!(names(&now, State::Dead).await, [whose("", false), whose("mail", false)]);
    let reached =
        now.discard("acme", event().id(), "no handler is deployed").await.expect("a verb");
    assert_eq!(reached.len(), 2);
}

/// An event that was kept because another event has its id is listed as a conflict. Redriven, it is
/// handled once as an event of its own, by the handler that found the conflict.
pub async fn a_conflict_that_is_redriven_is_an_event_of_its_own<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let stranger = Arc::new(of_kind("order.paid"));
    let group = Inbox::new(executor.clone())
        .group("INVENTORY")
        .on_fenced_named("audit", "order.placed", hopeless(&Work::default(), 0))
        .on_fenced_named("audit", "order.paid", hopeless(&work, 0));
    assert_eq!(group.receive(&event()).await, BrokerReply::Ack);
    let first = executor.peek(&key("INVENTORY/audit")).await.expect("a store").map(|f| f.record);
    let conflict = async || {
        let result = group.handle(&stranger).await.remove(0).1;
        assert!(matches!(result, Err(HandleError::Conflict)), "{result:?}");
        assert_eq!(BrokerReply::to(&result, false), BrokerReply::Ack);
    };
    conflict().await;
    let dead = kept(&group, State::Dead).await;
    assert_eq!(dead.len(), 1);
    assert_eq!(
        (&dead[0].consumer, dead[0].event()),
        (&whose("audit", true), Some(of_kind("order.paid")))
    );
    let reached = group.redrive("acme", event().id()).await.expect("a verb");
    assert_eq!(reached, [(whose("audit", true), Operated::Done)]);
    let retried = group.retry_due().await.expect("a look");
    assert_eq!((retried.handled, work.runs()), (1, 1));
    conflict().await;
    assert_eq!(group.retry_due().await.expect("a look").due, 0);
    assert_eq!((names(&group, State::Dead).await, work.runs()), (vec![], 1));
    let now = executor.peek(&key("INVENTORY/audit")).await.expect("a store").map(|f| f.record);
    assert_eq!(now, first, "the first record is unchanged");
    let reached = group.discard("acme", event().id(), "too late").await.expect("a verb");
    assert!(reached.is_empty(), "both events are handled");
}

/// Sweeps until nothing is left to do; returns the number of removed records.
async fn sweep<S: Store>(executor: &Executor<S>) -> u32 {
    let mut removed = 0;
    loop {
        let swept = executor.store().sweep(100).await.expect("a sweep");
        removed += swept.removed;
        if !swept.more {
            return removed;
        }
    }
}

/// Only handled events expire: failed, crashed and redriven events are there after years, and can
/// still be handled.
pub async fn what_is_not_handled_is_never_forgotten<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let failing = |_: Arc<Event>, _: Context| async { Err::<(), _>("later") };
    let group = |name: &str| Inbox::new(executor.clone()).group(name);
    group("FAILED").on_fenced("order.placed", failing).handle(&event()).await;
    group("REDRIVEN")
        .on_fenced("order.placed", hopeless(&Work::default(), 1))
        .handle(&event())
        .await;
    group("DONE").on_fenced("order.placed", hopeless(&Work::default(), 0)).handle(&event()).await;
    let crashed = crash(&fixture, &key("CRASHED")).await;
    let redriven = group("REDRIVEN").redrive("acme", event().id()).await.expect("a verb");
    assert_eq!(redriven.len(), 1);
    fixture.advance(YEARS).await;
    let swept = sweep(&executor).await;
    assert!(swept == 1 || fixture.forgets_by_itself(), "{swept} records were swept");
    let done = executor.peek(&key("DONE")).await.expect("a store");
    assert!(done.is_none(), "a success expires after its retention");
    for name in ["FAILED", "REDRIVEN", "CRASHED"] {
        let work = Work::default();
        let group = group(name).on_fenced("order.placed", hopeless(&work, 0));
        let retried = group.retry_due().await.expect("a look");
        assert_eq!((retried.due, retried.handled, work.runs()), (1, 1, 1), "{name}");
        let handled = group.handle(&event()).await.remove(0).1.expect("an answer");
        assert!(matches!(handled, Handled::Replayed { .. }), "{name}: {handled:?}");
    }
    drop(crashed);
    fixture.advance(YEARS).await;
    sweep(&executor).await;
    for name in ["FAILED", "REDRIVEN", "CRASHED"] {
        let left = executor.peek(&key(name)).await.expect("a store");
        assert!(left.is_none(), "once handled, {name} expires like any other");
    }
}
