//! Tests of callers whose deadline passes or who leave: the work goes on, and a repeat gets its
//! response.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use semel_core::Wait;
use semel_tower::grpc::GrpcRules;
use tokio::sync::Semaphore;
use tonic::Code;

use crate::backend::Backend;
use crate::bank::{Bank, Gate, HandlerCall};
use crate::bank_server::{BankServer, is_replayed, keyed, raw_charge, run_and_replayed};

fn patient() -> GrpcRules {
    GrpcRules::new().wait(Wait::UpTo(Duration::from_secs(60)))
}

async fn a_deadline_that_passes_ends_the_wait_and_not_the_work<G: Backend>(backend: G) {
    let gate = Gate::new();
    let server = BankServer::open(&backend, patient(), gate.bank()).await;
    let mut client = server.client().await;
    // On a busy machine the deadline may pass before the call has arrived: then it never ran.
    let mut tries = 0;
    let key = loop {
        tries += 1;
        let key = format!("k-{tries}");
        let mut request = keyed(&key, 100);
        request.set_timeout(Duration::from_millis(300));
        let status = client.charge(request).await.expect_err("the gate is shut");
        assert!(matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded), "{status:?}");
        if gate.calls(&key) == 1 {
            break key;
        }
    };
    server.departures.noticed(&key).await;
    gate.stay_open();
    let again = client.charge(keyed(&key, 100)).await.expect("it went on");
    assert!(is_replayed(again.metadata()));
    assert_eq!(gate.calls(&key), 1);
}

async fn a_deadline_that_only_the_server_keeps_does_the_same<G: Backend>(backend: G) {
    let gate = Gate::new();
    let server = BankServer::open(&backend, patient(), gate.bank()).await;
    let mut tries = 0;
    let key = loop {
        tries += 1;
        let key = format!("k-{tries}");
        let mut request = raw_charge(&key, 100);
        request.headers_mut().insert("grpc-timeout", "300m".parse().expect("a value"));
        let answer = server.send(request).await;
        assert!(matches!(answer.header("grpc-status"), Some("1" | "4")), "{answer:?}");
        if gate.calls(&key) == 1 {
            break key;
        }
    };
    server.departures.noticed(&key).await;
    gate.stay_open();
    let again = server.charge(keyed(&key, 100)).await.expect("it went on");
    assert!(is_replayed(again.metadata()));
    assert_eq!(gate.calls(&key), 1);
}

async fn a_caller_whose_connection_ends_finds_the_answer_later<G: Backend>(backend: G) {
    let gate = Gate::new();
    let server = BankServer::open(&backend, patient(), gate.bank()).await;
    let mut client = server.client().await;
    {
        let mut leaving = std::pin::pin!(client.charge(keyed("k", 100)));
        tokio::select! {
            _ = &mut leaving => panic!("the gate is shut"),
            () = gate.reached() => {}
        }
    }
    drop(client);
    server.departures.noticed("k").await;
    gate.open();
    let again = server.charge(keyed("k", 100)).await.expect("it went on");
    assert_eq!((run_and_replayed(&again), server.runs.count()), ((1, true), 1));
}

/// The number of calls that are abandoned and repeated.
const CALLS: usize = 300;
/// The number of concurrent callers.
const CALLERS: usize = 32;

/// The moment at which a caller leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The caller leaves after a random time; the call may be on its way, running or answered.
    Sometime(Duration),
    /// The caller leaves while the handler runs, which goes on only when the server has noticed it.
    Running,
}

/// One call that its caller abandons.
struct Left {
    moment: Moment,
    work: Duration,
    running: Semaphore,
    gone: Semaphore,
    effects: AtomicU32,
}

impl Left {
    fn at_random() -> Self {
        let millis = |most: u64| Duration::from_micros(fastrand::u64(0..=most * 1_000));
        let moment = match fastrand::u8(0..3) {
            0 => Moment::Running,
            _ => Moment::Sometime(millis(12)),
        };
        let (running, gone) = (Semaphore::new(0), Semaphore::new(0));
        Self { moment, work: millis(6), running, gone, effects: AtomicU32::new(0) }
    }

    /// Runs the handler's part, which takes some time.
    async fn work(&self) {
        self.running.add_permits(1);
        match self.moment {
            Moment::Running => {
                self.gone.acquire().await.expect("not closed").forget();
            }
            Moment::Sometime(_) => tokio::time::sleep(self.work).await,
        }
        self.effects.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits for the moment at which the caller leaves.
    async fn moment(&self) {
        match self.moment {
            Moment::Sometime(span) => tokio::time::sleep(span).await,
            Moment::Running => self.running.acquire().await.expect("not closed").forget(),
        }
    }
}

type AllCalls = Arc<Mutex<HashMap<String, Arc<Left>>>>;

async fn leave_and_return(
    server: &BankServer,
    all_calls: &AllCalls,
    n: usize,
) -> (Moment, bool, bool) {
    let (key, left) = (format!("k-{n}"), Arc::new(Left::at_random()));
    all_calls.lock().expect("not poisoned").insert(key.clone(), Arc::clone(&left));
    let mut client = server.client().await;
    let answered = {
        let mut calling = std::pin::pin!(client.charge(keyed(&key, 100)));
        tokio::select! {
            answer = &mut calling => Some(answer.expect("paid")),
            () = left.moment() => None,
        }
    };
    // Half of the callers close the connection, the others cancel the call and stay connected.
    let mut client = if fastrand::bool() {
        drop(client);
        None
    } else {
        Some(client)
    };
    if left.moment == Moment::Running {
        server.departures.noticed(&key).await;
    }
    left.gone.add_permits(1);
    let again = match &mut client {
        Some(client) => client.charge(keyed(&key, 100)).await,
        None => server.charge(keyed(&key, 100)).await,
    };
    let stuck = match (&answered, &again) {
        (_, Err(_)) => true,
        (Some(first), Ok(again)) => {
            assert_eq!(first.get_ref(), again.get_ref(), "{key}");
            false
        }
        (None, Ok(_)) => false,
    };
    (left.moment, answered.is_none(), stuck)
}

async fn a_caller_that_leaves_at_any_time_and_returns_finds_it_done_once<G: Backend>(backend: G) {
    let all_calls = AllCalls::default();
    let bank = Bank::new({
        let all_calls = Arc::clone(&all_calls);
        move |call: HandlerCall| {
            let key = call.claim().key().id().to_owned();
            let left = Arc::clone(&all_calls.lock().expect("not poisoned")[&key]);
            async move {
                left.work().await;
                call.paid()
            }
        }
    });
    let server = BankServer::open(&backend, patient(), bank).await;
    let results: Vec<_> = futures_util::stream::iter(0..CALLS)
        .map(|n| leave_and_return(&server, &all_calls, n))
        .buffer_unordered(CALLERS)
        .collect()
        .await;
    let effects: Vec<_> = {
        let all_calls = all_calls.lock().expect("not poisoned");
        all_calls.values().map(|left| left.effects.load(Ordering::SeqCst)).collect()
    };
    let doubled = effects.iter().filter(|times| **times > 1).count();
    let lost = effects.iter().filter(|times| **times == 0).count();
    let stuck = results.iter().filter(|(_, _, stuck)| *stuck).count();
    assert_eq!((effects.len(), doubled, lost, stuck), (CALLS, 0, 0, 0));
    // One in three callers leaves while the handler runs; half of that allows for chance.
    let running = results.iter().filter(|result| result.0 == Moment::Running && result.1).count();
    assert!(running > CALLS / 6, "only {running} left while the handler ran");
    assert!(results.iter().any(|(moment, left, _)| *moment != Moment::Running && *left));
}

on_every_store! {
    a_deadline_that_passes_ends_the_wait_and_not_the_work,
    a_deadline_that_only_the_server_keeps_does_the_same,
    a_caller_whose_connection_ends_finds_the_answer_later,
    a_caller_that_leaves_at_any_time_and_returns_finds_it_done_once,
}
