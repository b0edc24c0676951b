//! Events in transactions of an executor: appended if and only if the command committed.

use std::sync::Arc;
use std::time::Duration;

use semel_core::event::Event;
use semel_core::executor::Unit;
use semel_core::outbox::Outbox;
use semel_core::store::TransactionalStore;
use semel_core::{Command, Error, Execution, Executor, Key};

use super::OutboxFixture;
use super::broker::Broker;
use super::relaying::relay;
use super::shorthand::*;

/// An outbox that is also a store whose transactions an executor can use.
pub trait TransactionalOutbox:
    TransactionalStore + Outbox<Connection = <Self as TransactionalStore>::Connection> + Clone
{
}

impl<S> TransactionalOutbox for S where
    S: TransactionalStore + Outbox<Connection = <S as TransactionalStore>::Connection> + Clone
{
}

type Answer = Result<Execution<String>, Error<String>>;

fn command() -> Command {
    Command::new(Key::command("acme", "ORDER_CREATE", "k-1").expect("a valid key"))
}

async fn executor<F: OutboxFixture<Outbox: TransactionalOutbox>>(
    fixture: &F,
) -> (Executor<F::Outbox>, F::Outbox) {
    let store = fixture.outbox().await;
    let executor = Executor::builder(store.clone()).build().expect("the default policy is valid");
    (executor, store)
}

/// Runs a command that appends events and then returns `end`.
async fn append_and_return<S: TransactionalOutbox>(
    executor: &Executor<S>,
    events: Vec<Event>,
    end: Result<&str, &str>,
) -> Answer {
    let end = end.map(str::to_owned).map_err(str::to_owned);
    executor
        .transact(command(), move |mut unit: Unit<S>| async move {
            unit.append(events).await.map_err(|error| error.to_string())?;
            end
        })
        .await
}

/// The events of a command are there once it has committed.
pub async fn a_commands_events_commit_with_it<F: OutboxFixture<Outbox: TransactionalOutbox>>(
    fixture: F,
) {
    let ((executor, outbox), events) = (executor(&fixture).await, events(3));
    let returned =
        append_and_return(&executor, events.clone(), Ok("placed")).await.expect("the command runs");
    assert_eq!(returned.value().map(String::as_str), Some("placed"));
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids(&events));
}

/// A failed command leaves no event.
pub async fn a_failed_command_leaves_no_event<F: OutboxFixture<Outbox: TransactionalOutbox>>(
    fixture: F,
) {
    let (executor, outbox) = executor(&fixture).await;
    let failed = append_and_return(&executor, events(3), Err("no stock")).await;
    assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
    assert!(rows(&outbox).await.is_empty());
}

/// A command that panics leaves no event.
pub async fn a_command_that_panics_leaves_no_event<
    F: OutboxFixture<Outbox: TransactionalOutbox>,
>(
    fixture: F,
) {
    let (executor, outbox) = executor(&fixture).await;
    let broken: Answer = executor
        .transact(command(), move |mut unit: Unit<F::Outbox>| async move {
            unit.append(events(2)).await.map_err(|error| error.to_string())?;
            panic!("a panic of the work")
        })
        .await;
    assert!(broken.is_err());
    assert!(rows(&outbox).await.is_empty());
}

/// A command that ignores a failed append leaves no event, even if it appends others afterwards.
pub async fn a_command_that_passes_over_a_failed_append_leaves_no_event<
    F: OutboxFixture<Outbox: TransactionalOutbox>,
>(
    fixture: F,
) {
    let (executor, outbox) = executor(&fixture).await;
    let twice = event();
    let careless: Answer = executor
        .transact(command(), move |mut unit: Unit<F::Outbox>| async move {
            let refused = unit.append([twice.clone(), twice]).await;
            assert!(refused.is_err(), "two events under one id");
            unit.append(events(1)).await.map_err(|error| error.to_string())?;
            Ok("placed".to_owned())
        })
        .await;
    assert!(matches!(careless, Err(Error::Store(_))), "{careless:?}");
    assert!(rows(&outbox).await.is_empty());
}

/// A command that cancels an append leaves no event, even if it appends others afterwards.
pub async fn a_command_that_leaves_an_append_leaves_no_event<
    F: OutboxFixture<Outbox: TransactionalOutbox>,
>(
    fixture: F,
) {
    let (executor, outbox) = executor(&fixture).await;
    let (report, reported) = std::sync::mpsc::channel();
    let hasty: Answer = executor
        .transact(command(), move |mut unit: Unit<F::Outbox>| async move {
            // Polled once: an append that needs a server or another thread is not done by then.
            let left = tokio::time::timeout(Duration::ZERO, unit.append(events(1))).await;
            let _ = report.send(left.is_err());
            unit.append(events(1)).await.map_err(|error| error.to_string())?;
            Ok("placed".to_owned())
        })
        .await;
    let left = reported.recv().expect("the work ran");
    assert_eq!(hasty.is_err(), left, "{hasty:?}");
    assert_eq!(rows(&outbox).await.len(), if left { 0 } else { 2 });
}

/// A repeated command is replayed and appends nothing.
pub async fn a_repeated_command_appends_nothing<F: OutboxFixture<Outbox: TransactionalOutbox>>(
    fixture: F,
) {
    let (executor, outbox) = executor(&fixture).await;
    for replayed in [false, true, true] {
        let returned =
            append_and_return(&executor, events(1), Ok("placed")).await.expect("an answer");
        assert_eq!(returned.replayed(), replayed);
    }
    assert_eq!(rows(&outbox).await.len(), 1);
}

/// Events get the operation's id as correlation and causation id, unless they have their own.
pub async fn events_carry_their_operation<F: OutboxFixture<Outbox: TransactionalOutbox>>(
    fixture: F,
) {
    let (executor, outbox) = executor(&fixture).await;
    let named = Event::builder("acme", "order.placed", "/orders").causation_id("a letter");
    let returned = append_and_return(&executor, vec![event(), built(named)], Ok("placed"))
        .await
        .expect("the command runs");
    let operation = returned.receipt().map(|receipt| receipt.operation_id.to_string());
    let leased = claim_all(&outbox).await;
    let read: Vec<_> = leased.iter().map(|row| row.envelope.as_ref().expect("read")).collect();
    assert_eq!(read[0].correlation_id(), operation.as_deref());
    assert_eq!(read[0].causation_id(), operation.as_deref());
    assert_eq!(read[1].correlation_id(), operation.as_deref());
    assert_eq!(read[1].causation_id(), Some("a letter"));
}

/// The commit of a command wakes a relay of the same process.
pub async fn a_commands_commit_wakes_the_relay<F: OutboxFixture<Outbox: TransactionalOutbox>>(
    fixture: F,
) {
    let ((executor, outbox), broker) = (executor(&fixture).await, Broker::new());
    let hour = Duration::from_secs(3_600);
    let relaying =
        relay(&Arc::new(outbox), &broker).idle(hour, hour).build().expect("sound settings").start();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let _ = append_and_return(&executor, events(2), Ok("placed")).await.expect("the command runs");
    broker.wait_for(2).await;
    relaying.stop().await;
}
