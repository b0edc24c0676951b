//! Calls whose reply is lost: they may have taken effect, and the executor can find that out.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{AnyStore, Change, Opened, Settlement, Store as _, Swapped};
use semel_core::{Execution, Executor, State};
use semel_faults::harness::{EffectLog, command, executor, key, orphan};
use semel_faults::on_stores;
use semel_stores::PrivateStore;
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};

const LEASE: Duration = Duration::from_secs(30);

async fn faulty(private: &PrivateStore) -> FaultyStore<AnyStore> {
    FaultyStore::new(private.backend().open().await.expect("a store"))
}

async fn run_once(executor: &Executor<FaultyStore<AnyStore>>, seen: &EffectLog) -> Execution<u32> {
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

async fn a_lost_reply_of_begin_is_found_out(private: Arc<PrivateStore>) {
    for fault in [Fault::LoseReply, Fault::LoseRequest] {
        let store = faulty(&private).await;
        let faults = store.faults().clone();
        faults.next(StoreCall::Open, fault);
        let executor = executor(store, LEASE);
        let answer = run_once(&executor, &EffectLog::default()).await;
        assert_eq!(answer.attempt(), Some(1));
        assert_eq!(faults.happened(StoreCall::Open), 1, "{fault:?} did not happen");
        forget(&private).await;
    }
}

on_stores!(a_lost_reply_of_begin_is_found_out: memory sqlite postgres mysql redis redis_cluster);

async fn a_lost_reply_of_a_takeover_is_found_out(private: Arc<PrivateStore>) {
    for fault in [Fault::LoseReply, Fault::LoseRequest] {
        let store = faulty(&private).await;
        let lapsed = Duration::from_millis(100);
        let opened = store.sound().open(&orphan("k", lapsed)).await.expect("opens");
        assert!(matches!(opened, Opened::Inserted { .. }));
        tokio::time::sleep(lapsed * 2).await;
        let faults = store.faults().clone();
        faults.next(StoreCall::Swap, fault);
        let answer = run_once(&executor(store, LEASE), &EffectLog::default()).await;
        assert_eq!(answer.attempt(), Some(2));
        assert_eq!(faults.happened(StoreCall::Swap), 1, "{fault:?} did not happen");
        forget(&private).await;
    }
}

on_stores!(a_lost_reply_of_a_takeover_is_found_out: memory sqlite postgres mysql redis redis_cluster);

async fn a_lost_reply_of_complete_is_found_out(private: Arc<PrivateStore>) {
    for fault in [Fault::LoseReply, Fault::LoseRequest, Fault::Refuse] {
        let store = faulty(&private).await;
        let faults = store.faults().clone();
        faults.next(StoreCall::Settle, fault);
        let _ = run_once(&executor(store, LEASE), &EffectLog::default()).await;
        assert_eq!(faults.happened(StoreCall::Settle), 1, "{fault:?} did not happen");
        forget(&private).await;
    }
}

on_stores!(a_lost_reply_of_complete_is_found_out: memory sqlite postgres mysql redis redis_cluster);

/// Discards the record of the success, so that the next round starts anew.
async fn forget(private: &PrivateStore) {
    let store = private.backend().open().await.expect("a store");
    let key = key("k");
    let record = store.peek(&key).await.expect("readable").expect("a record").record;
    assert_eq!(record.state, State::Succeeded);
    let swapped = store.swap(&key, record.version(), &Change::Settle(Settlement::Removed)).await;
    assert!(matches!(swapped, Ok(Swapped::Done { .. })));
}
