//! Keys that look alike.

use std::sync::Arc;
use std::time::Duration;

use semel_core::executor::LocalReplay;
use semel_core::{Command, Executor, Key, Policy};
use semel_faults::harness::{EffectLog, key};
use semel_faults::on_stores;
use semel_stores::PrivateStore;

/// Ids that some collation, Unicode normal form or hash tag treats as equal.
const ALIKE: [&str; 20] = [
    "order", "Order", "ORDER", "order ", " order", "é", "e\u{301}", "e", "É", "ss", "ß", "😀",
    "😃", "{}", "{order}", "order{}", "}{", "ａ", "a", "א",
];

async fn keys_that_differ_in_one_byte_never_meet(private: Arc<PrivateStore>) {
    let store = private.backend().open().await.expect("a store");
    // Without the local cache, because the store's comparison is tested.
    let executor: Executor<_> = Executor::builder(store)
        .policy(Policy { lease: Duration::from_secs(30), ..Policy::default() })
        .local_replay(LocalReplay::OFF)
        .build()
        .expect("a valid policy");
    let seen = EffectLog::default();
    let longest = "x".repeat(255);
    let mut keys: Vec<Key> = ALIKE.iter().map(|id| key(id)).chain([key(&longest)]).collect();
    keys.push(Key::command("acme", "prove", "order").expect("a key"));
    keys.push(Key::command("ACME", "PROVE", "order").expect("a key"));
    keys.push(Key::command("acme", "PROVE ", "order").expect("a key"));
    for round in 0..2 {
        for (n, key) in keys.iter().enumerate() {
            let seen = seen.clone();
            let work = move |context: semel_core::Context| async move {
                seen.note(&context);
                Ok::<_, String>(n)
            };
            let answer = executor.run(Command::new(key.clone()), work).await.expect("an answer");
            let shown = format!("{:?}/{:?}/{:?}", key.tenant(), key.scope(), key.id());
            assert_eq!(answer.value(), Some(&n), "{shown} got the record of another key");
            assert_eq!(answer.replayed(), round == 1, "{shown} did not get its own record");
        }
    }
}

on_stores!(keys_that_differ_in_one_byte_never_meet:
    memory sqlite postgres mysql redis redis_cluster);
