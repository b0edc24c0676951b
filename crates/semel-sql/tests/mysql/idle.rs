//! Tests connections that the server closed because they were idle.

use std::time::Duration;

use semel_core::outbox::{ClaimRequest, Outbox as _};
use semel_core::store::{Filter, Inspect, Store as _, TransactionalStore as _};
use semel_ids::TypedId;
use semel_ids::map::{Binding, IdMap as _};
use semel_ids::resource::{Order, Resource as _};
use semel_servers::{MariaDb, Options};
use semel_sql::mysql::MySqlStore;
use semel_testkit::fixture::run;
use tokio::time::timeout;
use ulid::Ulid;

use crate::fixture::{LONG, TestDatabase, draft, key, lease, success};

fn order(number: u128) -> Binding {
    Binding::of::<Order>("acme", TypedId::new(Ulid(number << 40 | number))).expect("a tenant")
}

/// Runs every kind of step, with its own or a shared connection. Each must succeed.
async fn use_all(store: &MySqlStore, renewer: &mut impl semel_core::store::Renewer, round: u128) {
    let id = format!("round-{round}");
    store.backlog().await.expect("backlog");
    let ask = ClaimRequest::new(10, Duration::from_secs(30));
    assert!(store.claim(ask).await.expect("claim").is_empty());
    let binding = order(round + 1);
    let _ = store.insert_many(std::slice::from_ref(&binding)).await.expect("insert_many");
    let revoked = store.revoke("acme", Order::TYPE, binding.public()).await;
    assert!(revoked.expect("revoke"));
    let claimed = draft(&key(&id));
    let opened = store.open(&claimed).await.expect("open");
    let semel_core::store::Opened::Inserted { fence } = opened else { panic!("{opened:?}") };
    let lease = lease(&claimed, fence);
    let _ = renewer.renew(&[(lease, Duration::from_secs(30))]).await.expect("renew");
    let _ = store.settle(&lease, &success("ok")).await.expect("settle");
    assert!(store.peek(&key(&id)).await.expect("peek").is_some());
    let _ = store.sweep(10).await.expect("sweep");
    let _ = Inspect::list(store, &Filter::default(), None, 10).await.expect("list");
    let transaction = store.begin().await.expect("begin");
    store.commit(transaction).await.expect("commit");
}

#[test]
fn connections_that_the_server_closed_while_idle_are_detected_before_anything_is_sent() {
    run(async {
        let options = Options::new().flag("--wait-timeout=1").flag("--interactive-timeout=1");
        let server = MariaDb::start(options).expect("a private server");
        let database = TestDatabase::at(server.url()).await;
        let store = database.settings().connections(1).connect().await.expect("connected");
        let mut renewer = store.renewer().await.expect("a renewer");
        for round in 0..4 {
            use_all(&store, &mut renewer, round).await;
            let others = "SELECT COUNT(*) FROM information_schema.processlist \
                          WHERE db = DATABASE() AND id <> CONNECTION_ID()";
            let closed = async { while database.number(others).await > 0 {} };
            timeout(LONG, closed).await.expect("the server closes what is idle");
        }
    });
}
