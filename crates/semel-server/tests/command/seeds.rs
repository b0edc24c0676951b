//! Records and events for the tests.

use std::sync::Arc;
use std::time::Duration;

use semel_core::event::Event;
use semel_core::inbox::Inbox;
use semel_core::outbox::{ClaimRequest, Disposition, Outbox};
use semel_core::store::{Draft, Opened, Settlement, Store as _, TransactionalStore};
use semel_core::{
    AnyStore, AttemptId, Command, ErrorText, EventId, Executor, Fingerprint, Key, Lease, OnCrash,
    OnFailure, OperationId, Outcome, Policy, Recorded, Reference,
};
use semel_server::store::StoreHandle;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn key(scope: &str, id: &str) -> Key {
    Key::command("acme", scope, id).expect("a key")
}

/// Claims a key for an hour.
pub(crate) async fn claimed(
    ledger: &AnyStore,
    key: &Key,
    on_crash: OnCrash,
    lease: Duration,
) -> Lease {
    let draft = Draft {
        key: key.clone(),
        fingerprint: Fingerprint::none(),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: "host:1:a".into(),
        lease,
        on_crash,
        keep: HOUR,
        retry_payload: None,
    };
    match ledger.open(&draft).await.expect("the store answers") {
        Opened::Inserted { fence } => {
            Lease { digest: key.digest(), fence, attempt_id: draft.attempt_id }
        }
        other @ (Opened::Existing { .. } | Opened::Contended) => panic!("taken: {other:?}"),
    }
}

/// Claims a key and settles the claim with `ending`.
pub(crate) async fn ended(ledger: &AnyStore, key: &Key, ending: Settlement) {
    let lease = claimed(ledger, key, OnCrash::Rerun, HOUR).await;
    let settled = ledger.settle(&lease, &ending).await.expect("the store answers");
    assert_eq!(settled, semel_core::store::Settled::Done);
}

pub(crate) fn succeeded(answer: &str, reference: &str, keep: Duration) -> Settlement {
    let outcome = Outcome::new(Outcome::JSON, answer.to_owned())
        .with_reference(Reference::new(reference).expect("a reference"));
    Settlement::Succeeded { outcome: Recorded::Whole(outcome), keep }
}

pub(crate) fn failed(error: &str) -> Settlement {
    Settlement::Failed { error: ErrorText::new(error), retry_after: Some(HOUR), keep: HOUR }
}

pub(crate) fn dead(error: &str) -> Settlement {
    Settlement::Dead { error: ErrorText::new(error) }
}

pub(crate) fn uncertain(error: &str) -> Settlement {
    Settlement::Uncertain { error: ErrorText::new(error) }
}

/// Evaluates an expression for each kind of database.
macro_rules! each {
    ($handle:expr, $store:ident => $work:expr) => {
        match $handle {
            StoreHandle::Sqlite($store) => $work,
            StoreHandle::Postgres($store) => $work,
            StoreHandle::MySql($store) => $work,
            StoreHandle::Memory(_) | StoreHandle::Redis(_) => panic!("no database"),
        }
    };
}

/// Places orders `order-1`, `order-2`, …, each of which appends the event `order.placed`.
pub(crate) async fn orders(handle: &StoreHandle, count: usize) -> Vec<EventId> {
    each!(handle, store => {
        let mut events = Vec::new();
        for at in 1..=count {
            events.push(order(store, &format!("order-{at}")).await);
        }
        events
    })
}

async fn order<S>(store: &S, id: &str) -> EventId
where
    S: TransactionalStore + Outbox<Connection = <S as TransactionalStore>::Connection> + Clone,
{
    let event = Event::builder("acme", "order.placed", "/orders")
        .about("order", id)
        .json(&id)
        .build()
        .expect("an event");
    let name = event.id();
    let executor = Executor::new(store.clone());
    let placed = executor
        .transact(Command::new(key("ORDER_CREATE", id)), |mut unit| async move {
            unit.append([event]).await.map_err(|error| error.to_string())?;
            Ok::<_, String>("placed".to_owned())
        })
        .await;
    assert!(placed.expect("placed").value().is_some());
    name
}

/// Marks every due event with `disposition`, as a relay does.
pub(crate) async fn relayed(handle: &StoreHandle, disposition: Disposition) {
    each!(handle, store => {
        let leased = store.claim(ClaimRequest::new(100, HOUR)).await.expect("claimed");
        let marks: Vec<_> = leased.iter().map(|row| (row.ticket, disposition.clone())).collect();
        store.mark(&marks).await.expect("marked");
    });
}

/// Handles the order's event in the group, with success or failure. A failed event is due in an
/// hour, which is longer than any test.
pub(crate) async fn handled(handle: &StoreHandle, group: &str, id: EventId, well: bool) {
    let event = Event::builder("acme", "order.placed", "/orders").id(id).build();
    let on_failure = OnFailure::Backoff { base: HOUR, cap: HOUR };
    let policy = Policy { on_failure, ..Inbox::<AnyStore>::default_policy() };
    let inbox = Inbox::new(Executor::new(handle.ledger())).policy(policy);
    let group = inbox.group(group).on_fenced("order.placed", move |_, _| async move {
        if well { Ok(()) } else { Err("the shelf is empty".to_owned()) }
    });
    let results = group.handle(&Arc::new(event.expect("an event"))).await;
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].1.is_ok(), well, "{results:?}");
}
