//! Tests that no step waits for an open transaction: neither alone nor in a batch.

use std::cell::Cell;
use std::time::Duration;

use semel_core::store::{
    Change, ErrorKind, Opened, Renewed, Renewer, Settled, Settlement, Store, Swapped, Swept,
    TransactionalStore,
};
use semel_core::{Key, Lease, OnCrash, State};
use semel_sql::postgres::{PgOptions, PgStore, PgTransaction};
use semel_testkit::Fixture;
use sqlx::{Connection, PgConnection};
use tokio::time::timeout;

use crate::database::{Database, LONG, draft, failure, granted, key, lease, success};
use crate::proxy::Proxy;

/// Runs a step while another transaction stays open: a step that waited for it would fail or time
/// out.
async fn at_once<T>(step: impl Future<Output = semel_core::store::Result<T>>) -> T {
    timeout(LONG, step).await.expect("waits for nobody").expect("no error")
}

/// Returns an open transaction that claimed `key`.
async fn holding(store: &PgStore, key: &Key) -> PgTransaction {
    let mut transaction = store.begin().await.expect("begun");
    let opened = store.open_in(PgStore::connection(&mut transaction), &draft(key)).await;
    assert!(matches!(opened.expect("opened"), Opened::Inserted { .. }));
    transaction
}

#[tokio::test]
async fn a_claim_held_by_an_open_transaction_is_contended_at_once() {
    let database = Database::new().await;
    let store = database.store().await;
    let key = key("held");
    let transaction = holding(&store, &key).await;
    assert!(matches!(at_once(store.open(&draft(&key))).await, Opened::Contended));
    let mut rival = store.begin().await.expect("begun");
    let opened = at_once(store.open_in(PgStore::connection(&mut rival), &draft(&key))).await;
    assert!(matches!(opened, Opened::Contended));
    // The other transaction stays usable.
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
    let store = database.settings().connections(1).connect().await.expect("connected");
    let held = key("held");
    let transaction = holding(&store, &held).await;
    let mut drafts: Vec<_> = (0..20).map(|at| draft(&key(&format!("free{at}")))).collect();
    drafts.insert(10, draft(&held));
    let opens = futures_util::future::join_all(drafts.iter().map(|draft| store.open(draft)));
    let opened = timeout(LONG, opens).await.expect("waits for nobody");
    for (at, answer) in opened.into_iter().enumerate() {
        let answer = answer.expect("no error");
        assert_eq!(matches!(answer, Opened::Contended), at == 10, "{at}: {answer:?}");
    }
    store.rollback(transaction).await;
}

#[tokio::test]
async fn a_takeover_in_an_open_transaction_blocks_no_other_step() {
    let database = Database::new().await;
    let store = database.settings().connections(1).connect().await.expect("connected");
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

    // A second takeover loses, a reader reads, a renewal of the lapsed lease is undecided, and the
    // sweeper skips the record.
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

    // The old holder settles in a batch with others: the others are settled, and its own step is
    // answered as busy. (The first of them has the idle connection to itself.)
    let settlement = success("done");
    let mut all = leases.clone();
    all.insert(5, old);
    let settles = all.iter().map(|lease| store.settle(lease, &settlement));
    let settled =
        timeout(LONG, futures_util::future::join_all(settles)).await.expect("waits for nobody");
    for (at, answer) in settled.into_iter().enumerate() {
        match at {
            5 => assert!(answer.expect_err("held").to_string().contains("another transaction")),
            _ => assert_eq!(answer.expect("no error"), Settled::Done),
        }
    }
    at_once(store.commit(transaction)).await;
    assert_eq!(at_once(store.settle(&old, &success("late"))).await, Settled::Lost);
}

/// Returns a claim on `key` whose lapsed lease an open transaction has taken over, and that
/// transaction.
async fn taken_over(database: &Database, store: &PgStore, key: &Key) -> (Lease, PgTransaction) {
    let first = draft(key);
    let old = lease(&first, &store.open(&first).await.expect("opened"));
    database.advance(Duration::from_secs(60)).await;
    let judged = store.peek(key).await.expect("peeked").expect("there").record.version();
    let mut takeover = store.begin().await.expect("begun");
    let change = Change::Regrant(draft(key));
    let swapped = store.swap_in(PgStore::connection(&mut takeover), key, judged, &change).await;
    assert!(matches!(swapped.expect("swapped"), Swapped::Done { .. }));
    (old, takeover)
}

/// Returns how often other steps were served while a settlement was answered that its row is
/// locked.
async fn peeks_beside(store: &PgStore, old: &Lease, settlement: &Settlement, key: &Key) -> u32 {
    let settling = store.settle(old, settlement);
    let mut peeks = 0;
    let peeking = async {
        loop {
            assert!(at_once(store.peek(key)).await.is_some());
            peeks += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let error = tokio::select! {
        settled = settling => settled.expect_err("held"),
        () = peeking => unreachable!("it peeks for ever"),
    };
    assert!(error.to_string().contains("another transaction"), "{error}");
    peeks
}

#[tokio::test]
async fn a_settlement_that_meets_a_locked_row_keeps_no_connection() {
    let database = Database::new().await;
    let store = database.settings().connections(1).connect().await.expect("connected");
    for settlement in [success("late"), Settlement::Removed] {
        let id = if settlement == Settlement::Removed { "removed" } else { "done" };
        let (old, takeover) = taken_over(&database, &store, &key(id)).await;
        // A connection that waited for the lock timeout would let three or four steps through,
        // never more. On a busy machine there may be few as well: then the next settlement is
        // observed.
        let many = async { while peeks_beside(&store, &old, &settlement, &key(id)).await < 8 {} };
        timeout(LONG, many).await.expect("a settlement that waits keeps no connection");
        store.rollback(takeover).await;
        assert_eq!(at_once(store.settle(&old, &settlement)).await, Settled::Done);
        assert_eq!(at_once(store.settle(&old, &settlement)).await, Settled::Lost);
    }
}

#[tokio::test]
async fn a_settlement_in_a_transaction_waits_for_no_other_transaction() {
    let database = Database::new().await;
    let store = database.store().await;
    for settlement in [success("late"), Settlement::Removed] {
        let id = if settlement == Settlement::Removed { "removed" } else { "done" };
        let (old, takeover) = taken_over(&database, &store, &key(id)).await;
        let mut own = store.begin().await.expect("begun");
        let connection = PgStore::connection(&mut own);
        let settled = timeout(LONG, store.settle_in(connection, &old, &settlement)).await;
        let error = settled
            .expect("waits for nobody")
            .expect_err("it is not decided yet which transaction wins");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("another transaction"), "{error}");
        // The transaction stays usable, and the answer follows the end of the takeover.
        at_once(store.commit(takeover)).await;
        let settled = at_once(store.settle_in(connection, &old, &settlement)).await;
        assert_eq!(settled, Settled::Lost);
        store.rollback(own).await;
    }
}

/// Runs a settlement that meets a renewal, which ends once the settlement was refused and tries
/// again. Returns `None` if the settlement was still not done.
async fn beside_a_renewal(
    store: &PgStore,
    own: &mut PgTransaction,
    claim: &Lease,
    (renewing, proxy): (&mut PgConnection, &Proxy),
) -> Option<Settled> {
    // Writes the row as the renewer does, only slower.
    let mut renewal = renewing.begin().await.expect("begun");
    let renew = "update semel_record set number = number + 1 where id = 'renewed'";
    sqlx::query(renew).execute(&mut *renewal).await.expect("renewed");
    proxy.trips();
    let over = Cell::new(false);
    let settling = async {
        let settled = store.settle_in(PgStore::connection(own), claim, &success("done")).await;
        over.set(true);
        settled
    };
    let ended = async {
        let mut tries = 0;
        while tries < 2 && !over.get() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tries += proxy.trips();
        }
        renewal.commit().await.expect("committed");
    };
    match tokio::join!(settling, ended).0 {
        Ok(settled) => Some(settled),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            None
        }
    }
}

#[tokio::test]
async fn a_settlement_in_a_transaction_outlasts_a_renewal() {
    let database = Database::new().await;
    let (proxy, options) = Proxy::before(&database.options).await;
    let store =
        PgOptions::with(options).statement_timeout(LONG).connect().await.expect("connected");
    let [warm, first] = ["warm", "renewed"].map(|id| draft(&key(id)));
    let warm = lease(&warm, &store.open(&warm).await.expect("opened"));
    let claim = lease(&first, &store.open(&first).await.expect("opened"));
    let mut own = store.begin().await.expect("begun");
    // Prepares the statement: from here on every trip is an attempt.
    let connection = PgStore::connection(&mut own);
    assert_eq!(at_once(store.settle_in(connection, &warm, &success("1"))).await, Settled::Done);
    let mut renewing = database.connection().await;
    // The settlement retries for a quarter of a second, which a busy machine may spend elsewhere:
    // then it meets the next renewal. Without retries it would fail at every renewal.
    let mut met = Vec::new();
    while met.len() < 10 && !met.contains(&Some(Settled::Done)) {
        met.push(beside_a_renewal(&store, &mut own, &claim, (&mut renewing, &proxy)).await);
    }
    assert_eq!(met.last(), Some(&Some(Settled::Done)), "{met:?}");
    at_once(store.commit(own)).await;
}

/// Makes an insert of `id` wait, once it has begun, until the advisory lock 42 is free; 43 is held
/// while it waits.
const SLOW_INSERT: &str = "
create function slow() returns trigger language plpgsql as $$ begin
    if new.id = 'slow' then
        perform pg_advisory_xact_lock(43);
        while not pg_try_advisory_xact_lock(42) loop perform pg_sleep(0.002); end loop;
    end if;
    return new;
end $$;
create trigger slow before insert on semel_record for each row execute function slow()";

#[tokio::test]
async fn a_fence_is_above_one_that_came_and_went_while_its_batch_ran() {
    let database = Database::new().await;
    database.run(SLOW_INSERT).await;
    let mut gate = database.connection().await;
    sqlx::query("select pg_advisory_lock(42)").execute(&mut gate).await.expect("shut");
    let store = database.settings().connections(1).connect().await.expect("connected");
    // The first has the idle connection to itself; the other two share a statement, in this order.
    let drafts = ["alone", "slow", "next"].map(|id| draft(&key(id)));
    let opens = futures_util::future::join_all(drafts.iter().map(|draft| store.open(draft)));
    let meanwhile = async {
        let waits = "select exists (select from pg_locks l join pg_database d on d.oid = l.database
            where d.datname = current_database() and l.locktype = 'advisory' and l.objid = 43)";
        while !sqlx::query_scalar::<_, bool>(waits).fetch_one(&mut gate).await.expect("asked") {}
        let rival = database.store().await;
        let draft = draft(&drafts[2].key);
        let claim = lease(&draft, &rival.open(&draft).await.expect("opened"));
        assert_eq!(at_once(rival.settle(&claim, &Settlement::Removed)).await, Settled::Done);
        sqlx::query("select pg_advisory_unlock(42)").execute(&mut gate).await.expect("opened");
        claim.fence
    };
    let (opened, before) = tokio::join!(opens, meanwhile);
    let last = opened.into_iter().next_back().expect("three").expect("no error");
    assert!(granted(&last) > before, "{last:?} after {before:?}");
    let record = store.peek(&drafts[2].key).await.expect("peeked").expect("there").record;
    assert_eq!(record.created_at.as_micros(), granted(&last).as_i64());
}

#[tokio::test]
async fn a_key_with_a_record_is_opened_without_its_lock() {
    let database = Database::new().await;
    let store = database.settings().connections(1).connect().await.expect("connected");
    let drafts: Vec<_> = (0..10).map(|at| draft(&key(&at.to_string()))).collect();
    for draft in &drafts {
        let opened = at_once(store.open(draft)).await;
        assert!(matches!(opened, Opened::Inserted { .. }));
    }
    // The last row of a batch waits, so that its locks can be counted.
    database.run(SLOW_INSERT).await;
    let mut gate = database.connection().await;
    sqlx::query("select pg_advisory_lock(42)").execute(&mut gate).await.expect("shut");
    let slow = [draft(&key("slow"))];
    let opens = drafts.iter().chain(&slow).map(|draft| store.open(draft));
    let counted = async {
        // Read in one query: in two, the trigger's lock could be in the second only.
        let count = "with seen as materialized (select l.* from pg_locks l
                join pg_database d on d.oid = l.database
                where d.datname = current_database() and l.locktype = 'advisory'
                    and (l.classid, l.objid) <> (0::oid, 42::oid))
            select count(*) from seen
            where pid in (select pid from seen where (classid, objid) = (0::oid, 43::oid))";
        let locks = loop {
            match sqlx::query_scalar::<_, i64>(count).fetch_one(&mut gate).await.expect("asked") {
                0 => {}
                locks => break locks,
            }
        };
        sqlx::query("select pg_advisory_unlock(42)").execute(&mut gate).await.expect("opened");
        locks
    };
    let (_, locks) = tokio::join!(futures_util::future::join_all(opens), counted);
    assert_eq!(locks, 2, "the new key's and the trigger's own");
}

#[tokio::test]
async fn a_completion_in_an_open_transaction_keeps_no_opener_waiting() {
    let database = Database::new().await;
    let store = database.settings().connections(1).connect().await.expect("connected");
    for settlement in [success("done"), Settlement::Removed] {
        let key = key(if settlement == Settlement::Removed { "removed" } else { "done" });
        let first = draft(&key);
        let claim = lease(&first, &store.open(&first).await.expect("opened"));
        let mut transaction = store.begin().await.expect("begun");
        let connection = PgStore::connection(&mut transaction);
        let settled = store.settle_in(connection, &claim, &settlement).await.expect("settled");
        assert_eq!(settled, Settled::Done);
        // Uncommitted, so every session still sees the claim, without waiting.
        let opened = at_once(store.open(&draft(&key))).await;
        let Opened::Existing { record, .. } = opened else { panic!("{opened:?}") };
        assert_eq!(record.state, State::Running);
        let takeover = Change::Regrant(draft(&key));
        let swapped = at_once(store.swap(&key, record.version(), &takeover)).await;
        assert_eq!(swapped, Swapped::Lost);
        // Its own heartbeat does not get "lost" while the claim is being settled.
        let mut renewer = store.renewer().await.expect("renewer");
        let renewed = at_once(renewer.renew(&[(claim, Duration::from_secs(30))])).await;
        assert_eq!(renewed, [Renewed::Unknown]);
        at_once(store.commit(transaction)).await;
    }
}

#[tokio::test]
async fn one_digest_asked_for_twice_at_a_time_is_granted_once() {
    let database = Database::new().await;
    let store = database.settings().connections(1).connect().await.expect("connected");
    let key = key("twice");
    let drafts: Vec<_> = (0..30).map(|_| draft(&key)).collect();
    let opens = futures_util::future::join_all(drafts.iter().map(|draft| store.open(draft)));
    let opened = timeout(LONG, opens).await.expect("nobody hangs");
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
    let held = semel_core::store::Draft { on_crash: OnCrash::Hold, ..draft(&key) };
    let claim = lease(&held, &store.open(&held).await.expect("opened"));
    database.advance(Duration::from_secs(60)).await;
    let mut renewer = store.renewer().await.expect("renewer");
    assert_eq!(renewer.renew(&[(claim, held.lease)]).await.expect("renewed"), [Renewed::Extended]);
    assert_eq!(store.sweep(10).await.expect("swept"), Swept::default());
    assert_eq!(store.settle(&claim, &failure("no")).await.expect("settled"), Settled::Done);
}

/// Two keys whose digests begin with the same eight bytes share an advisory lock: here another
/// session holds it.
#[tokio::test]
async fn a_foreign_lock_with_the_same_number_only_delays() {
    let database = Database::new().await;
    let store = database.store().await;
    let (locked, free) = (draft(&key("locked")), draft(&key("free")));
    let [a, b, c, d, e, f, g, h, ..] = *locked.key.digest().as_bytes();
    let number = i64::from_be_bytes([a, b, c, d, e, f, g, h]);
    let mut stranger = database.connection().await;
    let mut transaction = stranger.begin().await.expect("begun");
    let lock = sqlx::query("select pg_advisory_xact_lock($1)").bind(number);
    lock.execute(&mut *transaction).await.expect("locked");
    assert!(matches!(store.open(&locked).await.expect("asked"), Opened::Contended));
    assert!(matches!(store.open(&free).await.expect("asked"), Opened::Inserted { .. }));
    transaction.commit().await.expect("let go");
    assert!(matches!(store.open(&locked).await.expect("asked"), Opened::Inserted { .. }));
    // A lock held by the same transaction does not block it.
    let mut transaction = store.begin().await.expect("begun");
    let connection = PgStore::connection(&mut transaction);
    let other = draft(&key("another"));
    let [a, b, c, d, e, f, g, h, ..] = *other.key.digest().as_bytes();
    let lock = sqlx::query("select pg_advisory_xact_lock($1)");
    let lock = lock.bind(i64::from_be_bytes([a, b, c, d, e, f, g, h]));
    lock.execute(&mut *connection).await.expect("locked");
    let opened = store.open_in(connection, &other).await.expect("asked");
    assert!(matches!(opened, Opened::Inserted { .. }), "{opened:?}");
    store.rollback(transaction).await;
}
