//! Tests a unit that is moved out of its work: it keeps the database, and cannot be taken back.

use futures_util::future::join;
use semel_core::executor::{LocalReplay, Unit};
use semel_core::{Command, Error};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::*;

/// How long the test waits for an answer: less than a step waits for the writer.
const SOON: Duration = Duration::from_secs(20);

fn is_refused(error: &semel_core::store::Error) -> bool {
    error.kind() == ErrorKind::Unavailable && error.to_string().contains("moved out of its work")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_moved_unit_holds_the_database_calls_are_refused_and_begun_work_waits() {
    let place = Place::new();
    let limit = Duration::from_millis(100);
    let store = place.builder().work_limit(limit).open().await.expect("opens");
    let executor = semel_core::Executor::builder(store.clone()).local_replay(LocalReplay::OFF);
    let executor = executor.build().expect("the default policy is valid");
    settled(&store, "done").await;
    let (renewing, settlement) =
        (claim(&store, &draft("renewing")).await, claim(&store, &draft("settlement")).await);
    let (release, released) = oneshot::channel::<()>();
    let moved = move |unit: Unit<SqliteStore>| async move {
        tokio::spawn(async move {
            let _ = released.await;
            drop(unit);
        });
        Ok::<u32, String>(1)
    };
    let command = |id| Command::new(key(id));
    let escaped = executor.transact(command("a"), moved).await;
    assert!(matches!(escaped, Err(Error::Escaped)), "{escaped:?}");

    // Steps that waited when the transaction became overdue, and steps that come later.
    let new = draft("new");
    for _ in 0..2 {
        let asked = timeout(SOON, join(store.begin(), store.open(&new))).await;
        let (begun, opened) = asked.expect("an answer");
        assert!(begun.as_ref().is_err_and(is_refused), "{begun:?}");
        assert!(opened.as_ref().is_err_and(is_refused), "{opened:?}");
    }
    let work = |_: Unit<SqliteStore>| async { Ok::<u32, String>(2) };
    let told = timeout(SOON, executor.transact(command("b"), work)).await.expect("an answer");
    assert!(matches!(&told, Err(Error::Store(error)) if is_refused(error)), "{told:?}");
    let replayed = store.open(&draft("done")).await;
    assert!(matches!(replayed, Ok(Opened::Existing { .. })), "{replayed:?}");

    // Work that has begun loses nothing: its renewals and outcomes wait for their turn.
    let mut renewer = store.renewer().await.expect("a renewer");
    let leases = [(renewing, Duration::from_secs(30))];
    let outcome = done();
    let mut both = Box::pin(join(renewer.renew(&leases), store.settle(&settlement, &outcome)));
    assert!(poll!(&mut both).is_pending());

    let _ = release.send(());
    let (renewed, settled) = timeout(SOON, both).await.expect("the unit was returned");
    assert_eq!(renewed.expect("renewed"), [Renewed::Extended]);
    assert_eq!(settled.expect("settled"), Settled::Done);
    for id in ["a", "b"] {
        let done = executor.transact(command(id), work).await.expect("it runs");
        assert_eq!((done.replayed(), done.value()), (false, Some(&2)));
    }
}
