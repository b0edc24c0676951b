//! Callers that disconnect.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use semel_core::Wait;
use semel_faults::harness::{EffectLog, command, executor};
use semel_faults::on_stores;
use semel_stores::PrivateStore;

const CALLS: usize = 500;
/// Much longer than the test: a stranded claim stays stranded for at least a sixth of it.
const LEASE: Duration = Duration::from_secs(600);

async fn a_caller_who_leaves_neither_doubles_nor_strands_the_work(private: Arc<PrivateStore>) {
    let executor = executor(private.backend().open().await.expect("a store"), LEASE);
    let (seen, left) = (EffectLog::default(), AtomicUsize::new(0));
    let id = |n: usize| format!("call-{n}");
    futures_util::stream::iter(0..CALLS)
        .for_each_concurrent(16, |n| {
            let (executor, seen, left) = (&executor, seen.clone(), &left);
            async move {
                let work = move |context: semel_core::Context| async move {
                    tokio::time::sleep(Duration::from_micros(fastrand::u64(..2_000))).await;
                    seen.note(&context);
                    Ok::<_, String>(fastrand::u64(..))
                };
                // On a slow machine, the work and the callers' timeouts end together, and only
                // callers that leave at once leave at all.
                let most = if n % 4 == 0 { 1 } else { 4_000 };
                let patience = Duration::from_micros(fastrand::u64(..most));
                let call = executor.run(command(&id(n)), work);
                if tokio::time::timeout(patience, call).await.is_err() {
                    left.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
        .await;
    let left = left.load(Ordering::SeqCst);
    assert!(left > CALLS / 10, "only {left} of {CALLS} callers left");

    // Every caller repeats its call, and none leaves.
    let stuck = AtomicUsize::new(0);
    futures_util::stream::iter(0..CALLS)
        .for_each_concurrent(64, |n| {
            let (executor, seen, stuck) = (&executor, seen.clone(), &stuck);
            async move {
                let work = move |context: semel_core::Context| async move {
                    seen.note(&context);
                    Ok::<_, String>(0_u64)
                };
                let again = command(&id(n)).wait(Wait::UpTo(LEASE / 6));
                let answer = executor.run(again, work).await.expect("an answer");
                stuck.fetch_add(usize::from(answer.in_progress()), Ordering::SeqCst);
            }
        })
        .await;
    assert_eq!(stuck.into_inner(), 0, "of {CALLS} keys were stranded; {left} callers left");
    let doubled = (0..CALLS).filter(|n| seen.times(&id(*n)) != 1).count();
    assert_eq!(doubled, 0, "of {CALLS} effects did not happen exactly once; {left} callers left");
}

on_stores!(a_caller_who_leaves_neither_doubles_nor_strands_the_work:
    memory sqlite postgres mysql redis redis_cluster);
