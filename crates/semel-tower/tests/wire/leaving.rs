//! Tests of callers that leave, at any moment and in any manner, and retry.
//!
//! Every request is abandoned once and repeated until there is a response. The effects are counted
//! in a separate ledger, which accepts the same effect twice.

mod caller;
mod request_state;
mod service;
mod tally;

use std::fmt::Display;
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use semel_core::testing::{Guard, SABOTAGE};
use semel_testkit::effects::Effect;

use self::service::LeavingService;
use self::tally::Tally;
use crate::backend::{AtomicBackend, Backend, Protocol, Server};

/// The variable with the number of requests. Default 1,000, or 500 for atomic handlers.
const REQUESTS: &str = "SEMEL_WIRE_REQUESTS";
/// The variable with the seed of random choices. Default: a random seed.
const SEED: &str = "SEMEL_WIRE_SEED";
/// The variable with the time that a second request waits for the first one's response. Default: a
/// minute.
const PATIENCE: &str = "SEMEL_WIRE_PATIENCE_MS";
/// The number of concurrent callers.
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

/// Runs all callers: each sends its request, leaves, and retries.
async fn all_callers_leave(service: &Arc<LeavingService>, server: &Server, requests: u64) {
    let address = server.address();
    futures_util::stream::iter(0..requests)
        .map(|n| tokio::spawn(caller::leave_and_return(Arc::clone(service), address, n)))
        .buffer_unordered(CALLERS)
        .for_each(async |ended| ended.expect("a caller ends"))
        .await;
}

/// Checks that no effect is doubled or lost, no claim is stuck, all responses are the same, and the
/// faults happened.
fn judge(service: &LeavingService, effects: &[Effect], requests: u64) {
    let tally = Tally::of(service, effects);
    let Tally { findings, left, stuck, .. } = &tally;
    let counts = (findings.doubled, findings.lost, findings.never_done, *stuck);
    assert_eq!(counts, (0, 0, 0, 0), "{tally}");
    assert_eq!((findings.violations(), findings.keys), (0, requests), "{tally}");
    assert_eq!(effects.len() as u64, requests, "{tally}");
    // Each moment is chosen one time in six; half of that allows for chance.
    for (moment, times) in left {
        assert!(*times > requests / 12, "left {moment:?} only {times} times: {tally}");
    }
    assert!(tally.while_running > requests / 12, "{tally}");
    assert!(tally.noticed > requests / 12, "{tally}");
}

async fn a_caller_that_leaves_and_returns_finds_it_done_once<G: Backend>(backend: G) {
    let requests = setting(REQUESTS, || 1_000);
    let service = Arc::new(LeavingService::open(setting(SEED, || fastrand::u64(..))));
    let router = LeavingService::fenced(&service, backend.executor().await);
    let server = Server::speaking(Protocol::H1, router).await;
    all_callers_leave(&service, &server, requests).await;
    judge(&service, &service.effects(), requests);
}

mod fenced {
    use super::a_caller_that_leaves_and_returns_finds_it_done_once;
    crate::backend::tests_on! { memory Memory a_caller_that_leaves_and_returns_finds_it_done_once }
    crate::backend::tests_on! { sqlite Sqlite a_caller_that_leaves_and_returns_finds_it_done_once }
    crate::backend::tests_on! { postgres Postgres a_caller_that_leaves_and_returns_finds_it_done_once }
    crate::backend::tests_on! { mariadb MariaDb a_caller_that_leaves_and_returns_finds_it_done_once }
    crate::backend::tests_on! { redis Redis a_caller_that_leaves_and_returns_finds_it_done_once }
}

async fn a_caller_that_leaves_and_returns_finds_it_committed_once<G: AtomicBackend>(backend: G) {
    let requests = setting(REQUESTS, || 500);
    let service = Arc::new(LeavingService::open(setting(SEED, || fastrand::u64(..))));
    let router = LeavingService::atomic::<G>(&service, backend.executor().await);
    let server = Server::speaking(Protocol::H1, router).await;
    all_callers_leave(&service, &server, requests).await;
    let row = |key| {
        let (operation, value) = (String::new(), String::new());
        Effect { key, operation, attempt: 1, fence: 1, value }
    };
    let effects: Vec<_> = backend.rows().await.into_iter().map(row).collect();
    judge(&service, &effects, requests);
}

mod atomic {
    use super::a_caller_that_leaves_and_returns_finds_it_committed_once;
    crate::backend::on_every_database! { a_caller_that_leaves_and_returns_finds_it_committed_once, }
}

/// Runs the same test in a process in which attempts do not continue in a separate task, and checks
/// that it fails.
async fn fails_without_a_separate_task(store: &str) {
    let test =
        format!("leaving::fenced::{store}::a_caller_that_leaves_and_returns_finds_it_done_once");
    let program = std::env::current_exe().expect("this test has a program");
    let child = tokio::process::Command::new(program)
        .args(["--exact", &test, "--test-threads", "1"])
        .env(SABOTAGE, Guard::Spawn.name())
        .env(REQUESTS, "200")
        // A request that is stuck stays stuck.
        .env(PATIENCE, "1500")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("the program runs");
    let output = String::from_utf8_lossy(&[child.stdout, child.stderr].concat()).into_owned();
    assert_eq!(child.status.code(), Some(101), "the test did not fail: {output}");
    assert!(output.contains("1 failed"), "{output}");
    let stuck = output.split(" stuck").next().and_then(|before| before.rsplit(' ').next());
    let stuck = stuck.and_then(|number| number.parse::<u64>().ok()).unwrap_or_default();
    assert!(stuck > 0, "the test failed for another reason: {output}");
}

#[test]
fn an_attempt_without_a_separate_task_strands_its_claim_in_memory() {
    crate::backend::run(fails_without_a_separate_task("memory"));
}

#[test]
fn an_attempt_without_a_separate_task_strands_its_claim_in_sqlite() {
    crate::backend::run(fails_without_a_separate_task("sqlite"));
}
