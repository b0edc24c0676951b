//! Private servers that are killed and paused under load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use semel_core::store::ErrorKind;
use semel_core::{AnyStore, Error, Execution, Executor, Wait};
use semel_faults::harness::{command, executor};
use semel_servers::{MariaDb, Options, Postgres, Redis, Server};
use semel_stores::PrivateStore;

const LEASE: Duration = Duration::from_secs(2);
const CLIENTS: usize = 8;
/// How long one call may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(1);

type Start = fn() -> Result<Server, semel_servers::Error>;

fn postgres() -> Result<Server, semel_servers::Error> {
    Postgres::start(Options::new())
}

fn mysql() -> Result<Server, semel_servers::Error> {
    MariaDb::start(Options::new())
}

/// Starts Redis with a flush per command. With `everysec` Redis answers while its writes wait for a
/// slow flush, up to two seconds, so that even the death of the process alone loses acknowledged
/// writes.
fn redis() -> Result<Server, semel_servers::Error> {
    Redis::start(Options::new().flags(["--appendfsync", "always"]))
}

fn with_server<F: Future<Output = ()>>(start: Start, test: impl FnOnce(Server, PrivateStore) -> F) {
    let server = start().expect("a private server");
    semel_testkit::fixture::run(async {
        let private = PrivateStore::on(server.url()).await.expect("a private store");
        test(server, private).await;
    });
}

async fn ask(executor: &Executor<AnyStore>, id: &str) -> Result<Execution<u64>, Error<String>> {
    executor.run(command(id), |_| async { Ok(fastrand::u64(..)) }).await
}

/// Returns whether `error` only means that the store was not reached.
fn is_unreachable(error: &Error<String>) -> bool {
    let known = [ErrorKind::Unavailable, ErrorKind::Ambiguous];
    matches!(error, Error::Store(error) if known.contains(&error.kind()))
}

/// Clients that record every acknowledged result until they are stopped.
struct Load {
    over: Arc<AtomicBool>,
    failures: Arc<AtomicUsize>,
    acknowledged: Arc<Mutex<HashMap<String, u64>>>,
    clients: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(executor: &Executor<AnyStore>) -> Self {
        let mut load = Self {
            over: Arc::default(),
            failures: Arc::default(),
            acknowledged: Arc::default(),
            clients: Vec::new(),
        };
        for client in 0..CLIENTS {
            let (executor, over) = (executor.clone(), Arc::clone(&load.over));
            let (failures, acknowledged) =
                (Arc::clone(&load.failures), Arc::clone(&load.acknowledged));
            load.clients.push(tokio::spawn(async move {
                let mut n = 0;
                while !over.load(Ordering::SeqCst) {
                    n += 1;
                    let id = format!("load-{client}-{n}");
                    match ask(&executor, &id).await {
                        Ok(Execution::Executed { value, receipt }) if receipt.recorded => {
                            acknowledged.lock().expect("no client panicked").insert(id, value);
                        }
                        // The work ran, and its caller got the error that the outcome is not
                        // recorded.
                        Ok(_) => {}
                        Err(error) => {
                            assert!(is_unreachable(&error), "{error}");
                            failures.fetch_add(1, Ordering::SeqCst);
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    }
                }
            }));
        }
        load
    }

    /// Waits until `count` more results were acknowledged.
    async fn more(&self, count: usize) {
        let goal = self.len() + count;
        let limit = Instant::now() + Duration::from_secs(180);
        while self.len() < goal {
            assert!(Instant::now() < limit, "{} of {goal} answers", self.len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until another client got a failure.
    async fn failed(&self) {
        let before = self.failures.load(Ordering::SeqCst);
        let limit = Instant::now() + Duration::from_secs(180);
        while self.failures.load(Ordering::SeqCst) == before {
            assert!(Instant::now() < limit, "no client noticed that the server was killed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn len(&self) -> usize {
        self.acknowledged.lock().expect("no client panicked").len()
    }

    async fn stop(self) -> (HashMap<String, u64>, usize) {
        self.over.store(true, Ordering::SeqCst);
        for client in self.clients {
            client.await.expect("only store errors");
        }
        let acknowledged = self.acknowledged.lock().expect("no client panicked").clone();
        (acknowledged, self.failures.load(Ordering::SeqCst))
    }
}

fn killed(start: Start) {
    with_server(start, |mut server, private| async move {
        let backend = private.backend().clone().timeout(PATIENCE);
        let load = Load::start(&executor(backend.open().await.expect("a store"), LEASE));
        for _ in 0..2 {
            load.more(50).await;
            server.kill9().expect("killed");
            assert!(server.pid().is_none(), "the server survived");
            load.failed().await;
            server.restart().expect("restarted");
        }
        load.more(50).await;
        let (acknowledged, failures) = load.stop().await;
        assert!(failures > 1, "{failures} failures for two deaths");

        // A new process without a cache repeats all keys, with longer timeouts.
        let fresh = executor(private.backend().open().await.expect("a store"), LEASE);
        let mut lost = 0;
        for (id, value) in &acknowledged {
            let answer = ask(&fresh, id).await.expect("an answer");
            lost += usize::from(!answer.replayed() || answer.value() != Some(value));
        }
        assert_eq!(lost, 0, "of {} acknowledged answers are lost", acknowledged.len());
    });
}

mod faults_a_killed_server_loses_no_acknowledged_completion {
    use super::killed;

    #[test]
    fn postgres() {
        killed(super::postgres);
    }

    #[test]
    fn mysql() {
        killed(super::mysql);
    }

    #[test]
    fn redis() {
        killed(super::redis);
    }
}

fn paused(start: Start) {
    with_server(start, |mut server, private| async move {
        let backend = private.backend().clone().timeout(PATIENCE * 3);
        let executor = executor(backend.open().await.expect("a store"), LEASE);
        // A busy machine may take longer than the limit even before the pause.
        while let Err(error) = ask(&executor, "before").await {
            assert!(is_unreachable(&error), "{error}");
        }
        server.pause().expect("paused");
        assert!(!server.answers(Duration::from_millis(200)), "the server is not paused");
        let since = Instant::now();
        let refused = ask(&executor, "during").await;
        let took = since.elapsed();
        assert!(refused.as_ref().is_err_and(is_unreachable), "{refused:?}");
        assert!(took < Duration::from_secs(60), "an answer after {took:?}");

        server.resume().expect("resumed");
        let wait = Wait::Deadline(LEASE + Duration::from_secs(60));
        for id in ["during", "after"] {
            let since = Instant::now();
            loop {
                let again =
                    executor.run(command(id).wait(wait), |_| async { Ok::<_, String>(1u64) });
                match again.await {
                    Ok(answer) if answer.value().is_some() => break,
                    other => assert!(since.elapsed() < LEASE * 60, "{id} does not heal: {other:?}"),
                }
            }
        }
    });
}

mod faults_a_paused_server_is_a_typed_error_in_bounded_time {
    use super::paused;

    #[test]
    fn postgres() {
        paused(super::postgres);
    }

    #[test]
    fn mysql() {
        paused(super::mysql);
    }

    #[test]
    fn redis() {
        paused(super::redis);
    }
}
