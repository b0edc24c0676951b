//! Which clock decides about leases.

use std::net::SocketAddr;
use std::time::Duration;

use semel_core::Execution;
use semel_core::clock::{Clock, Timestamp, micros};
use semel_core::store::{Opened, Store as _};
use semel_faults::effects::{self, EffectStore, Visitor};
use semel_faults::harness::{self, ControlledWork, command, executor, key, orphan};
use semel_sql::sqlite::SqliteStore;
use semel_stores::PrivateStore;
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
use semel_testkit::proxy::FaultProxy;

#[test]
fn leases_follow_the_clock_that_the_store_was_given() {
    harness::on("sqlite", |private| async move {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let open = || {
            let path = private.directory().join("clocked.db");
            SqliteStore::builder(path).clock(clock.clone()).open()
        };
        // The work begins and a renewal is tried within this lease, even on a busy machine.
        let lease = Duration::from_secs(9);
        let cut_off = FaultyStore::new(open().await.expect("a store"));
        cut_off.faults().always(StoreCall::Renew, Fault::Refuse);
        let faults = cut_off.faults().clone();
        let (holder, rival) =
            (executor(cut_off, lease), executor(open().await.expect("a store"), lease));
        let (slow, begun, end) = ControlledWork::new();
        let held = tokio::spawn(async move { holder.run(command("k"), |_| slow.work()).await });
        begun.await.expect("the holder works");
        let ask = || rival.run(command("k"), |_| async { Ok::<_, String>("rival".to_owned()) });

        // This machine's clock passes the end of the lease, and the store's stands still.
        tokio::time::sleep(lease * 3 / 2).await;
        assert!(faults.happened(StoreCall::Renew) > 0, "the lease was renewed");
        let asked = ask().await.expect("an answer");
        assert!(
            asked.in_progress(),
            "the lease lapsed by a clock that is not the store's: {asked:?}"
        );

        // The store's clock passes the end of the lease, and no real time passes.
        clock.advance(lease);
        let taken = ask().await.expect("an answer");
        assert!(matches!(taken, Execution::Executed { receipt, .. } if receipt.attempt == 2));
        let _ = end.send("late".to_owned());
        assert!(held.await.expect("no panic").expect("an answer").replayed());
    });
}

struct Sleeps;

impl Visitor for Sleeps {
    type Output = ();

    /// Checks that a lease lapses during a transaction: inside a transaction, most clock functions
    /// of a database return the time at which it began.
    async fn visit<S: EffectStore>(self, store: S) {
        let lease = Duration::from_millis(200);
        let mut transaction = store.begin().await.expect("a transaction");
        let _ = store.peek(&key("other")).await.expect("readable");
        assert!(matches!(store.open(&orphan("k", lease)).await, Ok(Opened::Inserted { .. })));
        tokio::time::sleep(lease * 2).await;
        let mine = orphan("k", lease);
        let opened = store.open_in(S::connection(&mut transaction), &mine).await.expect("opens");
        store.rollback(transaction).await;
        let Opened::Existing { record, now } = opened else { panic!("{opened:?}") };
        let until = record.lease_until.expect("a lease");
        assert!(until <= now, "the clock stood still: lease until {until}, now {now}");
    }
}

#[test]
fn a_lease_lapses_while_a_transaction_is_open() {
    harness::on("postgres", |private| async move {
        effects::visit(private.backend(), Sleeps).await.expect("a store");
    });
    harness::on("mysql", |private| async move {
        effects::visit(private.backend(), Sleeps).await.expect("a store");
    });
}

/// Returns the address in the Redis URL of a single server.
fn address(private: &PrivateStore) -> SocketAddr {
    let url = private.backend().to_string();
    let host = url.trim_start_matches("redis://").split(['?', '/']).next().unwrap_or_default();
    host.parse().expect("host and port")
}

#[test]
fn a_slow_link_does_not_shorten_a_lease() {
    harness::on("redis", |private| async move {
        let (lease, latency) = (Duration::from_secs(5), Duration::from_millis(500));
        let proxy = FaultProxy::start(address(&private)).await.expect("a proxy");
        let slow =
            private.backend().through_port(proxy.addr().port()).open().await.expect("a store");
        let direct = private.backend().open().await.expect("a store");
        // The server's clock before the request is sent.
        let _ = direct.open(&orphan("earlier", lease)).await.expect("opens");
        let before = direct.peek(&key("earlier")).await.expect("readable").expect("a record").now;
        proxy.latency(latency, Duration::ZERO);
        let _ = slow.open(&orphan("k", lease)).await.expect("opens");
        assert!(proxy.faults().delayed > 0, "nothing was delayed");
        let found = direct.peek(&key("k")).await.expect("readable").expect("a record").record;
        let until = found.lease_until.expect("a lease").as_micros();
        let least = before.as_micros() + micros(latency) + micros(lease);
        assert!(until >= least, "the lease began {} us before it was granted", least - until);
    });
}

const DAY: Duration = Duration::from_secs(25 * 60 * 60);

#[test]
fn an_answer_survives_a_clock_that_jumps() {
    harness::on("sqlite", |private| async move {
        let right = Timestamp::from_micros(1_700_000_000_000_000);
        let clock = Clock::manual(right);
        let path = private.directory().join("jumping.db");
        let store = SqliteStore::builder(path).clock(clock.clone()).open().await.expect("a store");
        let lease = Duration::from_secs(30);
        // Each executor reads the store: neither has the other's cache.
        let (first, second) = (executor(store.clone(), lease), executor(store, lease));
        let ran = first.run(command("k"), |_| async { Ok::<_, String>(1) }).await;
        assert_eq!(ran.expect("runs").value(), Some(&1));
        clock.set(right.after(DAY));
        let _ = first.sweep(100).await.expect("swept");
        clock.set(right);
        let repeat = second.run(command("k"), |_| async { Ok::<_, String>(2) }).await;
        let repeat = repeat.expect("an answer");
        assert!(repeat.replayed(), "the answer was swept by a clock that had jumped: {repeat:?}");
    });
}

#[test]
fn a_claim_of_a_clock_that_jumped_lasts_for_its_lease() {
    harness::on("sqlite", |private| async move {
        let right = Timestamp::from_micros(1_700_000_000_000_000);
        let (clock, lease) = (Clock::manual(right), Duration::from_secs(30));
        let path = private.directory().join("jumping.db");
        let store = SqliteStore::builder(path).clock(clock.clone()).open().await.expect("a store");
        clock.set(right.after(DAY));
        assert!(matches!(store.open(&orphan("k", lease)).await, Ok(Opened::Inserted { .. })));
        clock.set(right);
        let executor = executor(store, lease);
        let run = || executor.run(command("k"), |_| async { Ok::<_, String>(1) });
        assert!(run().await.expect("an answer").in_progress());
        clock.advance(lease);
        let answer = run().await.expect("an answer");
        assert_eq!(answer.attempt(), Some(2), "the claim outlives its lease: {answer:?}");
    });
}
