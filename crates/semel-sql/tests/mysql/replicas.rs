//! Tests a primary and its replica: what the store reports, and what a failover loses.

use std::time::Duration;

use semel_core::store::{ErrorKind, Finding, Guarantee, Opened, Replication, Settled, Store as _};
use semel_servers::{MariaDb, Options, Server};
use semel_sql::mysql::MySqlStore;
use semel_testkit::fixture::run;
use semel_testkit::proxy::{Direction, FaultProxy};
use tokio::time::timeout;

use crate::fixture::{LONG, TestDatabase, claim, draft, key, success};

/// A primary with a replica that is reached through a proxy.
struct Pair {
    primary: Server,
    replica: Server,
    database: TestDatabase,
    network: FaultProxy,
}

impl Pair {
    async fn start() -> Self {
        let flags = ["--server-id=1", "--log-bin=bin", "--sync-binlog=1"];
        let primary = MariaDb::start(Options::new().flags(flags)).expect("a private server");
        let options = Options::new().flag("--server-id=2").flag("--slave-net-timeout=3600");
        let replica = MariaDb::start(options).expect("a private server");
        let server = std::net::SocketAddr::from(([127, 0, 0, 1], primary.port()));
        let network = FaultProxy::start(server).await.expect("a proxy");
        let database = TestDatabase::at(primary.url()).await;
        Self { primary, replica, database, network }
    }

    /// Lets the replica follow, and waits until it has caught up with the primary.
    async fn follow(&self) {
        let login =
            "CREATE USER repl@'127.0.0.1'; GRANT REPLICATION SLAVE ON *.* TO repl@'127.0.0.1'";
        self.database.run(login).await;
        let follow = format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = 'repl', \
             MASTER_USE_GTID = slave_pos, MASTER_HEARTBEAT_PERIOD = 0; START SLAVE",
            self.network.addr().port()
        );
        let replica = TestDatabase::borrowed(self.replica.url());
        replica.run(&follow).await;
        let name = self.database.name();
        let there = format!(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '{name}' \
             AND table_name = 'semel_id_map'"
        );
        let followed = async { while replica.number(&there).await == 0 {} };
        timeout(LONG, followed).await.expect("the replica follows");
    }

    /// Kills the primary and promotes the replica.
    async fn fail_over(mut self) -> (MySqlStore, Self) {
        self.primary.kill9().expect("killed");
        self.network.reset_all();
        let replica = TestDatabase::borrowed(self.replica.url());
        let caught_up = "SELECT COUNT(*) FROM information_schema.processlist \
                         WHERE state LIKE 'Slave has read all relay log%' \
                         OR state LIKE 'Reading event from the relay log%'";
        replica.run("STOP SLAVE IO_THREAD").await;
        let applied = async { while replica.number(caught_up).await == 0 {} };
        timeout(LONG, applied).await.expect("what it has is applied");
        replica.run("STOP SLAVE").await;
        let url = self.replica.url().replace("/mysql", &format!("/{}", self.database.name()));
        (MySqlStore::connect(&url).await.expect("connected"), self)
    }
}

async fn about_replicas(store: &MySqlStore) -> Vec<&'static str> {
    let codes = |finding: &Finding| finding.code;
    let mut found: Vec<_> = store.check().await.expect("checked").iter().map(codes).collect();
    found.retain(|code| {
        ["mysql-async-replica", "mysql-replication-declared", "mysql-semi-sync-timeout"]
            .contains(code)
    });
    found
}

#[test]
fn an_asynchronous_replica_is_named_and_a_failover_to_it_runs_again() {
    run(async {
        let pair = Pair::start().await;
        let store = pair.database.connect().await;
        assert_eq!(store.guarantee(), Guarantee::Fenced, "no replica");
        assert_eq!(about_replicas(&store).await, [""; 0]);
        pair.follow().await;
        let _ = store.sweep(1).await.expect("swept");
        assert_eq!(store.guarantee(), Guarantee::BestEffort, "seen by the next sweep");
        assert_eq!(about_replicas(&store).await, ["mysql-async-replica"]);
        let late = pair.database.connect().await;
        assert_eq!(
            late.guarantee(),
            Guarantee::BestEffort,
            "a store that connects later sees it at once"
        );
        for (declared, guarantee, findings) in [
            (Replication::None, Guarantee::Fenced, &[][..]),
            (Replication::Synchronous, Guarantee::Fenced, &["mysql-replication-declared"]),
            (Replication::Asynchronous, Guarantee::BestEffort, &[]),
        ] {
            let declaring = pair.database.settings().replication(declared);
            let declaring = declaring.connect().await.expect("connected");
            assert_eq!(declaring.guarantee(), guarantee, "{declared:?}");
            assert_eq!(about_replicas(&declaring).await, findings, "{declared:?}");
        }
        // Writes that are acknowledged while nothing reaches the replica are lost with the primary.
        pair.network.blackhole(Direction::Replies);
        let held = claim(&store, &key("a")).await;
        assert_eq!(store.settle(&held, &success("done")).await.expect("settled"), Settled::Done);
        let (promoted, pair) = pair.fail_over().await;
        let opened = promoted.open(&draft(&key("a"))).await.expect("open");
        assert!(matches!(opened, Opened::Inserted { .. }), "the claim is lost: {opened:?}");
        drop((store, late, promoted));
        pair.end();
    });
}

#[test]
fn a_semi_synchronous_replica_has_what_was_acknowledged() {
    run(async {
        let pair = Pair::start().await;
        pair.follow().await;
        TestDatabase::borrowed(pair.replica.url())
            .run("STOP SLAVE; SET GLOBAL rpl_semi_sync_slave_enabled = 1; START SLAVE")
            .await;
        pair.database
            .run(
                "SET GLOBAL rpl_semi_sync_master_timeout = 86400000, \
                 rpl_semi_sync_master_enabled = 1",
            )
            .await;
        let clients = "SELECT variable_value FROM information_schema.global_status \
                       WHERE variable_name = 'Rpl_semi_sync_master_clients'";
        let attached = async { while pair.database.number(clients).await == 0 {} };
        timeout(LONG, attached).await.expect("the replica confirms");
        let store = pair.database.connect().await;
        assert_eq!(store.guarantee(), Guarantee::Fenced);
        assert_eq!(about_replicas(&store).await, [""; 0]);
        let held = claim(&store, &key("a")).await;
        assert_eq!(store.settle(&held, &success("done")).await.expect("settled"), Settled::Done);
        // A write that the replica cannot confirm is not acknowledged, whether or not it is
        // written.
        let hasty =
            MySqlStore::builder(&pair.database.url()).statement_timeout(Duration::from_secs(2));
        let hasty = hasty.connect().await.expect("connected");
        pair.network.blackhole(Direction::Replies);
        let error = hasty.open(&draft(&key("b"))).await.expect_err("unconfirmed");
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        drop((store, hasty));
        let (promoted, pair) = pair.fail_over().await;
        let opened = promoted.open(&draft(&key("a"))).await.expect("open");
        let Opened::Existing { record, .. } = opened else { panic!("lost: {opened:?}") };
        assert_eq!(record.attempt_id, held.attempt_id);
        drop(promoted);
        pair.end();
    });
}

impl Pair {
    /// Ends without dropping the database, because the primary is gone.
    fn end(self) {
        let Self { database, .. } = self;
        database.leave();
    }
}
