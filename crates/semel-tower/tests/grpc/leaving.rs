//! Callers whose deadline passes or who leave: the work goes on, and its answer waits for them.

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
use crate::bank::{Bank, Gate, Visit};
use crate::desk::{Desk, is_replayed, keyed, told, wired};

fn patient() -> GrpcRules {
    GrpcRules::new().wait(Wait::UpTo(Duration::from_secs(60)))
}

async fn a_deadline_that_passes_ends_the_caller_and_not_the_work<G: Backend>(backend: G) {
    let gate = Gate::new();
    let desk = Desk::open(&backend, patient(), gate.bank()).await;
    let mut teller = desk.teller().await;
    // On a busy machine the deadline may pass before the call has arrived: then it never ran.
    let mut tries = 0;
    let key = loop {
        tries += 1;
        let key = format!("k-{tries}");
        let mut request = keyed(&key, 100);
        request.set_timeout(Duration::from_millis(300));
        let status = teller.charge(request).await.expect_err("the gate is shut");
        assert!(matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded), "{status:?}");
        if gate.visits(&key) == 1 {
            break key;
        }
    };
    desk.departures.noticed(&key).await;
    gate.stay_open();
    let again = teller.charge(keyed(&key, 100)).await.expect("it went on");
    assert!(is_replayed(again.metadata()));
    assert_eq!(gate.visits(&key), 1);
}

async fn a_deadline_that_only_the_server_keeps_does_the_same<G: Backend>(backend: G) {
    let gate = Gate::new();
    let desk = Desk::open(&backend, patient(), gate.bank()).await;
    let mut tries = 0;
    let key = loop {
        tries += 1;
        let key = format!("k-{tries}");
        let mut request = wired(&key, 100);
        request.headers_mut().insert("grpc-timeout", "300m".parse().expect("a value"));
        let answer = desk.send(request).await;
        assert!(matches!(answer.header("grpc-status"), Some("1" | "4")), "{answer:?}");
        if gate.visits(&key) == 1 {
            break key;
        }
    };
    desk.departures.noticed(&key).await;
    gate.stay_open();
    let again = desk.charge(keyed(&key, 100)).await.expect("it went on");
    assert!(is_replayed(again.metadata()));
    assert_eq!(gate.visits(&key), 1);
}

async fn a_caller_whose_connection_ends_finds_the_answer_later<G: Backend>(backend: G) {
    let gate = Gate::new();
    let desk = Desk::open(&backend, patient(), gate.bank()).await;
    let mut teller = desk.teller().await;
    {
        let mut leaving = std::pin::pin!(teller.charge(keyed("k", 100)));
        tokio::select! {
            _ = &mut leaving => panic!("the gate is shut"),
            () = gate.reached() => {}
        }
    }
    drop(teller);
    desk.departures.noticed("k").await;
    gate.open();
    let again = desk.charge(keyed("k", 100)).await.expect("it went on");
    assert_eq!((told(&again), desk.runs.count()), ((1, true), 1));
}

/// How many calls are left and made again.
const CALLS: usize = 300;
/// How many at a time.
const CALLERS: usize = 32;

/// When a caller leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// After a random time, be the call on its way, running or answered.
    Sometime(Duration),
    /// While the handler runs, which goes on only when the server has noticed.
    Running,
}

/// One call that is left.
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

    /// The handler's part: something takes time, and then has an effect.
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

    /// The caller's part: it waits for the moment to leave.
    async fn moment(&self) {
        match self.moment {
            Moment::Sometime(span) => tokio::time::sleep(span).await,
            Moment::Running => self.running.acquire().await.expect("not closed").forget(),
        }
    }
}

type Everybody = Arc<Mutex<HashMap<String, Arc<Left>>>>;

async fn leave_and_return(desk: &Desk, everybody: &Everybody, n: usize) -> (Moment, bool, bool) {
    let (key, left) = (format!("k-{n}"), Arc::new(Left::at_random()));
    everybody.lock().expect("not poisoned").insert(key.clone(), Arc::clone(&left));
    let mut teller = desk.teller().await;
    let answered = {
        let mut calling = std::pin::pin!(teller.charge(keyed(&key, 100)));
        tokio::select! {
            answer = &mut calling => Some(answer.expect("paid")),
            () = left.moment() => None,
        }
    };
    // Half of them hang up, the others cancel the call and stay connected.
    let mut teller = if fastrand::bool() {
        drop(teller);
        None
    } else {
        Some(teller)
    };
    if left.moment == Moment::Running {
        desk.departures.noticed(&key).await;
    }
    left.gone.add_permits(1);
    let again = match &mut teller {
        Some(teller) => teller.charge(keyed(&key, 100)).await,
        None => desk.charge(keyed(&key, 100)).await,
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

async fn who_leaves_at_any_time_and_returns_finds_it_done_once<G: Backend>(backend: G) {
    let everybody = Everybody::default();
    let bank = Bank::new({
        let everybody = Arc::clone(&everybody);
        move |visit: Visit| {
            let key = visit.claim().key().id().to_owned();
            let left = Arc::clone(&everybody.lock().expect("not poisoned")[&key]);
            async move {
                left.work().await;
                visit.paid()
            }
        }
    });
    let desk = Desk::open(&backend, patient(), bank).await;
    let visits: Vec<_> = futures_util::stream::iter(0..CALLS)
        .map(|n| leave_and_return(&desk, &everybody, n))
        .buffer_unordered(CALLERS)
        .collect()
        .await;
    let effects: Vec<_> = {
        let everybody = everybody.lock().expect("not poisoned");
        everybody.values().map(|left| left.effects.load(Ordering::SeqCst)).collect()
    };
    let doubled = effects.iter().filter(|times| **times > 1).count();
    let lost = effects.iter().filter(|times| **times == 0).count();
    let stuck = visits.iter().filter(|(_, _, stuck)| *stuck).count();
    assert_eq!((effects.len(), doubled, lost, stuck), (CALLS, 0, 0, 0));
    // One in three leaves while the handler runs; half of that leaves room for chance.
    let running = visits.iter().filter(|visit| visit.0 == Moment::Running && visit.1).count();
    assert!(running > CALLS / 6, "only {running} left while the handler ran");
    assert!(visits.iter().any(|(moment, left, _)| *moment != Moment::Running && *left));
}

on_every_store! {
    a_deadline_that_passes_ends_the_caller_and_not_the_work,
    a_deadline_that_only_the_server_keeps_does_the_same,
    a_caller_whose_connection_ends_finds_the_answer_later,
    who_leaves_at_any_time_and_returns_finds_it_done_once,
}
