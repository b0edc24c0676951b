//! Tests of many duplicates of one request at once.

use std::time::Duration;

use semel_core::Wait;
use semel_tower::http::Rules;

use crate::backend::{Answer, Backend, Memory, Server, on_every_store, post, run};
use crate::support::{Runs, serve};

const MANY: usize = 64;

/// Sends the same request `MANY` times at once, to each server in turn.
async fn at_once(servers: &[&Server]) -> Vec<Answer> {
    let sending: Vec<_> = (0..MANY)
        .map(|n| servers[n % servers.len()].sending(post("/orders", "k", r#"{"amount":1}"#)))
        .collect();
    let mut answers = Vec::new();
    for sent in sending {
        answers.push(sent.await.expect("an answer"));
    }
    answers
}

async fn slowly<G: Backend>(backend: &G, rules: Rules) -> (Server, Runs) {
    serve(backend, rules, |call| async move {
        // Long enough for some duplicates to arrive in the meantime; the outcome does not depend on
        // it.
        tokio::time::sleep(Duration::from_millis(20)).await;
        call.created()
    })
    .await
}

/// Checks that one response comes from the handler, and that every other is its replay or
/// `in-progress`.
fn one_ran(answers: &[Answer]) {
    let own: Vec<_> =
        answers.iter().filter(|answer| answer.status == 201 && !answer.replayed()).collect();
    assert_eq!(own.len(), 1, "{answers:?}");
    for answer in answers {
        if answer.status == 201 {
            assert_eq!(answer.body, own[0].body);
        } else {
            assert_eq!(
                (answer.status.as_u16(), answer.problem().as_deref()),
                (409, Some("in-progress"))
            );
            assert!(answer.header("retry-after").is_some());
        }
    }
}

async fn of_many_duplicates_one_runs<G: Backend>(backend: G) {
    let (server, runs) = slowly(&backend, Rules::new()).await;
    one_ran(&at_once(&[&server]).await);
    assert_eq!(runs.count(), 1);
}

async fn many_duplicates_that_wait_get_one_answer<G: Backend>(backend: G) {
    let rules = Rules::new().wait(Wait::UpTo(Duration::from_secs(60)));
    let (server, runs) = slowly(&backend, rules).await;
    let answers = at_once(&[&server]).await;
    assert!(answers.iter().all(|answer| answer.status == 201), "{answers:?}");
    one_ran(&answers);
    assert_eq!(runs.count(), 1);
}

async fn of_many_duplicates_at_two_processes_one_runs<G: Backend>(backend: G) {
    let (here, ran_here) = slowly(&backend, Rules::new()).await;
    let (there, ran_there) = slowly(&backend, Rules::new()).await;
    one_ran(&at_once(&[&here, &there]).await);
    assert_eq!(ran_here.count() + ran_there.count(), 1);
}

async fn many_duplicates_that_wait_at_two_processes_get_one_answer<G: Backend>(backend: G) {
    let rules = Rules::new().wait(Wait::UpTo(Duration::from_secs(60)));
    let (here, ran_here) = slowly(&backend, rules.clone()).await;
    let (there, ran_there) = slowly(&backend, rules).await;
    let answers = at_once(&[&here, &there]).await;
    assert!(answers.iter().all(|answer| answer.status == 201), "{answers:?}");
    one_ran(&answers);
    assert_eq!(ran_here.count() + ran_there.count(), 1);
}

#[test]
fn a_store_accepts_exactly_as_many_keys_as_its_capacity() {
    run(async {
        let backend = Memory::for_keys(16);
        let (server, runs) = slowly(&backend, Rules::new()).await;
        let sending: Vec<_> =
            (0..MANY).map(|n| server.sending(post("/orders", &format!("k-{n}"), "{}"))).collect();
        let (mut accepted, mut refused) = (0, 0);
        for sent in sending {
            let answer = sent.await.expect("an answer");
            match answer.problem().as_deref() {
                None => accepted += 1,
                Some("store-full") => refused += 1,
                Some(other) => panic!("{other}"),
            }
        }
        assert_eq!((accepted, refused, runs.count()), (16, MANY - 16, 16));
    });
}

#[test]
fn a_duplicate_may_wait_at_a_store_that_is_full() {
    run(async {
        let backend = Memory::for_keys(1);
        let rules = Rules::new().wait(Wait::UpTo(Duration::from_secs(60)));
        let (server, runs) = slowly(&backend, rules).await;
        let answers = at_once(&[&server]).await;
        assert!(answers.iter().all(|answer| answer.status == 201), "{answers:?}");
        one_ran(&answers);
        assert_eq!(runs.count(), 1);
    });
}

on_every_store! {
    of_many_duplicates_one_runs,
    many_duplicates_that_wait_get_one_answer,
    of_many_duplicates_at_two_processes_one_runs,
    many_duplicates_that_wait_at_two_processes_get_one_answer,
}
