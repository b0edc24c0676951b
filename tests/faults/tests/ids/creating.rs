//! Resources that are created once, with their ids, their rows and their events.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_core::executor::{Claimed, Served, Unit};
use semel_core::outbox::{Outbox, Selection};
use semel_core::store::Filter;
use semel_core::{
    Command, Error, Event, Execution, Executor, Fingerprint, Key, Outcome, Recorded, Wait,
};
use semel_faults::effects::{self, Effect};
use semel_ids::create::{CreateError, CreateExt as _};
use semel_ids::resource::{Order, Payment, Sku};
use semel_ids::{ResolveReason, TypedId};
use serde::{Deserialize, Serialize};

use crate::fixture::{ACME, IdFixture, Whole, on_each_database, reason};

on_each_database! {
    a_thing_is_made_once_with_its_id_its_row_and_its_event
    a_failure_leaves_no_id_and_the_retry_has_the_same
    a_takeover_makes_the_thing_under_the_same_id
    many_at_once_make_one_thing
    another_request_under_the_key_makes_nothing
    further_things_have_ids_of_their_own
    a_thing_without_an_id_commits_nothing
    a_thing_is_made_in_a_transaction_that_an_entry_point_opened
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Made {
    order: TypedId<Order>,
    cents: u64,
}

fn command(id: &str) -> Command {
    let key = Key::command(ACME, "ORDER_CREATE", id).expect("a key");
    Command::new(key).fingerprint(Fingerprint::of_body(b"{\"cents\":5}"))
}

fn placed_event(order: TypedId<Order>) -> Event {
    let event = Event::builder(ACME, "order.created", "/orders");
    event.about("order", &order.to_string()).build().expect("an event")
}

async fn make<S: Whole>(
    mut making: semel_ids::create::NewResource<S, Order>,
    fails: bool,
) -> Result<Made, String> {
    let order = making.id();
    let effect = Effect::of(making.context());
    S::perform(making.conn(), &effect).await.map_err(|error| error.to_string())?;
    making.append([placed_event(order)]).await.map_err(|error| error.to_string())?;
    if fails {
        return Err("the card was declined".to_owned());
    }
    Ok(Made { order, cents: 5 })
}

async fn events<S: Whole>(store: &S) -> usize {
    Outbox::list(store, &Selection::default(), None, 100).await.expect("the outbox").len()
}

async fn a_thing_is_made_once_with_its_id_its_row_and_its_event<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let node = fixture.node().await;
    let executor = Executor::new(fixture.store.clone());
    let create = || executor.create::<Order>(command("k")).resolver(&node);
    let first = create().run(|making| make(making, false)).await.expect("made");
    let id = first.id().expect("made");
    assert_eq!(first.execution().value(), Some(&Made { order: id, cents: 5 }));
    assert!(!first.execution().replayed());
    assert_eq!(
        reason(&node, id).await,
        ResolveReason::HitL1,
        "in L1 as soon as the resource is created"
    );
    let again = create().run(|making| make(making, false)).await.expect("replayed");
    assert!(again.execution().replayed());
    assert_eq!((again.id(), again.execution().value()), (Some(id), first.execution().value()));
    assert!(fixture.is_mapped(id).await);
    assert_eq!(effects::read(fixture.private.backend()).await.expect("effects").len(), 1);
    assert_eq!(events(&fixture.store).await, 1);
    let filter = Filter { reference: Some(id.to_string()), ..Filter::default() };
    let found =
        semel_core::store::Inspect::list(&fixture.store, &filter, None, 10).await.expect("a page");
    assert_eq!(found.entries.len(), 1, "the outcome refers to the public id");
    fixture.private.remove().await;
}

async fn a_failure_leaves_no_id_and_the_retry_has_the_same<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let node = fixture.node().await;
    let executor = Executor::new(fixture.store.clone());
    let mut seen = Vec::new();
    for fails in [true, true, false] {
        let (report, reported) = std::sync::mpsc::channel();
        let create = executor.create::<Order>(command("k")).resolver(&node);
        let made = create
            .run(move |making| {
                let _ = report.send(making.id());
                make(making, fails)
            })
            .await;
        assert_eq!(made.is_err(), fails);
        let id = reported.recv().expect("the work ran");
        assert_eq!(fixture.is_mapped(id).await, !fails, "mapped if and only if the work succeeded");
        assert_eq!(reason(&node, id).await == ResolveReason::NotFound, fails);
        seen.push(id);
    }
    assert!(seen.iter().all(|id| *id == seen[0]), "the same id in every attempt: {seen:?}");
    assert_eq!(effects::read(fixture.private.backend()).await.expect("effects").len(), 1);
    assert_eq!(events(&fixture.store).await, 1);
    fixture.private.remove().await;
}

async fn a_takeover_makes_the_thing_under_the_same_id<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let executor = Executor::new(fixture.store.clone());
    let command = || command("k").claim_first();
    // A process that claimed the key and is gone: no renewal, no settlement.
    let brief = command().lease(Duration::from_secs(2));
    let Ok(Claimed::Granted(claim)) = executor.claim(brief).await else {
        panic!("a new key is granted")
    };
    let operation = claim.context().operation_id();
    drop(claim);
    let other = Executor::new(fixture.store.clone());
    let made = loop {
        let made = other.create::<Order>(command()).run(|making| make(making, false)).await;
        match made.expect("made, or in progress").into_execution() {
            Execution::InProgress { .. } => tokio::time::sleep(Duration::from_millis(100)).await,
            done @ (Execution::Executed { .. } | Execution::Replayed { .. }) => break done,
        }
    };
    let receipt = made.receipt().expect("made");
    assert_eq!((receipt.operation_id, receipt.attempt), (operation, 2));
    let id = made.value().expect("made").order;
    let replayed = other.create::<Order>(command()).run(|making| make(making, false)).await;
    assert_eq!(
        replayed.expect("replayed").id(),
        Some(id),
        "the id is derived from the first attempt's operation"
    );
    assert_eq!(effects::read(fixture.private.backend()).await.expect("effects").len(), 1);
    fixture.private.remove().await;
}

async fn many_at_once_make_one_thing<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let node = fixture.node().await;
    let executor = Executor::new(fixture.store.clone());
    let callers: Vec<_> = (0..32)
        .map(|_| {
            let wait = Wait::UpTo(Duration::from_secs(120));
            let create = executor.create::<Order>(command("k").wait(wait)).resolver(&node);
            tokio::spawn(create.run(|making| make(making, false)))
        })
        .collect();
    let mut ids = HashSet::new();
    for caller in callers {
        ids.insert(caller.await.expect("no panic").expect("an answer").id().expect("made"));
    }
    assert_eq!(ids.len(), 1);
    assert_eq!(effects::read(fixture.private.backend()).await.expect("effects").len(), 1);
    assert_eq!(events(&fixture.store).await, 1);
    fixture.private.remove().await;
}

async fn another_request_under_the_key_makes_nothing<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let executor = Executor::new(fixture.store.clone());
    let create = |command| executor.create::<Order>(command);
    create(command("k")).run(|making| make(making, false)).await.expect("made");
    let other = command("k").fingerprint(Fingerprint::of_body(b"{}"));
    let ran = Arc::new(AtomicBool::new(false));
    let refused = create(other)
        .run({
            let ran = Arc::clone(&ran);
            move |making| {
                ran.store(true, Ordering::SeqCst);
                make(making, false)
            }
        })
        .await;
    assert!(matches!(refused, Err(Error::Mismatch)));
    assert!(!ran.load(Ordering::SeqCst));
    let kind = <Order as semel_ids::Resource>::TYPE;
    let rows = semel_ids::IdMap::list(&fixture.store, kind, None, None, 10).await.expect("the map");
    assert_eq!(rows.len(), 1, "no other id was bound");
    fixture.private.remove().await;
}

async fn further_things_have_ids_of_their_own<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let node = fixture.node().await;
    let executor = Executor::new(fixture.store.clone());
    let create = executor.create::<Order>(command("k")).resolver(&node);
    let made = create
        .run(|mut making| async move {
            let one = making.another::<Payment>().await.map_err(|error| error.to_string())?;
            let two = making.another::<Payment>().await.map_err(|error| error.to_string())?;
            Ok::<_, String>((one, two))
        })
        .await
        .expect("made");
    let (one, two) = *made.execution().value().expect("made");
    assert_ne!(one, two);
    for payment in [one, two] {
        let text = payment.to_string();
        let answer = node.resolve::<Payment>(ACME, &text).await.expect("an answer");
        assert_eq!(answer.internal_id, Some(payment.ulid()));
    }
    fixture.private.remove().await;
}

async fn a_thing_without_an_id_commits_nothing<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let executor = Executor::new(fixture.store.clone());
    // The id of the second resource is taken: the operation id, from which it is derived, is known
    // before the work runs.
    let claimed = || command("k").claim_first();
    let create = executor.create::<Order>(claimed());
    let (report, reported) = std::sync::mpsc::channel();
    let failed = create
        .run(move |mut making| async move {
            let payment = making.another::<Payment>().await.map_err(|error| error.to_string())?;
            let _ = report.send(payment);
            Err::<(), _>("not yet".to_owned())
        })
        .await;
    assert!(failed.is_err());
    let payment = reported.recv().expect("the work ran");
    let conflicting = semel_ids::Binding::of(ACME, payment).expect("a tenant");
    let _ = semel_ids::IdMap::insert_many(&fixture.store, &[conflicting]).await.expect("the map");
    let (kind, public) = (<Payment as semel_ids::Resource>::TYPE, payment.public());
    let gone = semel_ids::IdMap::revoke(&fixture.store, ACME, kind, &public).await;
    assert!(gone.expect("the map"), "the conflicting binding was removed");
    for goes_on in [false, true] {
        let careless = executor.create::<Order>(claimed()).run(move |mut making| async move {
            let _ = making.another::<Payment>().await;
            if goes_on {
                // A later success does not make up for the earlier failure.
                making.another::<Sku>().await.map_err(|error| error.to_string())?;
            }
            make(making, false).await
        });
        let refused = careless.await.expect_err("nothing can be committed");
        assert!(matches!(refused, Error::Work(CreateError::IgnoredFailure)), "{refused}");
    }
    assert_eq!(effects::read(fixture.private.backend()).await.expect("effects").len(), 0);
    assert_eq!(events(&fixture.store).await, 0);
    fixture.private.remove().await;
}

async fn a_thing_is_made_in_a_transaction_that_an_entry_point_opened<S: Whole>() {
    let fixture = IdFixture::<S>::new().await;
    let node = fixture.node().await;
    let executor = Executor::new(fixture.store.clone());
    let serve = async |fails| {
        let (creating, node) = (executor.clone(), node.clone());
        let served = executor.serve_transact(command("k"), move |unit: Unit<S>| async move {
            let context = unit.context().clone();
            let creation = creating.create_in::<Order>(unit).resolver(&node);
            match creation.run(|making| make(making, fails)).await {
                Ok(Made { order, .. }) => {
                    let outcome = Recorded::Whole(Outcome::new("text/plain", order.to_string()));
                    context.complete(Some(order), outcome)
                }
                Err(error) => context.fail(None, &error.to_string()),
            }
        });
        served.await.expect("served")
    };
    let failed = serve(true).await;
    assert!(matches!(failed, Served::Executed { answer: None, .. }), "{failed:?}");
    assert_eq!(events(&fixture.store).await, 0, "no event is left");
    let Served::Executed { answer: Some(id), .. } = serve(false).await else {
        panic!("the second attempt runs")
    };
    assert_eq!(
        reason(&node, id).await,
        ResolveReason::HitL1,
        "in L1 as soon as the resource is created"
    );
    let Served::Replayed { outcome, .. } = serve(false).await else {
        panic!("the resource was created")
    };
    assert_eq!(outcome.body(), id.to_string().as_bytes());
    assert_eq!(outcome.reference().map(|it| it.as_str()), Some(&*id.to_string()));
    assert!(fixture.is_mapped(id).await);
    assert_eq!(effects::read(fixture.private.backend()).await.expect("effects").len(), 1);
    assert_eq!(events(&fixture.store).await, 1);
    fixture.private.remove().await;
}
