//! Events of the executor's transactions: there if and only if the command committed.

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

/// Appends events and ends like this.
async fn tell<S: TransactionalOutbox>(
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

/// A command's events are there when it has committed.
pub async fn a_commands_events_commit_with_it<F: OutboxFixture<Outbox: TransactionalOutbox>>(
    fixture: F,
) {
    let ((executor, outbox), events) = (executor(&fixture).await, events(3));
    let told = tell(&executor, events.clone(), Ok("placed")).await.expect("it runs");
    assert_eq!(told.value().map(String::as_str), Some("placed"));
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids(&events));
}

/// A command that fails leaves no event.
pub async fn a_failed_command_leaves_no_event<F: OutboxFixture<Outbox: TransactionalOutbox>>(
    fixture: F,
) {
    let (executor, outbox) = executor(&fixture).await;
    let failed = tell(&executor, events(3), Err("no stock")).await;
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
            panic!("out of luck")
        })
        .await;
    assert!(broken.is_err());
    assert!(rows(&outbox).await.is_empty());
}

/// A command that passes over a failed append leaves no event, even if it appends others afterwards.
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

/// A command that leaves an append halfway leaves no event, even if it appends others afterwards.
pub async fn a_command_that_leaves_an_append_leaves_no_event<
    F: OutboxFixture<Outbox: TransactionalOutbox>,
>(
    fixture: F,
) {
    let (executor, outbox) = executor(&fixture).await;
    let (tell, told) = std::sync::mpsc::channel();
    let hasty: Answer = executor
        .transact(command(), move |mut unit: Unit<F::Outbox>| async move {
            // Polled once: an append that needs a server or another thread is not done by then.
            let left = tokio::time::timeout(Duration::ZERO, unit.append(events(1))).await;
            let _ = tell.send(left.is_err());
            unit.append(events(1)).await.map_err(|error| error.to_string())?;
            Ok("placed".to_owned())
        })
        .await;
    let left = told.recv().expect("the work ran");
    assert_eq!(hasty.is_err(), left, "{hasty:?}");
    assert_eq!(rows(&outbox).await.len(), if left { 0 } else { 2 });
}

/// A repeated command is replayed and appends nothing.
pub async fn a_repeated_command_tells_nothing_twice<
    F: OutboxFixture<Outbox: TransactionalOutbox>,
>(
    fixture: F,
) {
    let (executor, outbox) = executor(&fixture).await;
    for replayed in [false, true, true] {
        let told = tell(&executor, events(1), Ok("placed")).await.expect("an answer");
        assert_eq!(told.replayed(), replayed);
    }
    assert_eq!(rows(&outbox).await.len(), 1);
}

/// Events say which operation they come of, unless they name another cause.
pub async fn events_carry_their_operation<F: OutboxFixture<Outbox: TransactionalOutbox>>(
    fixture: F,
) {
    let (executor, outbox) = executor(&fixture).await;
    let named = Event::builder("acme", "order.placed", "/orders").causation_id("a letter");
    let told = tell(&executor, vec![event(), built(named)], Ok("placed")).await.expect("it runs");
    let operation = told.receipt().map(|receipt| receipt.operation_id.to_string());
    let leased = claim_all(&outbox).await;
    let read: Vec<_> = leased.iter().map(|row| row.envelope.as_ref().expect("read")).collect();
    assert_eq!(read[0].correlation_id(), operation.as_deref());
    assert_eq!(read[0].causation_id(), operation.as_deref());
    assert_eq!(read[1].correlation_id(), operation.as_deref());
    assert_eq!(read[1].causation_id(), Some("a letter"));
}

/// A command's commit wakes a relay of the same process.
pub async fn a_commands_commit_wakes_the_relay<F: OutboxFixture<Outbox: TransactionalOutbox>>(
    fixture: F,
) {
    let ((executor, outbox), broker) = (executor(&fixture).await, Broker::new());
    let hour = Duration::from_secs(3_600);
    let relaying =
        relay(&Arc::new(outbox), &broker).idle(hour, hour).build().expect("sound settings").start();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let _ = tell(&executor, events(2), Ok("placed")).await.expect("it runs");
    broker.wait_for(2).await;
    relaying.stop().await;
}
