//! Tests of processes that die or hang while they hold a claim.

use std::time::Duration;

use semel_core::OnCrash;
use semel_tower::http::Rules;

use crate::backend::{Backend, Server, on_every_store, post};
use crate::support::{Gate, Runs, abandoned, created, executor, layer, order_key, router, serve};

/// A lease that is longer than any test, so that no renewal happens.
const LEASE: Duration = Duration::from_secs(600);

fn long_lease() -> Rules {
    Rules::new().command(|command| command.lease(LEASE))
}

async fn a_claim_of_a_dead_process_is_taken_over_with_its_operation_id<G: Backend>(backend: G) {
    let operation = abandoned(&backend.store().await, &order_key("k"), OnCrash::Rerun).await;
    let (server, runs) = serve(&backend, Rules::new(), |call| async move {
        let (attempt, operation) = call.operation();
        format!("{attempt} {operation}")
    })
    .await;
    let early = server.send(post("/orders", "k", "{}")).await;
    assert_eq!(early.problem().as_deref(), Some("in-progress"));
    assert_eq!(early.json()["operation_id"], operation.to_string());
    assert_eq!(runs.count(), 0);
    backend.advance(Duration::from_secs(31)).await;
    let answer = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, &*format!("2 {operation}")));
}

async fn a_crash_under_hold_is_uncertain_and_not_run_again<G: Backend>(backend: G) {
    let store = backend.store().await;
    abandoned(&store, &order_key("k"), OnCrash::Hold).await;
    let rules = Rules::new().command(|command| command.on_crash(OnCrash::Hold));
    let (server, runs) = serve(&backend, rules, created).await;
    assert_eq!(
        server.send(post("/orders", "k", "{}")).await.problem().as_deref(),
        Some("in-progress")
    );
    backend.advance(Duration::from_secs(31)).await;
    for _ in 0..2 {
        let answer = server.send(post("/orders", "k", "{}")).await;
        assert_eq!((answer.status.as_u16(), answer.problem().as_deref()), (409, Some("uncertain")));
        assert_eq!(answer.header("retry-after"), None);
    }
    assert_eq!(runs.count(), 0);
}

async fn a_server_that_dies_in_the_middle_leaves_its_request_uncertain<G: Backend>(backend: G) {
    let rules = long_lease().command(|command| command.lease(LEASE).on_crash(OnCrash::Hold));
    let gate = Gate::new();
    let (runs, doomed) = (Runs::default(), layer(executor(&backend).await).rules(rules.clone()));
    let router = router(&runs, gate.handler()).layer(doomed);
    // A separate runtime stands for a separate process.
    let process = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("the operating system gives a test its threads");
    let protocol = backend.protocol();
    let server = process.spawn(Server::speaking(protocol, router)).await.expect("it starts");
    let mut client = server.client().await;
    let lost = tokio::spawn(async move { client.begin(post("/orders", "k", "{}")).await });
    gate.reached().await;
    process.shutdown_background();
    assert!(lost.await.expect("the client lives").is_err(), "the connection died with its server");

    backend.advance(LEASE + Duration::from_secs(1)).await;
    let (server, _) = serve(&backend, rules, created).await;
    let answer = server.send(post("/orders", "k", "{}")).await;
    assert_eq!((answer.status.as_u16(), answer.problem().as_deref()), (409, Some("uncertain")));
    assert_eq!(runs.count(), 1);
}

/// Two processes with one store. The first hangs in its handler until its claim has lapsed.
struct Zombie {
    gate: Gate,
    server: Server,
    answer: tokio::task::JoinHandle<crate::backend::Answer>,
}

impl Zombie {
    async fn of<G: Backend>(backend: &G) -> Self {
        let gate = Gate::new();
        let (server, _) = serve(backend, long_lease(), gate.handler()).await;
        let answer = server.sending(post("/orders", "k", "{}"));
        gate.reached().await;
        backend.advance(LEASE + Duration::from_secs(1)).await;
        Self { gate, server, answer }
    }

    /// Lets the first process continue, and returns the response to its caller.
    async fn wakes(self) -> crate::backend::Answer {
        self.gate.open();
        let answer = self.answer.await.expect("an answer");
        drop(self.server);
        answer
    }
}

async fn a_late_handlers_caller_gets_the_response_of_the_takeover<G: Backend>(backend: G) {
    let zombie = Zombie::of(&backend).await;
    let (server, _) =
        serve(&backend, long_lease(), |_| std::future::ready("the second process")).await;
    let winner = server.send(post("/orders", "k", "{}")).await;
    assert_eq!(winner.text(), "the second process");
    let late = zombie.wakes().await;
    assert!(late.replayed());
    assert_eq!(late.text(), "the second process");
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "the second process");
}

async fn a_late_handlers_caller_gets_in_progress_while_another_runs<G: Backend>(backend: G) {
    let zombie = Zombie::of(&backend).await;
    let gate = Gate::new();
    let (server, _) = serve(&backend, long_lease(), gate.handler()).await;
    let winner = server.sending(post("/orders", "k", "{}"));
    gate.reached().await;
    let late = zombie.wakes().await;
    assert_eq!((late.status.as_u16(), late.problem().as_deref()), (409, Some("in-progress")));
    gate.open();
    assert_eq!(winner.await.expect("an answer").status, 201);
}

async fn a_late_handlers_caller_gets_claim_lost<G: Backend>(backend: G) {
    let zombie = Zombie::of(&backend).await;
    let (server, _) = serve(&backend, long_lease(), |call| async move {
        match call.operation().0 {
            2 => Err(http::StatusCode::BAD_GATEWAY),
            attempt => Ok(attempt.to_string()),
        }
    })
    .await;
    assert_eq!(server.send(post("/orders", "k", "{}")).await.status, 502);
    let late = zombie.wakes().await;
    assert_eq!((late.status.as_u16(), late.problem().as_deref()), (409, Some("claim-lost")));
    assert_eq!(late.header("retry-after"), Some("1"));
    // The response was not recorded, so the next attempt is the third.
    assert_eq!(server.send(post("/orders", "k", "{}")).await.text(), "3");
}

on_every_store! {
    a_claim_of_a_dead_process_is_taken_over_with_its_operation_id,
    a_crash_under_hold_is_uncertain_and_not_run_again,
    a_server_that_dies_in_the_middle_leaves_its_request_uncertain,
    a_late_handlers_caller_gets_the_response_of_the_takeover,
    a_late_handlers_caller_gets_in_progress_while_another_runs,
    a_late_handlers_caller_gets_claim_lost,
}
