//! Steps whose reply is lost: they may have happened, and that can be found out.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{AnyStore, Opened, Store as _};
use semel_core::{Execution, Executor};
use semel_proofs::on_stores;
use semel_proofs::place::Place;
use semel_proofs::scene::{Seen, command, executor, orphan};
use semel_testkit::faulty::{Fault, FaultyStore, Verb};

const LEASE: Duration = Duration::from_secs(30);

async fn faulty(place: &Place) -> FaultyStore<AnyStore> {
    FaultyStore::new(place.backend().open().await.expect("a store"))
}

async fn run_once(executor: &Executor<FaultyStore<AnyStore>>, seen: &Seen) -> Execution<u32> {
    let noted = seen.clone();
    let work = move |context: semel_core::Context| async move {
        noted.note(&context);
        Ok::<_, String>(7)
    };
    let answer = executor.run(command("k"), work).await.expect("an answer");
    assert_eq!(seen.times("k"), 1, "{answer:?}");
    let Execution::Executed { receipt, .. } = answer else { panic!("not executed: {answer:?}") };
    assert!(receipt.recorded);
    answer
}

async fn a_lost_reply_of_begin_is_found_out(place: Arc<Place>) {
    for fault in [Fault::LoseReply, Fault::LoseRequest] {
        let store = faulty(&place).await;
        let faults = store.faults().clone();
        faults.next(Verb::Open, fault);
        let executor = executor(store, LEASE);
        let answer = run_once(&executor, &Seen::default()).await;
        assert_eq!(answer.attempt(), Some(1));
        assert_eq!(faults.happened(Verb::Open), 1, "{fault:?} did not happen");
        forget(&place).await;
    }
}

on_stores!(a_lost_reply_of_begin_is_found_out: memory sqlite postgres mysql redis redis_cluster);

async fn a_lost_reply_of_a_takeover_is_found_out(place: Arc<Place>) {
    for fault in [Fault::LoseReply, Fault::LoseRequest] {
        let store = faulty(&place).await;
        let lapsed = Duration::from_millis(100);
        let opened = store.sound().open(&orphan("k", lapsed)).await.expect("opens");
        assert!(matches!(opened, Opened::Inserted { .. }));
        tokio::time::sleep(lapsed * 2).await;
        let faults = store.faults().clone();
        faults.next(Verb::Swap, fault);
        let answer = run_once(&executor(store, LEASE), &Seen::default()).await;
        assert_eq!(answer.attempt(), Some(2));
        assert_eq!(faults.happened(Verb::Swap), 1, "{fault:?} did not happen");
        forget(&place).await;
    }
}

on_stores!(a_lost_reply_of_a_takeover_is_found_out: memory sqlite postgres mysql redis redis_cluster);

async fn a_lost_reply_of_complete_is_found_out(place: Arc<Place>) {
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::Refuse] {
        let store = faulty(&place).await;
        let faults = store.faults().clone();
        faults.next(Verb::Settle, fault);
        let _ = run_once(&executor(store, LEASE), &Seen::default()).await;
        assert_eq!(faults.happened(Verb::Settle), 1, "{fault:?} did not happen");
        forget(&place).await;
    }
}

on_stores!(a_lost_reply_of_complete_is_found_out: memory sqlite postgres mysql redis redis_cluster);

/// Discards the record, so that the next round starts anew.
async fn forget(place: &Place) {
    use semel_core::store::{Change, Settlement, Swapped};
    let store = place.backend().open().await.expect("a store");
    let key = semel_proofs::scene::key("k");
    let record = store.peek(&key).await.expect("readable").expect("a record").record;
    let swapped = store.swap(&key, record.version(), &Change::Settle(Settlement::Removed)).await;
    assert!(matches!(swapped, Ok(Swapped::Done { .. })));
}
