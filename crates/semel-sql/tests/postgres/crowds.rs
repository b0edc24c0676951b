//! Tests more work and more waiters than there are connections.

use std::sync::Arc;
use std::time::Duration;

use semel_core::executor::{LocalReplay, Unit};
use semel_core::{Command, Error, Execution, Executor, Wait};
use semel_sql::postgres::PgStore;
use semel_testkit::conformance::transacting::TransactionFixture;
use tokio::sync::{Barrier, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::database::{Database, LONG, key};

const CROWD: usize = 16;

type Answer = Result<Execution<u32>, Error<String>>;

/// Returns an executor like that of another process, with one connection for steps and one for
/// transactions.
async fn executor(database: &Database) -> Executor<PgStore> {
    let settings = database.settings().connections(1).transactions(1);
    Executor::builder(settings.connect().await.expect("connected"))
        .local_replay(LocalReplay::OFF)
        .build()
        .expect("the default policy is valid")
}

fn command(id: &str) -> Command {
    Command::new(key(id)).wait(Wait::Deadline(LONG))
}

async fn run(executor: Executor<PgStore>, id: String) -> Answer {
    executor.run(command(&id), |_| async { Ok(0) }).await
}

async fn transact(executor: Executor<PgStore>, id: String) -> Answer {
    let work = |mut unit: Unit<PgStore>| async move {
        Database::effect(unit.conn(), "order").await;
        Ok(0)
    };
    executor.transact(command(&id), work).await
}

/// All works of the crowd run at once over one connection. A crowd that waits for them in another
/// process, and for a transaction, leaves that process's two connections free for others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_work_nor_waiters_hold_a_connection() {
    let database = Database::new().await;
    database.run("create table effect (name text not null)").await;
    let (executor, elsewhere) = (executor(&database).await, executor(&database).await);
    let (release, released) = watch::channel(false);
    let all = Arc::new(Barrier::new(CROWD + 2));
    let mut holders: JoinSet<Answer> = JoinSet::new();
    for n in 0..CROWD {
        let (executor, all, mut released) = (executor.clone(), Arc::clone(&all), released.clone());
        let work = move |_| async move {
            all.wait().await;
            released.wait_for(|over| *over).await.map(|_| 7).map_err(|e| e.to_string())
        };
        holders.spawn(async move { executor.run(command(&format!("run-{n}")), work).await });
    }
    let (open, at_once, mut over) = (executor.clone(), Arc::clone(&all), released.clone());
    let work = move |mut unit: Unit<PgStore>| async move {
        Database::effect(unit.conn(), "order").await;
        at_once.wait().await;
        over.wait_for(|over| *over).await.map(|_| 7).map_err(|e| e.to_string())
    };
    holders.spawn(async move { open.transact(command("transaction"), work).await });
    timeout(LONG, all.wait()).await.expect("all of them run at once");
    let mut waiters: JoinSet<Answer> = JoinSet::new();
    for n in 0..CROWD {
        waiters.spawn(run(elsewhere.clone(), format!("run-{n}")));
        waiters.spawn(transact(elsewhere.clone(), "transaction".to_owned()));
    }
    for n in 0..10 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let strangers = async {
            let ran = run(elsewhere.clone(), format!("stranger-{n}")).await.expect("runs");
            let committed = transact(elsewhere.clone(), format!("other-{n}")).await;
            assert!(!ran.replayed() && committed.expect("commits").value() == Some(&0));
        };
        timeout(LONG / 2, strangers).await.expect("other callers are served while the crowd waits");
    }
    assert!(waiters.try_join_next().is_none(), "they wait");
    release.send(true).expect("heard");
    for (crowd, replayed) in [(&mut holders, false), (&mut waiters, true)] {
        while let Some(answer) = timeout(LONG, crowd.join_next()).await.expect("an answer") {
            let answer = answer.expect("no panic").expect("an answer");
            assert_eq!((answer.value(), answer.replayed()), (Some(&7), replayed));
        }
    }
    assert_eq!(database.effects("order").await, 11);
}
