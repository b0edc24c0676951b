//! A holder that continues after its lease is over.

use std::sync::Arc;
use std::time::Duration;

use semel_core::{Execution, State, Store as _, Wait};
use semel_faults::harness::{ControlledWork, command, executor, key};
use semel_faults::on_stores;
use semel_stores::PrivateStore;
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};

/// The work begins and a renewal is tried within this lease, even on a busy machine.
const LEASE: Duration = Duration::from_secs(9);

async fn a_late_holder_is_refused_and_gets_the_winners_answer(private: Arc<PrivateStore>) {
    let cut_off = FaultyStore::new(private.backend().open().await.expect("a store"));
    cut_off.faults().always(StoreCall::Renew, Fault::Refuse);
    let faults = cut_off.faults().clone();
    let (first, second) = (
        executor(cut_off, LEASE),
        executor(private.backend().open().await.expect("a store"), LEASE),
    );
    let (slow, begun, end) = ControlledWork::new();
    let late = tokio::spawn(async move { first.run(command("k"), |_| slow.work()).await });
    begun.await.expect("the first holder works");

    let winner = second
        .run(command("k").wait(Wait::UpTo(Duration::from_secs(60))), |_| async {
            Ok::<_, String>("the winner's".to_owned())
        })
        .await
        .expect("a takeover");
    assert!(faults.happened(StoreCall::Renew) > 0, "the lease lapsed although it was renewed");
    let Execution::Executed { receipt: won, .. } = winner else { panic!("{winner:?}") };
    assert_eq!(won.attempt, 2, "nothing was taken over");

    end.send("the late one's".to_owned()).expect("the first holder still works");
    let late = late.await.expect("no panic").expect("an answer");
    assert!(late.replayed(), "a stale completion was accepted: {late:?}");
    assert_eq!(late.value().map(String::as_str), Some("the winner's"));
    let record = second.store().peek(&key("k")).await.expect("readable").expect("a record").record;
    assert_eq!((record.state, record.fence), (State::Succeeded, won.fence));
}

on_stores!(a_late_holder_is_refused_and_gets_the_winners_answer:
    memory sqlite postgres mysql redis redis_cluster);
