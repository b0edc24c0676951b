//! Tests a private primary and standby: what a failover loses, and what the store reports.

use std::time::Duration;

use semel_core::executor::{LocalReplay, Unit};
use semel_core::store::{ErrorKind, Finding, Guarantee, Replication, Severity, Store};
use semel_core::{Command, Error, Execution, Executor, Wait};
use semel_servers::{Options, Postgres, Server};
use semel_sql::postgres::{PgOptions, PgStore};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};
use tokio::time::timeout;

use crate::database::{LONG, key};
use crate::proxy::Proxy;

/// Two servers, the second a standby of the first.
struct Pair {
    primary: Server,
    standby: Server,
}

fn options(server: &Server) -> PgConnectOptions {
    server.url().parse().expect("a URL")
}

async fn run(server: &Server, sql: &str) {
    let mut connection = options(server).connect().await.expect("connected");
    // One at a time: some statements cannot run in a transaction.
    for sql in sql.split("; ") {
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

async fn text(connection: &mut PgConnection, sql: &str) -> Option<String> {
    let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_optional(connection).await.expect("asked");
    row.and_then(|row| row.get(0))
}

/// Repeats a query until its answer is `wanted`.
async fn until(server: &Server, sql: &str, wanted: &str) {
    let mut connection = options(server).connect().await.expect("connected");
    let asking = async {
        while text(&mut connection, sql).await.as_deref() != Some(wanted) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, asking).await.unwrap_or_else(|_| panic!("never {wanted}: {sql}"));
}

impl Pair {
    async fn start() -> Self {
        let started = tokio::task::spawn_blocking(|| {
            let primary = Postgres::start(Options::new()).expect("a primary");
            let standby = Postgres::standby(&primary, "s1", Options::new()).expect("a standby");
            Self { primary, standby }
        });
        let pair = started.await.expect("no panic");
        until(&pair.primary, "select state from pg_stat_replication", "streaming").await;
        let store = pair.store(&pair.primary, LONG).await;
        store.migrate().await.expect("migrated");
        run(&pair.primary, "create table effect (name text not null)").await;
        pair
    }

    async fn synchronous() -> Self {
        let pair = Self::start().await;
        let list = "alter system set synchronous_standby_names = 's1'; select pg_reload_conf()";
        run(&pair.primary, list).await;
        until(&pair.primary, "select sync_state from pg_stat_replication", "sync").await;
        pair
    }

    async fn store(&self, server: &Server, limit: Duration) -> PgStore {
        let settings = PgOptions::with(options(server)).statement_timeout(limit);
        settings.connect().await.expect("connected")
    }
}

fn executor(store: PgStore) -> Executor<PgStore> {
    Executor::builder(store).local_replay(LocalReplay::OFF).build().expect("valid")
}

type Answer = Result<Execution<String>, Error<String>>;

async fn place(executor: &Executor<PgStore>, id: &str) -> Answer {
    let command = Command::new(key(id)).wait(Wait::Deadline(LONG));
    let id = id.to_owned();
    executor
        .transact(command, |mut unit: Unit<PgStore>| async move {
            let insert = sqlx::query("insert into effect (name) values ($1)").bind(&id);
            insert.execute(unit.conn()).await.map_err(|error| error.to_string())?;
            Ok(id)
        })
        .await
}

async fn effects(server: &Server, id: &str) -> i64 {
    let mut connection = options(server).connect().await.expect("connected");
    let count = sqlx::query_scalar("select count(*) from effect where name = $1").bind(id);
    count.fetch_one(&mut connection).await.expect("counted")
}

fn executed(answer: &Answer) -> bool {
    matches!(answer, Ok(Execution::Executed { .. }))
}

fn finding<'f>(found: &'f [Finding], code: &str) -> Option<&'f Finding> {
    found.iter().find(|finding| finding.code == code)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_asynchronous_standby_lacks_runs_again_and_the_guarantee_is_best_effort() {
    let mut pair = Pair::start().await;
    let store = pair.store(&pair.primary, LONG).await;
    assert_eq!(store.guarantee(), Guarantee::BestEffort);
    let found = store.check().await.expect("checked");
    let asynchronous = finding(&found, "postgres-replication").expect("found");
    assert!(asynchronous.found.contains("s1"), "{asynchronous:?}");
    let known = PgOptions::with(options(&pair.primary)).replication(Replication::Synchronous);
    let known = known.connect().await.expect("connected");
    assert_eq!(known.guarantee(), Guarantee::Fenced, "the operator knows better");
    let found = known.check().await.expect("checked");
    assert!(finding(&found, "postgres-replication-declared").is_some(), "{found:?}");

    let executor = executor(store);
    // A stopped standby can still be promoted: its slot shows that it exists.
    pair.standby.kill9().expect("killed");
    assert!(executed(&place(&executor, "order").await));
    let gone = "select count(*)::text from pg_stat_replication";
    until(&pair.primary, gone, "0").await;
    executor.store().sweep(10).await.expect("swept");
    assert_eq!(executor.guarantee(), Guarantee::BestEffort);
    pair.primary.kill9().expect("killed");
    pair.standby.restart().expect("restarted");
    Postgres::promote(&pair.standby).expect("promoted");
    let heir = crate::failover::executor(pair.store(&pair.standby, LONG).await);
    let again = place(&heir, "order").await;
    assert!(executed(&again), "the acknowledged one is lost: {again:?}");
    assert_eq!(effects(&pair.standby, "order").await, 1, "with its effect");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_standby_has_everything_that_was_acknowledged() {
    let mut pair = Pair::synchronous().await;
    let store = pair.store(&pair.primary, LONG).await;
    assert_eq!(store.guarantee(), Guarantee::Fenced);
    let found = store.check().await.expect("checked");
    assert_eq!(found, [], "{found:?}");
    let executor = executor(store);
    for id in 0..50 {
        assert!(executed(&place(&executor, &id.to_string()).await));
    }
    pair.primary.kill9().expect("killed");
    Postgres::promote(&pair.standby).expect("promoted");
    let heir = crate::failover::executor(pair.store(&pair.standby, LONG).await);
    for id in 0..50 {
        let again = place(&heir, &id.to_string()).await.expect("answered");
        assert!(again.replayed(), "{id}: {again:?}");
        assert_eq!(effects(&pair.standby, &id.to_string()).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standbys_that_come_and_go_change_the_label() {
    let pair = Pair::start().await;
    let store = pair.store(&pair.primary, LONG).await;
    assert_eq!(store.guarantee(), Guarantee::BestEffort);
    let list = "alter system set synchronous_standby_names = 's1'; select pg_reload_conf()";
    run(&pair.primary, list).await;
    until(&pair.primary, "select sync_state from pg_stat_replication", "sync").await;
    store.sweep(10).await.expect("swept");
    assert_eq!(store.guarantee(), Guarantee::Fenced);
    run(&pair.primary, "alter database postgres set synchronous_commit = local").await;
    let careless = pair.store(&pair.primary, LONG).await;
    assert_eq!(careless.guarantee(), Guarantee::BestEffort);
    let found = careless.check().await.expect("checked");
    let local = finding(&found, "postgres-synchronous-commit").expect("found");
    assert_eq!(local.severity, Severity::Error, "{local:?}");
    // The standby itself takes no writes, and the store reports that.
    let mirror = pair.store(&pair.standby, LONG).await;
    let found = mirror.check().await.expect("checked");
    assert!(finding(&found, "postgres-standby").is_some(), "{found:?}");
    let refused = place(&executor(mirror), "order").await;
    assert!(
        matches!(&refused, Err(Error::Store(e)) if e.kind() == ErrorKind::Misconfigured),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_without_pg_monitor_gets_a_finding_and_best_effort() {
    let pair = Pair::start().await;
    run(&pair.primary, "create role app login; grant select on all tables in schema public to app")
        .await;
    let settings = PgOptions::with(options(&pair.primary).username("app"));
    let store = settings.connect().await.expect("connected");
    assert_eq!(store.guarantee(), Guarantee::BestEffort);
    let found = store.check().await.expect("checked");
    let hidden = finding(&found, "postgres-replication").expect("found");
    assert!(hidden.found.contains("pg_monitor"), "{hidden:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_by_which_a_crash_alone_loses_commits_are_best_effort() {
    let careless = Options::new().flags(["-c", "fsync=off", "-c", "full_page_writes=off"]);
    let started = tokio::task::spawn_blocking(|| Postgres::start(careless).expect("a server"));
    let server = started.await.expect("no panic");
    let settings = PgOptions::with(options(&server)).replication(Replication::Synchronous);
    let store = settings.connect().await.expect("connected");
    assert_eq!(store.guarantee(), Guarantee::BestEffort);
    let found = store.check().await.expect("checked");
    for code in ["postgres-fsync", "postgres-full-page-writes"] {
        let finding = finding(&found, code).unwrap_or_else(|| panic!("{code}: {found:?}"));
        assert_eq!(finding.severity, Severity::Error);
    }
}

/// Returns the processes whose commits have waited for the standby for longer than `longer_than`.
async fn waiting(connection: &mut PgConnection, longer_than: &str) -> Vec<i32> {
    let sql = format!(
        "select pid from pg_stat_activity where wait_event = 'SyncRep'
        and state_change < clock_timestamp() - interval '{longer_than}'"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await.expect("asked");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_wait_for_the_standby_does_not_count_as_a_commit() {
    let mut pair = Pair::synchronous().await;
    let executor = executor(pair.store(&pair.primary, Duration::from_secs(3)).await);
    assert!(executed(&place(&executor, "warm").await));
    pair.standby.pause().expect("paused");
    let call = {
        let executor = executor.clone();
        tokio::spawn(async move { place(&executor, "order").await })
    };
    let mut operator = options(&pair.primary).connect().await.expect("connected");
    let cancelled = async {
        loop {
            let pids = waiting(&mut operator, "1.2 seconds").await;
            for pid in &pids {
                let cancel = format!("select pg_cancel_backend({pid})");
                sqlx::raw_sql(AssertSqlSafe(cancel)).execute(&mut operator).await.expect("sent");
            }
            if !pids.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, cancelled).await.expect("the commit waits, and its wait is cancelled");
    let answer = timeout(LONG, call).await.expect("bounded by our own clock").expect("no panic");
    assert!(
        matches!(&answer, Err(Error::Store(e)) if e.kind() == ErrorKind::Ambiguous),
        "it is on the primary alone: {answer:?}"
    );
    assert_eq!(effects(&pair.primary, "order").await, 1, "although the primary shows it");
    // The standby catches up, and then the commit counts.
    pair.standby.resume().expect("resumed");
    let again = timeout(LONG, place(&executor, "order")).await.expect("in time").expect("answered");
    assert!(again.replayed(), "{again:?}");
    assert_eq!(effects(&pair.primary, "order").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_standby_makes_commits_ambiguous_and_blocks_no_caller() {
    let mut pair = Pair::synchronous().await;
    let executor = executor(pair.store(&pair.primary, Duration::from_secs(2)).await);
    assert!(executed(&place(&executor, "warm").await));
    pair.standby.pause().expect("paused");
    let answer = timeout(LONG, place(&executor, "order")).await.expect("bounded by our own clock");
    assert!(
        matches!(&answer, Err(Error::Store(e)) if e.kind() == ErrorKind::Ambiguous),
        "the outcome is unknown: {answer:?}"
    );
    pair.standby.resume().expect("resumed");
    let settled = async {
        loop {
            // The commit that waited completes as soon as its standby answers.
            match place(&executor, "order").await {
                Ok(execution) if !execution.in_progress() => return execution,
                Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    };
    let again = timeout(LONG, settled).await.expect("in time");
    assert!(again.replayed(), "{again:?}");
    assert_eq!(effects(&pair.primary, "order").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_leave_an_old_primary_that_became_read_only() {
    let pair = Pair::start().await;
    let (proxy, through) = Proxy::before(&options(&pair.primary)).await;
    let store = PgOptions::with(through).statement_timeout(LONG).connect().await;
    let executor = executor(store.expect("connected"));
    // Several idle sessions, all of them with the old primary.
    let calls = (0..8).map(|id| {
        let executor = executor.clone();
        async move { place(&executor, &format!("before-{id}")).await }
    });
    let calls = futures_util::future::join_all(calls).await;
    assert!(calls.iter().all(executed), "{calls:?}");
    until(
        &pair.primary,
        "select (replay_lsn = pg_current_wal_lsn())::text from pg_stat_replication",
        "true",
    )
    .await;
    Postgres::promote(&pair.standby).expect("promoted");
    let demote = "alter system set default_transaction_read_only = on; select pg_reload_conf()";
    run(&pair.primary, demote).await;
    until(&pair.primary, "show default_transaction_read_only", "on").await;
    proxy.turn_to(pair.standby.port());
    // A call that uses a session with the old primary is refused, once, and no later call is.
    let mut refused = 0;
    for id in 0..20 {
        let answer = place(&executor, &format!("after-{id}")).await;
        refused += u32::from(!executed(&answer));
    }
    assert!(refused <= 1, "{refused} of 20 were refused");
    assert_eq!(effects(&pair.standby, "after-19").await, 1);
}
