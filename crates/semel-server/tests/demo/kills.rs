//! Tests with repeated `kill -9` under load, while clients retry with their keys until they are
//! answered.
//!
//! Two clients send each key at the same time. In the end there are as many orders as keys, one
//! effect of each order in every group, and one response for each key, byte for byte.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::caller::{Caller, TEA};
use crate::fixture::{Fixture, done, server, until_effects};
use crate::program::Service;

const KEYS: usize = 120;
/// The number of pairs of clients; each pair shares every n-th key.
const CLIENTS: usize = 6;
const KILLS: usize = 4;
/// The time limit for one call on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_on_sqlite_and_the_bus() {
    survive(Fixture::embedded(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_by_two_processes_on_postgres_and_nats() {
    survive(Fixture::postgres(&server("SEMEL_TEST_NATS_URL")).await, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_on_mysql_and_rabbitmq() {
    survive(Fixture::mysql(&server("SEMEL_TEST_AMQP_URL")).await, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_by_two_processes_on_mysql_and_redis_streams() {
    survive(Fixture::mysql(&server("SEMEL_TEST_REDIS_URL")).await, 2).await;
}

/// Counts the keys that have their response, and signals each.
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

/// The URL of each process; `None` while the process is down, because its port may be reused.
type Urls = Vec<Option<String>>;

async fn survive(fixture: Fixture, processes: usize) {
    let mut services: Vec<Service> = (0..processes).map(|_| fixture.start()).collect();
    let url = |service: &Service| Some(service.url("orders").to_owned());
    let (urls_sender, urls_receiver) = watch::channel::<Urls>(services.iter().map(url).collect());
    let progress = Arc::new(Progress::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS * 2 {
        clients.spawn(client(number, urls_receiver.clone(), Arc::clone(&progress)));
    }
    let mut responses = Vec::new();
    for kill in 0..KILLS {
        // The kill comes in the middle, while other calls are under way.
        let due = progress.until((kill + 1) * 2 * KEYS / (KILLS + 2));
        tokio::pin!(due);
        loop {
            tokio::select! {
                () = &mut due => break,
                Some(ended) = clients.join_next() => responses.extend(ended.expect("the client's responses")),
            }
        }
        let at = kill % processes;
        urls_sender.send_modify(|urls| urls[at] = None);
        services.remove(at).kill();
        services.insert(at, fixture.start());
        urls_sender.send_modify(|urls| urls[at] = url(&services[at]));
    }
    while let Some(ended) = clients.join_next().await {
        responses.extend(ended.expect("the client's responses"));
    }
    let mut answers: BTreeMap<String, Vec<Bytes>> = BTreeMap::new();
    for (key, answer) in responses {
        answers.entry(key).or_default().push(answer);
    }
    assert_eq!(answers.len(), KEYS);
    let caller = Caller::new();
    let output = until_effects(&caller, services[0].url("orders"), &done(KEYS)).await;
    assert_eq!(output, done(KEYS), "orders = keys, effects = orders in every group");
    let mut orders: Vec<String> = Vec::new();
    for (key, responses) in &answers {
        // The last process may not have handled any of these calls.
        let last = services.last().expect("one").url("orders");
        let again = caller.place(last, key, TEA).await;
        assert!(again.replayed(), "{key}: {}", again.text());
        assert!(responses.iter().all(|answer| *answer == again.body), "{key}: one answer");
        orders.push(again.order_id());
    }
    orders.sort();
    orders.dedup();
    assert_eq!(orders.len(), KEYS, "no two keys have one order");
    let ids = orders.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(", ");
    let there = format!("SELECT COUNT(*) FROM orders WHERE public_id IN ({ids})");
    assert_eq!(fixture.number(&there).await, count(KEYS), "and every response has its own order");
    assert_eq!(
        caller.get(&format!("{}/effects", services[0].url("orders"))).await.text(),
        done(KEYS),
        "and nothing came of asking again"
    );
    let handled = fixture.handled().await;
    assert_eq!(handled, count(3 * KEYS), "and no effect hides a missing one");
    drop(services);
    fixture.remove().await;
}

fn count(things: usize) -> i64 {
    i64::try_from(things).expect("few")
}

/// Places the orders of one client, each until it is answered, and returns the responses.
async fn client(
    number: usize,
    mut urls: watch::Receiver<Urls>,
    progress: Arc<Progress>,
) -> Vec<(String, Bytes)> {
    let (caller, mut responses) = (Caller::new(), Vec::new());
    for key in (number % CLIENTS..KEYS).step_by(CLIENTS).map(|key| format!("key-{key}")) {
        let end = Instant::now() + 2 * PATIENCE;
        let answer = loop {
            let at = number % urls.borrow().len();
            let known = urls.wait_for(|urls| urls[at].is_some()).await.expect("told")[at].clone();
            let url = known.expect("waited for");
            let placed = caller.try_place(&url, &key, TEA);
            match timeout(PATIENCE, placed).await.expect("an answer, or a cut connection") {
                Some(answer) if answer.status == 201 => break answer,
                // The call is in progress, failed or interrupted, or the process is down; it is
                // retried.
                Some(answer) => assert!(
                    matches!(answer.status, 409 | 500 | 503) && Instant::now() < end,
                    "{key}: {} {}",
                    answer.status,
                    answer.text()
                ),
                None => {}
            }
            // Retries soon, like an impatient client.
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        responses.push((key, answer.body));
        progress.answered();
    }
    responses
}
