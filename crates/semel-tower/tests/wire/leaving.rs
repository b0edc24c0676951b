//! Callers that leave, at any moment and in any manner, and retry.
//!
//! Every request is left once and asked for again until there is an answer. What really happened is
//! counted in a ledger of its own, which would take the same effect twice.

mod desk;
mod office;
mod tally;
mod visit;

use std::fmt::Display;
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use semel_core::testing::{Guard, SABOTAGE};
use semel_testkit::effects::Effect;

use self::office::Office;
use self::tally::Tally;
use crate::backend::{AtomicBackend, Backend, Protocol, Server};

/// How many requests, where not 1,000 (500 where they commit).
const REQUESTS: &str = "SEMEL_WIRE_REQUESTS";
/// Where random choices begin, where not at random.
const SEED: &str = "SEMEL_WIRE_SEED";
/// How long a second request waits for the first one's answer, where not a minute.
const PATIENCE: &str = "SEMEL_WIRE_PATIENCE_MS";
/// How many callers there are at a time.
const CALLERS: usize = 64;

fn setting<T: FromStr<Err: Display>>(name: &str, otherwise: impl FnOnce() -> T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")),
        Err(_) => otherwise(),
    }
}

fn patience() -> Duration {
    Duration::from_millis(setting(PATIENCE, || 60_000))
}

/// Everybody comes, leaves, and comes again.
async fn everybody_leaves(office: &Arc<Office>, server: &Server, requests: u64) {
    let address = server.address();
    futures_util::stream::iter(0..requests)
        .map(|n| tokio::spawn(visit::leave_and_return(Arc::clone(office), address, n)))
        .buffer_unordered(CALLERS)
        .for_each(async |ended| ended.expect("a visit ends"))
        .await;
}

/// Nothing doubled, nothing lost, nobody stuck, every answer the same; and the faults took place.
fn judge(office: &Office, effects: &[Effect], requests: u64) {
    let tally = Tally::of(office, effects);
    let Tally { findings, left, stuck, .. } = &tally;
    let counts = (findings.doubled, findings.lost, findings.never_done, *stuck);
    assert_eq!(counts, (0, 0, 0, 0), "{tally}");
    assert_eq!((findings.violations(), findings.keys), (0, requests), "{tally}");
    assert_eq!(effects.len() as u64, requests, "{tally}");
    // Each moment is one in six; half of that leaves room for chance.
    for (moment, times) in left {
        assert!(*times > requests / 12, "left {moment:?} only {times} times: {tally}");
    }
    assert!(tally.while_running > requests / 12, "{tally}");
    assert!(tally.noticed > requests / 12, "{tally}");
}

async fn who_leaves_and_returns_finds_it_done_once<G: Backend>(backend: G) {
    let requests = setting(REQUESTS, || 1_000);
    let office = Arc::new(Office::open(setting(SEED, || fastrand::u64(..))));
    let router = Office::fenced(&office, backend.executor().await);
    let server = Server::speaking(Protocol::H1, router).await;
    everybody_leaves(&office, &server, requests).await;
    judge(&office, &office.effects(), requests);
}

mod fenced {
    use super::who_leaves_and_returns_finds_it_done_once;
    crate::backend::tests_on! { memory Memory who_leaves_and_returns_finds_it_done_once }
    crate::backend::tests_on! { sqlite Sqlite who_leaves_and_returns_finds_it_done_once }
    crate::backend::tests_on! { postgres Postgres who_leaves_and_returns_finds_it_done_once }
    crate::backend::tests_on! { mariadb MariaDb who_leaves_and_returns_finds_it_done_once }
    crate::backend::tests_on! { redis Redis who_leaves_and_returns_finds_it_done_once }
}

async fn who_leaves_and_returns_finds_it_committed_once<G: AtomicBackend>(backend: G) {
    let requests = setting(REQUESTS, || 500);
    let office = Arc::new(Office::open(setting(SEED, || fastrand::u64(..))));
    let router = Office::atomic::<G>(&office, backend.executor().await);
    let server = Server::speaking(Protocol::H1, router).await;
    everybody_leaves(&office, &server, requests).await;
    let row = |key| {
        let (operation, value) = (String::new(), String::new());
        Effect { key, operation, attempt: 1, fence: 1, value }
    };
    let effects: Vec<_> = backend.rows().await.into_iter().map(row).collect();
    judge(&office, &effects, requests);
}

mod atomic {
    use super::who_leaves_and_returns_finds_it_committed_once;
    crate::backend::on_every_database! { who_leaves_and_returns_finds_it_committed_once, }
}

/// The same test in a process where an attempt is not a task of its own.
async fn goes_red_without_a_task_of_its_own(store: &str) {
    let test = format!("leaving::fenced::{store}::who_leaves_and_returns_finds_it_done_once");
    let program = std::env::current_exe().expect("this test has a program");
    let child = tokio::process::Command::new(program)
        .args(["--exact", &test, "--test-threads", "1"])
        .env(SABOTAGE, Guard::Spawn.name())
        .env(REQUESTS, "200")
        // Whoever is stuck stays stuck.
        .env(PATIENCE, "1500")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("the program runs");
    let said = String::from_utf8_lossy(&[child.stdout, child.stderr].concat()).into_owned();
    assert_eq!(child.status.code(), Some(101), "it did not go red: {said}");
    assert!(said.contains("1 failed"), "{said}");
    let stuck = said.split(" stuck").next().and_then(|before| before.rsplit(' ').next());
    let stuck = stuck.and_then(|number| number.parse::<u64>().ok()).unwrap_or_default();
    assert!(stuck > 0, "it went red for another reason: {said}");
}

#[test]
fn an_attempt_that_is_no_task_of_its_own_strands_its_claim_in_memory() {
    crate::backend::run(goes_red_without_a_task_of_its_own("memory"));
}

#[test]
fn an_attempt_that_is_no_task_of_its_own_strands_its_claim_in_sqlite() {
    crate::backend::run(goes_red_without_a_task_of_its_own("sqlite"));
}
