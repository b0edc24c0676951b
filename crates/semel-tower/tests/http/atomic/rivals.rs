//! Tests of duplicates that arrive while a transaction is open.

use std::time::Duration;

use axum::Router;
use axum::routing::post as on_post;
use semel_core::Wait;
use semel_sql::postgres::PgStore;
use semel_tower::axum::Tx;
use semel_tower::http::Rules;

use super::{layer, writing};
use crate::backend::{
    Answer, AtomicBackend, Backend, Postgres, Server, get, on_every_database, post, run,
};
use crate::support::Gate;

fn count(answers: &[Answer], met: impl Fn(&Answer) -> bool) -> usize {
    answers.iter().filter(|answer| met(answer)).count()
}

async fn at_once(servers: &[&Server]) -> Vec<Answer> {
    let sending: Vec<_> =
        (0..64).map(|n| servers[n % servers.len()].sending(post("/orders", "k", "[1]"))).collect();
    let mut answers = Vec::new();
    for sent in sending {
        answers.push(sent.await.expect("an answer"));
    }
    answers
}

async fn many_duplicates_leave_one_row<G: AtomicBackend>(backend: G) {
    let (server, runs) = writing(&backend, Rules::new().required(), 201).await;
    let answers = at_once(&[&server]).await;
    assert_eq!(count(&answers, |answer| answer.status == 201 && !answer.replayed()), 1);
    assert_eq!(count(&answers, |answer| answer.status == 201 || answer.status == 409), 64);
    assert_eq!((runs.count(), backend.rows().await), (1, vec!["[1]".to_owned()]));
}

async fn many_duplicates_that_wait_leave_one_row<G: AtomicBackend>(backend: G) {
    let rules = Rules::new().required().wait(Wait::UpTo(Duration::from_secs(60)));
    let (server, runs) = writing(&backend, rules, 201).await;
    let answers = at_once(&[&server]).await;
    assert_eq!(count(&answers, |answer| answer.status == 201 && answer.text() == "run 1"), 64);
    assert_eq!((runs.count(), backend.rows().await), (1, vec!["[1]".to_owned()]));
}

async fn many_duplicates_at_two_processes_leave_one_row<G: AtomicBackend>(backend: G) {
    let (here, _) = writing(&backend, Rules::new(), 201).await;
    let (there, _) = writing(&backend, Rules::new(), 201).await;
    let answers = at_once(&[&here, &there]).await;
    assert_eq!(count(&answers, |answer| answer.status == 201 && !answer.replayed()), 1);
    assert_eq!(count(&answers, |answer| answer.status == 201 || answer.status == 409), 64);
    assert_eq!(backend.rows().await, ["[1]"]);
}

#[test]
fn another_process_finds_that_a_transaction_is_open() {
    run(async {
        let backend = Postgres::open().await;
        let gate = Gate::new();
        let waits = gate.clone();
        let handler = on_post(move |Tx(mut unit): Tx<PgStore>, note: String| {
            let gate = waits.clone();
            async move {
                Postgres::insert(unit.conn(), &note).await;
                gate.pass().await;
                "done"
            }
        });
        let held = Router::new().route("/orders", handler).layer(layer(backend.executor().await));
        let here = Server::start(&backend, held).await;
        let (there, others) = writing(&backend, Rules::new(), 201).await;
        let first = here.sending(post("/orders", "k", "[1]"));
        gate.reached().await;
        for server in [&here, &there] {
            let repeat = server.send(post("/orders", "k", "[1]")).await;
            assert_eq!(
                (repeat.status.as_u16(), repeat.problem().as_deref()),
                (409, Some("in-progress"))
            );
        }
        assert_eq!(
            here.send(post("/orders", "k", "[2]")).await.status,
            422,
            "this process knows the open transaction"
        );
        assert_eq!(
            there.send(post("/orders", "other", "[2]")).await.status,
            201,
            "other keys are not blocked"
        );
        gate.open();
        assert_eq!(first.await.expect("an answer").text(), "done");
        assert_eq!(there.send(post("/orders", "k", "[1]")).await.text(), "done");
        assert_eq!(
            (others.count(), backend.rows().await),
            (1, vec!["[1]".to_owned(), "[2]".to_owned()])
        );
    });
}

#[test]
fn an_asynchronous_transaction_is_known_while_it_is_open() {
    run(async {
        let backend = Postgres::open().await;
        let gate = Gate::new();
        let waits = gate.clone();
        let handler = on_post(move |Tx(mut unit): Tx<PgStore>, note: String| {
            let gate = waits.clone();
            async move {
                Postgres::insert(unit.conn(), &note).await;
                gate.pass().await;
                "done"
            }
        });
        let router = Router::new().route("/orders", handler).layer(layer(backend.executor().await));
        let server = Server::start(&backend, router).await;
        let mut request = post("/orders", "k", "[1]");
        request.headers_mut().insert("prefer", "respond-async".parse().expect("a header value"));
        let accepted = server.send(request).await;
        assert_eq!(accepted.status, 202);
        let place = accepted.header("location").expect("where to ask").to_owned();
        assert_eq!(server.send(get(&place)).await.status, 202);
        gate.open();
        loop {
            let answer = server.send(get(&place)).await;
            if answer.status != 202 {
                assert_eq!((answer.status.as_u16(), answer.text()), (200, "done"));
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(backend.rows().await, ["[1]"]);
    });
}

on_every_database! {
    many_duplicates_leave_one_row,
    many_duplicates_that_wait_leave_one_row,
    many_duplicates_at_two_processes_leave_one_row,
}
