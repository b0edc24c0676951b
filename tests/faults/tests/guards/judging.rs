//! The order of judgement, and which records may be overwritten.

use std::sync::Arc;
use std::time::Duration;

use semel_core::clock::{Clock, Timestamp};
use semel_core::store::memory::MemoryStore;
use semel_core::store::{Opened, Store as _};
use semel_core::{Fingerprint, Origin};
use semel_faults::harness::{ControlledWork, command, executor, orphan};
use semel_faults::on_stores;
use semel_stores::PrivateStore;
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};

#[test]
fn an_expired_key_takes_another_request() {
    semel_testkit::fixture::run(async {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let store = MemoryStore::with(10, clock.clone());
        let keep = Duration::from_secs(60);
        let asked =
            |body: &str| command("k").keep(keep).fingerprint(Fingerprint::of_body(body.as_bytes()));
        let first = executor(store.clone(), Duration::from_secs(30));
        let done = first.run(asked("one"), |_| async { Ok::<_, String>(1) }).await.expect("runs");
        assert_eq!(done.value(), Some(&1));

        clock.advance(keep);
        // A new executor without a cache of the first request.
        let second = executor(store, Duration::from_secs(30));
        let origin = Arc::new(std::sync::Mutex::new(None));
        let noted = Arc::clone(&origin);
        let again = second
            .run(asked("two"), move |context| async move {
                *noted.lock().expect("no panic") = Some(context.origin());
                Ok::<_, String>(2)
            })
            .await
            .expect("an expired key is free for another request");
        assert_eq!((again.value(), again.attempt()), (Some(&2), Some(1)));
        assert_eq!(*origin.lock().expect("no panic"), Some(Origin::Fresh));
    });
}

async fn of_rivals_who_judged_the_same_record_one_runs(private: Arc<PrivateStore>) {
    let store = private.backend().open().await.expect("a store");
    let lapsed = Duration::from_millis(100);
    let opened = store.open(&orphan("k", lapsed)).await.expect("opens");
    assert!(matches!(opened, Opened::Inserted { .. }));
    tokio::time::sleep(lapsed * 2).await;

    // Both callers judge the lapsed record, and hang before they overwrite it.
    let rival = |slow: ControlledWork| {
        let store = FaultyStore::new(store.clone());
        let faults = store.faults().clone();
        faults.next(StoreCall::Swap, Fault::Hang);
        let executor = executor(store, Duration::from_secs(30));
        let asked = tokio::spawn(async move { executor.run(command("k"), |_| slow.work()).await });
        (faults, asked)
    };
    let ((first, begun, end), (second, second_begun, second_end)) =
        (ControlledWork::new(), ControlledWork::new());
    let ((faults, won), (other_faults, lost)) = (rival(first), rival(second));
    faults.hung(1).await;
    other_faults.hung(1).await;

    faults.heal();
    begun.await.expect("the first rival works");
    second_end.send("the second's".to_owned()).expect("the second rival waits");
    other_faults.heal();
    let lost = lost.await.expect("no panic").expect("an answer");
    assert!(lost.in_progress(), "the second rival wrote over a record it did not judge: {lost:?}");
    assert!(second_begun.await.is_err(), "the second rival worked");
    end.send("the first's".to_owned()).expect("the first rival works");
    let won = won.await.expect("no panic").expect("an answer");
    assert!(!won.replayed() && won.value().map(String::as_str) == Some("the first's"), "{won:?}");
    assert_eq!((faults.happened(StoreCall::Swap), other_faults.happened(StoreCall::Swap)), (1, 1));
}

on_stores!(of_rivals_who_judged_the_same_record_one_runs:
    memory sqlite postgres mysql redis redis_cluster);
