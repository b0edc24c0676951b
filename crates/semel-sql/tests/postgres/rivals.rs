//! Nobody waits behind anybody's open transaction: neither alone nor in a batch.

use std::time::Duration;

use semel::store::{
    Change, Ending, Opened, Renewed, Renewer, Settled, Store, Swapped, Swept, TransactionalStore,
};
use semel::{Key, OnCrash, State};
use semel_sql::postgres::{PgStore, PgTransaction};
use semel_testkit::Fixture;
use tokio::time::timeout;

use crate::database::{Database, draft, failure, key, lease, success};

/// Far below what anybody would wait for a lock, far above what a statement takes.
const AT_ONCE: Duration = Duration::from_secs(2);

async fn at_once<T>(step: impl Future<Output = semel::store::Result<T>>) -> T {
    timeout(AT_ONCE, step).await.expect("waits for nobody").expect("no error")
}

/// A transaction that claimed `key` and is still open.
async fn holding(store: &PgStore, key: &Key) -> PgTransaction {
    let mut transaction = store.begin().await.expect("begun");
    let opened = store.open_in(PgStore::connection(&mut transaction), &draft(key)).await;
    assert!(matches!(opened.expect("opened"), Opened::Inserted { .. }));
    transaction
}

#[tokio::test]
async fn a_rival_of_an_open_transaction_is_told_at_once() {
    let database = Database::new().await;
    let store = database.store().await;
    let key = key("held");
    let transaction = holding(&store, &key).await;
    assert!(matches!(at_once(store.open(&draft(&key))).await, Opened::Contended));
    let mut rival = store.begin().await.expect("begun");
    let opened = at_once(store.open_in(PgStore::connection(&mut rival), &draft(&key))).await;
    assert!(matches!(opened, Opened::Contended));
    // The rival's transaction is not spoilt by that.
    let other = draft(&crate::database::key("free"));
    let opened = at_once(store.open_in(PgStore::connection(&mut rival), &other)).await;
    assert!(matches!(opened, Opened::Inserted { .. }));
    at_once(store.commit(rival)).await;
    store.rollback(transaction).await;
    assert!(matches!(at_once(store.open(&draft(&key))).await, Opened::Inserted { .. }));
}

#[tokio::test]
async fn a_batch_is_not_stalled_by_a_key_that_a_transaction_holds() {
    let database = Database::new().await;
    let store = database.settings().lanes(1).connect().await.expect("connected");
    let held = key("held");
    let transaction = holding(&store, &held).await;
    let mut drafts: Vec<_> = (0..20).map(|at| draft(&key(&format!("free{at}")))).collect();
    drafts.insert(10, draft(&held));
    let opens = futures_util::future::join_all(drafts.iter().map(|draft| store.open(draft)));
    let opened = timeout(AT_ONCE, opens).await.expect("waits for nobody");
    for (at, answer) in opened.into_iter().enumerate() {
        let answer = answer.expect("no error");
        assert_eq!(matches!(answer, Opened::Contended), at == 10, "{at}: {answer:?}");
    }
    store.rollback(transaction).await;
}

#[tokio::test]
async fn a_takeover_in_an_open_transaction_keeps_nobody_waiting() {
    let database = Database::new().await;
    let store = database.settings().lanes(1).connect().await.expect("connected");
    let key = key("held");
    let first = draft(&key);
    let old = lease(&first, &store.open(&first).await.expect("opened"));
    let others: Vec<_> =
        (0..10).map(|at| draft(&crate::database::key(&format!("n{at}")))).collect();
    let mut leases = vec![];
    for draft in &others {
        leases.push(lease(draft, &store.open(draft).await.expect("opened")));
    }
    database.advance(Duration::from_secs(60)).await;
    let judged = store.peek(&key).await.expect("peeked").expect("there").record.version();
    let mut transaction = store.begin().await.expect("begun");
    let connection = PgStore::connection(&mut transaction);
    let change = Change::Regrant(draft(&key));
    let swapped = store.swap_in(connection, &key, judged, &change).await.expect("swapped");
    assert!(matches!(swapped, Swapped::Done { .. }));

    // A second takeover loses, a reader reads, a renewal of the lapsed lease is left open, the
    // sweeper passes by.
    assert_eq!(at_once(store.swap(&key, judged, &change)).await, Swapped::Lost);
    assert!(matches!(at_once(store.open(&draft(&key))).await, Opened::Existing { .. }));
    assert!(at_once(store.peek(&key)).await.is_some());
    let mut renewer = store.renewer().await.expect("renewer");
    let asked: Vec<_> =
        [old].iter().chain(&leases).map(|lease| (*lease, Duration::from_secs(30))).collect();
    let renewed = at_once(renewer.renew(&asked)).await;
    assert_eq!(renewed[0], Renewed::Unknown);
    assert!(renewed[1..].iter().all(|renewed| *renewed == Renewed::Extended));
    assert_eq!(at_once(store.sweep(100)).await, Swept::default());

    // The old holder's settling, in a batch with strangers: they are settled, it is told to come
    // again. (The first of them has the idle lane to itself.)
    let ending = success("done");
    let mut all = leases.clone();
    all.insert(5, old);
    let settles = all.iter().map(|lease| store.settle(lease, &ending));
    let settled =
        timeout(AT_ONCE, futures_util::future::join_all(settles)).await.expect("waits for nobody");
    for (at, answer) in settled.into_iter().enumerate() {
        match at {
            5 => assert!(answer.expect_err("held").to_string().contains("another transaction")),
            _ => assert_eq!(answer.expect("no error"), Settled::Done),
        }
    }
    at_once(store.commit(transaction)).await;
    assert_eq!(at_once(store.settle(&old, &success("late"))).await, Settled::Lost);
}

#[tokio::test]
async fn a_completion_in_an_open_transaction_keeps_no_opener_waiting() {
    let database = Database::new().await;
    let store = database.settings().lanes(1).connect().await.expect("connected");
    for ending in [success("done"), Ending::Removed] {
        let key = key(if ending == Ending::Removed { "removed" } else { "done" });
        let first = draft(&key);
        let claim = lease(&first, &store.open(&first).await.expect("opened"));
        let mut transaction = store.begin().await.expect("begun");
        let connection = PgStore::connection(&mut transaction);
        let settled = store.settle_in(connection, &claim, &ending).await.expect("settled");
        assert_eq!(settled, Settled::Done);
        // Uncommitted, so everybody still sees the claim, and sees it without waiting.
        let opened = at_once(store.open(&draft(&key))).await;
        let Opened::Existing { record, .. } = opened else { panic!("{opened:?}") };
        assert_eq!(record.state, State::Running);
        let takeover = Change::Regrant(draft(&key));
        let swapped = at_once(store.swap(&key, record.version(), &takeover)).await;
        assert_eq!(swapped, Swapped::Lost);
        // Its own heartbeat is not told that the lease is lost while it is being settled.
        let mut renewer = store.renewer().await.expect("renewer");
        let renewed = at_once(renewer.renew(&[(claim, Duration::from_secs(30))])).await;
        assert_eq!(renewed, [Renewed::Unknown]);
        at_once(store.commit(transaction)).await;
    }
}

#[tokio::test]
async fn one_digest_asked_for_twice_at_a_time_is_granted_once() {
    let database = Database::new().await;
    let store = database.settings().lanes(1).connect().await.expect("connected");
    let key = key("twice");
    let drafts: Vec<_> = (0..30).map(|_| draft(&key)).collect();
    let opens = futures_util::future::join_all(drafts.iter().map(|draft| store.open(draft)));
    let opened = timeout(AT_ONCE * 5, opens).await.expect("nobody hangs");
    let mut granted = 0;
    for answer in opened {
        match answer.expect("no error") {
            Opened::Inserted { .. } => granted += 1,
            Opened::Existing { record, .. } => assert_eq!(record.number, 1),
            Opened::Contended => {}
        }
    }
    assert_eq!(granted, 1);
}

#[tokio::test]
async fn a_claim_that_is_renewed_while_the_sweeper_looks_is_not_swept() {
    let database = Database::new().await;
    let store = database.store().await;
    let key = key("renewed");
    let held = semel::store::Draft { on_crash: OnCrash::Hold, ..draft(&key) };
    let claim = lease(&held, &store.open(&held).await.expect("opened"));
    database.advance(Duration::from_secs(60)).await;
    let mut renewer = store.renewer().await.expect("renewer");
    assert_eq!(renewer.renew(&[(claim, held.lease)]).await.expect("renewed"), [Renewed::Extended]);
    assert_eq!(store.sweep(10).await.expect("swept"), Swept::default());
    assert_eq!(store.settle(&claim, &failure("no")).await.expect("settled"), Settled::Done);
}
