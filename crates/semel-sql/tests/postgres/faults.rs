//! Tests connections that die, servers that do not answer, cancelled callers and damaged rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::store::{
    Draft, ErrorKind, Filter, Inspect, Opened, Renewed, Renewer, Settled, Settlement, Store,
    TransactionalStore,
};
use semel_core::{Key, Outcome, Record, Recorded, State};
use semel_sql::postgres::{PgOptions, PgStore};
use semel_testkit::Fixture;
use tokio::time::timeout;

use crate::database::{Database, LONG, draft, failure, key, lease, success};
use crate::proxy::Proxy;

/// Ends every other session in the database.
pub(crate) async fn kill_all(database: &Database) {
    let mut connection = database.connection().await;
    sqlx::query(
        "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid()",
    )
    .execute(&mut connection)
    .await
    .expect("killed");
}

/// Claims and settles `id`, retrying after every failure, as an executor would.
async fn insist(store: &PgStore, id: &str) {
    let key = key(id);
    let draft = draft(&key);
    let claim = loop {
        match store.open(&draft).await {
            Ok(opened @ Opened::Inserted { .. }) => break lease(&draft, &opened),
            Ok(Opened::Existing { record, .. }) => {
                // After a lost reply, the attempt id shows that the claim is this caller's.
                assert_eq!(record.attempt_id, draft.attempt_id);
                break record.lease(key.digest());
            }
            Ok(Opened::Contended) => tokio::task::yield_now().await,
            Err(error) => assert_transient(error.kind()),
        }
    };
    loop {
        match store.settle(&claim, &success("done")).await {
            Ok(Settled::Done) => return,
            // After another lost reply the record is read, and that reply can be lost as well.
            Ok(Settled::Lost) => match store.peek(&key).await {
                Ok(peeked) => {
                    let record = peeked.expect("there").record;
                    assert_eq!((record.state, record.number), (State::Succeeded, 2));
                    return;
                }
                Err(error) => assert_transient(error.kind()),
            },
            Err(error) => assert_transient(error.kind()),
        }
    }
}

fn assert_transient(kind: ErrorKind) {
    assert!(matches!(kind, ErrorKind::Ambiguous | ErrorKind::Unavailable), "{kind:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_heal_under_load_and_every_claim_is_settled_once() {
    let database = Database::new().await;
    // With the default limits of a service, which determine how soon it recovers.
    let store = PgOptions::with(database.options.clone()).connect().await.expect("connected");
    let kills = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let (store, kills) = (store.clone(), Arc::clone(&kills));
            tokio::spawn(async move {
                let mut claims = 0;
                // The load continues until several kills have happened.
                while claims < 40 || kills.load(Ordering::SeqCst) < 3 {
                    insist(&store, &format!("{task}-{claims}")).await;
                    claims += 1;
                }
                claims
            })
        })
        .collect();
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        // Limited: otherwise the test would never end on a machine that connects too slowly.
        if kills.load(Ordering::SeqCst) < 40 {
            kill_all(&database).await;
            kills.fetch_add(1, Ordering::SeqCst);
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let mut claims = 0;
    for task in tasks {
        claims += task.await.expect("every claim settled");
    }
    let mut connection = database.connection().await;
    let settled: i64 = sqlx::query_scalar(
        "select count(*) from semel_record where state = 1 and number = 2 and attempt = 1",
    )
    .fetch_one(&mut connection)
    .await
    .expect("counted");
    assert_eq!(settled, claims);
}

#[tokio::test]
async fn an_idle_connection_that_died_does_not_fail_the_next_transaction_or_sweep() {
    let database = Database::new().await;
    let store = database.store().await;
    store.commit(store.begin().await.expect("begun")).await.expect("committed");
    kill_all(&database).await;
    let mut transaction = store.begin().await.expect("begun on a new connection");
    let opened = store.open_in(PgStore::connection(&mut transaction), &draft(&key("k"))).await;
    assert!(matches!(opened.expect("opened"), Opened::Inserted { .. }));
    store.rollback(transaction).await;
    assert!(store.sweep(10).await.is_err(), "its connection was killed");
    assert!(store.sweep(10).await.is_ok(), "and opened anew");
}

async fn behind_proxy(database: &Database) -> (PgStore, Proxy) {
    let (proxy, options) = Proxy::before(&database.options).await;
    let settings = PgOptions::with(options).connections(1).statement_timeout(LONG);
    (settings.connect().await.expect("connected"), proxy)
}

/// Stops all replies of the server, and pauses the clock so that every time limit passes at once
/// when there is nothing else to do.
fn stop_replies(proxy: &Proxy) {
    proxy.silence(true);
    tokio::time::pause();
}

/// Lets replies through again, and resumes the clock.
fn resume_replies(proxy: &Proxy) {
    tokio::time::resume();
    proxy.silence(false);
}

/// Returns the record that the server wrote while its replies were stopped, once it exists.
async fn record_of(store: &PgStore, key: &Key) -> Record {
    let found = async {
        loop {
            if let Some(peeked) = store.peek(key).await.expect("peeked") {
                return peeked.record;
            }
        }
    };
    timeout(LONG, found).await.expect("there")
}

#[tokio::test]
async fn a_silent_server_makes_steps_ambiguous_and_blocks_no_caller() {
    let database = Database::new().await;
    let (store, proxy) = behind_proxy(&database).await;
    let mut renewer = store.renewer().await.expect("renewer");
    let first = draft(&key("first"));
    let claim = lease(&first, &store.open(&first).await.expect("opened"));
    stop_replies(&proxy);
    let drafts: Vec<Draft> = (0..10).map(|at| draft(&key(&at.to_string()))).collect();
    let opens = futures_util::future::join_all(drafts.iter().map(|draft| store.open(draft)));
    let answers = timeout(LONG * 5, opens).await.expect("nobody hangs");
    let kinds: Vec<_> = answers.iter().map(|a| a.as_ref().expect_err("silent").kind()).collect();
    // The first was sent on the live connection; the others needed a connection that could not be
    // opened.
    assert_eq!(kinds[0], ErrorKind::Ambiguous);
    assert!(kinds[1..].iter().all(|kind| *kind == ErrorKind::Unavailable), "{kinds:?}");
    let renewed = renewer.renew(&[(claim, first.lease)]).await;
    assert_eq!(renewed.expect_err("silent").kind(), ErrorKind::Ambiguous);
    resume_replies(&proxy);
    // The ambiguous step took effect: the reader finds the attempt.
    assert_eq!(record_of(&store, &drafts[0].key).await.attempt_id, drafts[0].attempt_id);
    assert!(store.peek(&drafts[1].key).await.expect("peeked").is_none());
    let extended = async {
        // The renewal whose reply was lost may still be running.
        while renewer.renew(&[(claim, first.lease)]).await.expect("heals") != [Renewed::Extended] {}
    };
    timeout(LONG, extended).await.expect("heals");
}

#[tokio::test]
async fn a_commit_whose_reply_is_lost_is_ambiguous() {
    let database = Database::new().await;
    let (store, proxy) = behind_proxy(&database).await;
    let first = draft(&key("k"));
    let mut transaction = store.begin().await.expect("begun");
    let connection = PgStore::connection(&mut transaction);
    let opened = store.open_in(connection, &first).await.expect("opened");
    let settled = store.settle_in(connection, &lease(&first, &opened), &success("ok")).await;
    assert_eq!(settled.expect("settled"), Settled::Done);
    stop_replies(&proxy);
    let error = store.commit(transaction).await.expect_err("silent");
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    resume_replies(&proxy);
    assert_eq!(record_of(&store, &first.key).await.attempt_id, first.attempt_id);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let database = Database::new().await;
    let nowhere = database.options.clone().port(1);
    let error = PgOptions::with(nowhere).connect().await.expect_err("nobody listens there");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = PgStore::connect("not a url").await.expect_err("not a URL");
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let missing = database.options.clone().database("no_such_database");
    let error = PgOptions::with(missing).connect().await.expect_err("no such database");
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
}

#[tokio::test]
async fn a_cancelled_caller_does_not_affect_the_steps_of_others() {
    let database = Database::new().await;
    let (store, proxy) = behind_proxy(&database).await;
    assert!(store.peek(&key("warm")).await.expect("peeked").is_none());
    proxy.silence(true);
    let leaver = draft(&key("leaver"));
    let leaving = timeout(Duration::from_millis(50), store.open(&leaver)).await;
    assert!(leaving.is_err(), "it left in the middle of its statement");
    proxy.silence(false);
    // The connection was closed with the caller; the answer that still arrives is not read.
    let others: Vec<Draft> = (0..20).map(|at| draft(&key(&at.to_string()))).collect();
    let opens = futures_util::future::join_all(others.iter().map(|draft| store.open(draft)));
    for opened in timeout(LONG, opens).await.expect("nobody hangs") {
        assert!(matches!(opened.expect("opened"), Opened::Inserted { .. }));
    }
}

#[tokio::test]
async fn the_others_of_a_batch_are_served_when_a_caller_is_cancelled() {
    let database = Database::new().await;
    let store = Arc::new(database.settings().connections(1).connect().await.expect("connected"));
    for round in 0..20 {
        let tasks: Vec<_> = (0..20)
            .map(|at| {
                let store = Arc::clone(&store);
                let draft = draft(&key(&format!("{round}-{at}")));
                tokio::spawn(async move { store.open(&draft).await })
            })
            .collect();
        tokio::task::yield_now().await;
        for task in tasks.iter().step_by(3) {
            task.abort();
        }
        for (at, task) in tasks.into_iter().enumerate() {
            let joined = timeout(LONG, task).await.expect("nobody hangs");
            match joined {
                Ok(opened) => assert!(matches!(opened.expect("opened"), Opened::Inserted { .. })),
                Err(error) => assert!(error.is_cancelled() && at % 3 == 0),
            }
        }
    }
}

#[tokio::test]
async fn a_damaged_row_is_corrupt_with_its_column_and_does_not_affect_others() {
    let database = Database::new().await;
    let store = database.settings().connections(1).connect().await.expect("connected");
    for (column, value) in [
        ("state", "17"),
        ("on_crash", "9"),
        ("fence", "-1"),
        ("attempt_id", "'short'"),
        ("fingerprint", "'short'"),
        ("lease_until", "null"),
    ] {
        let bad = draft(&key(&format!("secret-{column}")));
        assert!(matches!(store.open(&bad).await.expect("opened"), Opened::Inserted { .. }));
        let id = bad.key.id();
        database
            .run(&format!("update semel_record set {column} = {value} where id = '{id}'"))
            .await;
        let error = store.open(&bad).await.expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{column}: {error}");
        assert!(error.to_string().contains(column), "{error}");
        assert!(!error.to_string().contains("secret-"), "{error}");
        let listed = store.list(&Filter::default(), None, 10).await.expect("listed");
        let [unreadable] = &listed.unreadable[..] else { panic!("{column}: {listed:?}") };
        assert!(unreadable.why.contains(column), "{column}: {unreadable:?}");
        assert!(!unreadable.why.contains("secret-"), "{unreadable:?}");
        let mut drafts: Vec<_> = (0..5).map(|at| draft(&key(&format!("{column}{at}")))).collect();
        drafts.insert(2, draft(&bad.key));
        let opens = futures_util::future::join_all(drafts.iter().map(|draft| store.open(draft)));
        for (at, opened) in opens.await.into_iter().enumerate() {
            assert_eq!(opened.is_err(), at == 2, "{column} {at}");
        }
        database.run("truncate semel_record").await;
    }
}

#[tokio::test]
async fn text_that_postgresql_cannot_hold_is_refused_before_it_is_sent() {
    let database = Database::new().await;
    let store = database.store().await;
    let first = draft(&key("k"));
    let claim = lease(&first, &store.open(&first).await.expect("opened"));
    let outcome = Recorded::Whole(Outcome::new("text/\0plain", "body"));
    let settlement = Settlement::Succeeded { outcome, keep: Duration::from_secs(1) };
    let error = store.settle(&claim, &settlement).await.expect_err("a NUL");
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let odd = Draft { owner: Arc::from("a\0b"), ..draft(&key("odd")) };
    assert_eq!(store.open(&odd).await.expect_err("a NUL").kind(), ErrorKind::Misconfigured);
    let filter = Filter { tenant: Some("a\0b".into()), ..Filter::default() };
    assert!(store.list(&filter, None, 10).await.expect("listed").entries.is_empty());
    assert_eq!(store.settle(&claim, &failure("a\0b")).await.expect("settled"), Settled::Done);
}
