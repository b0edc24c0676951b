//! Renewal while the application's runtime is blocked.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use semel_faults::harness::{ControlledWork, command, executor};
use semel_faults::on_stores;
use semel_stores::PrivateStore;
use tokio::runtime::Builder;

/// A renewal may be late by two thirds of the lease, six seconds; only a hanging process is later.
const LEASE: Duration = Duration::from_secs(9);
const WORKERS: usize = 2;

async fn a_blocked_runtime_keeps_its_claim(private: Arc<PrivateStore>) {
    let blocked = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .expect("a runtime to block");
    let backend = private.backend().clone();
    let opened = blocked.spawn(async move { backend.open().await.expect("a store") });
    let holder = executor(opened.await.expect("no panic"), LEASE);
    let rival = executor(private.backend().open().await.expect("a store"), LEASE);

    let (slow, begun, end) = ControlledWork::new();
    let held = blocked.spawn(async move { holder.run(command("k"), |_| slow.work()).await });
    begun.await.expect("the holder works");
    let all = Arc::new(Barrier::new(WORKERS + 1));
    for _ in 0..WORKERS {
        let all = Arc::clone(&all);
        blocked.spawn(async move {
            all.wait();
            std::thread::sleep(LEASE * 2);
            all.wait();
        });
    }
    let barrier = Arc::clone(&all);
    tokio::task::spawn_blocking(move || barrier.wait()).await.expect("every worker is blocked");

    let (since, mut asked) = (Instant::now(), 0);
    while since.elapsed() < LEASE * 2 - LEASE / 10 {
        let answer = rival.run(command("k"), |_| async { Ok::<_, String>("rival".to_owned()) });
        let answer = answer.await.expect("an answer");
        let after = since.elapsed();
        assert!(
            answer.in_progress(),
            "taken over although the holder lives, {after:?} into a blocked runtime"
        );
        asked += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(asked > 5, "the rival asked only {asked} times");
    tokio::task::spawn_blocking(move || all.wait()).await.expect("no worker is blocked");
    end.send("the holder's".to_owned()).expect("the holder still works");
    let answer = held.await.expect("no panic").expect("an answer");
    assert!(!answer.replayed() && answer.value().map(String::as_str) == Some("the holder's"));
    blocked.shutdown_background();
}

on_stores!(a_blocked_runtime_keeps_its_claim: memory sqlite postgres mysql redis redis_cluster);
