//! kill -9 under load, again and again, while clients retry with their keys until they are answered.
//!
//! Each key is sent by two clients at once. In the end there are as many orders as keys, one effect
//! of each in every group, and one answer for each key, byte for byte.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::caller::{Caller, TEA};
use crate::ground::{Ground, done, server, until_effects};
use crate::program::Service;

const KEYS: usize = 120;
/// Clients at once; each has every so many-th key, and a twin with the same keys.
const CLIENTS: usize = 6;
const KILLS: usize = 4;
/// How long a loaded machine may take for one call.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_on_sqlite_and_the_bus() {
    survive(Ground::embedded(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_by_two_processes_on_postgres_and_nats() {
    survive(Ground::postgres(&server("SEMEL_TEST_NATS_URL")).await, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_on_mysql_and_rabbitmq() {
    survive(Ground::mysql(&server("SEMEL_TEST_AMQP_URL")).await, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_by_two_processes_on_mysql_and_redis_streams() {
    survive(Ground::mysql(&server("SEMEL_TEST_REDIS_URL")).await, 2).await;
}

/// How many keys have their response, and a signal for it.
#[derive(Default)]
struct Progress {
    answered: AtomicUsize,
    moved: Notify,
}

impl Progress {
    fn answered(&self) {
        self.answered.fetch_add(1, Ordering::SeqCst);
        self.moved.notify_waiters();
    }

    async fn until(&self, wanted: usize) {
        loop {
            let moved = self.moved.notified();
            if self.answered.load(Ordering::SeqCst) >= wanted {
                return;
            }
            moved.await;
        }
    }
}

/// The address of each process; none while it is down, because its port may be reused.
type Urls = Vec<Option<String>>;

async fn survive(ground: Ground, processes: usize) {
    let mut services: Vec<Service> = (0..processes).map(|_| ground.start()).collect();
    let url = |service: &Service| Some(service.url("orders").to_owned());
    let (tell, told) = watch::channel::<Urls>(services.iter().map(url).collect());
    let progress = Arc::new(Progress::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS * 2 {
        clients.spawn(client(number, told.clone(), Arc::clone(&progress)));
    }
    let mut heard = Vec::new();
    for kill in 0..KILLS {
        // In the middle: other calls are under way.
        let due = progress.until((kill + 1) * 2 * KEYS / (KILLS + 2));
        tokio::pin!(due);
        loop {
            tokio::select! {
                () = &mut due => break,
                Some(ended) = clients.join_next() => heard.extend(ended.expect("a client's story")),
            }
        }
        let at = kill % processes;
        tell.send_modify(|urls| urls[at] = None);
        services.remove(at).kill();
        services.insert(at, ground.start());
        tell.send_modify(|urls| urls[at] = url(&services[at]));
    }
    while let Some(ended) = clients.join_next().await {
        heard.extend(ended.expect("a client's story"));
    }
    let mut answers: BTreeMap<String, Vec<Bytes>> = BTreeMap::new();
    for (key, answer) in heard {
        answers.entry(key).or_default().push(answer);
    }
    assert_eq!(answers.len(), KEYS);
    let caller = Caller::new();
    let said = until_effects(&caller, services[0].url("orders"), &done(KEYS)).await;
    assert_eq!(said, done(KEYS), "orders = keys, effects = orders in every group");
    let mut orders: Vec<String> = Vec::new();
    for (key, heard) in &answers {
        // Of the last process to be asked, which may have seen none of it.
        let last = services.last().expect("one").url("orders");
        let again = caller.place(last, key, TEA).await;
        assert!(again.replayed(), "{key}: {}", again.text());
        assert!(heard.iter().all(|answer| *answer == again.body), "{key}: one answer");
        orders.push(again.order_id());
    }
    orders.sort();
    orders.dedup();
    assert_eq!(orders.len(), KEYS, "no two keys have one order");
    let told = orders.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(", ");
    let there = format!("SELECT COUNT(*) FROM orders WHERE public_id IN ({told})");
    assert_eq!(ground.number(&there).await, count(KEYS), "and every response has its own order");
    assert_eq!(
        caller.get(&format!("{}/effects", services[0].url("orders"))).await.text(),
        done(KEYS),
        "and nothing came of asking again"
    );
    let handled = ground.handled().await;
    assert_eq!(handled, count(3 * KEYS), "and none stands in for another");
    drop(services);
    ground.remove().await;
}

fn count(things: usize) -> i64 {
    i64::try_from(things).expect("few")
}

/// Places its orders, each until it is answered; gives what was answered.
async fn client(
    number: usize,
    mut urls: watch::Receiver<Urls>,
    progress: Arc<Progress>,
) -> Vec<(String, Bytes)> {
    let (caller, mut heard) = (Caller::new(), Vec::new());
    for key in (number % CLIENTS..KEYS).step_by(CLIENTS).map(|key| format!("key-{key}")) {
        let end = Instant::now() + 2 * PATIENCE;
        let answer = loop {
            let at = number % urls.borrow().len();
            let known = urls.wait_for(|urls| urls[at].is_some()).await.expect("told")[at].clone();
            let url = known.expect("waited for");
            let placed = caller.try_place(&url, &key, TEA);
            match timeout(PATIENCE, placed).await.expect("an answer, or a cut connection") {
                Some(answer) if answer.status == 201 => break answer,
                // In progress, failed, interrupted, or no process; but not for ever.
                Some(answer) => assert!(
                    matches!(answer.status, 409 | 500 | 503) && Instant::now() < end,
                    "{key}: {} {}",
                    answer.status,
                    answer.text()
                ),
                None => {}
            }
            // As an impatient client would.
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        heard.push((key, answer.body));
        progress.answered();
    }
    heard
}
