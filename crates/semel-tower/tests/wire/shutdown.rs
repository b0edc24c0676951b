//! Tests of a service that shuts down while requests run.

use std::time::Duration;

use crate::backend::{Backend, Protocol};
use crate::raw::{Wire, keyed};
use crate::shop::Shop;

/// A grace period that is longer than any test.
const GRACE: Duration = Duration::from_secs(80);

/// Sends a request under `k-1` on a new connection, and waits until it has reached its handler.
async fn running(shop: &Shop) -> Wire {
    let mut wire = shop.connect().await;
    wire.send(&keyed("/waiting", "k-1", b"{}")).await;
    shop.reached(1).await;
    wire
}

async fn a_request_under_way_is_finished_and_new_ones_are_sent_elsewhere<G: Backend>(backend: G) {
    let executor = backend.executor().await;
    let shop = Shop::with(executor.clone()).await;
    let mut early = running(&shop).await;
    let closing = tokio::spawn(async move { executor.shutdown(GRACE).await });
    let mut late = shop.connect().await;
    // Some requests may arrive before the shutdown.
    let mut come = 0;
    let (refused, answer) = loop {
        let key = format!("late-{come}");
        late.send(&keyed("/orders", &key, b"{}")).await;
        let answer = late.answer().await.expect("the connection goes on");
        if answer.status != 200 {
            break (key, answer);
        }
        come += 1;
    };
    assert_eq!((answer.status, answer.problem().as_str()), (503, "shutting-down"));
    assert_eq!((answer.all("retry-after"), answer.closes()), (vec!["1"], false));
    assert_eq!(shop.journal.times(&refused), 0);
    shop.release();
    let answer = early.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.replayed()), (200, false));
    assert!(closing.await.expect("it ends").graceful);

    // Another process has the response, and accepts the refused request.
    let next = Shop::with(backend.executor().await).await;
    next.release();
    assert!(next.ask(Protocol::H1, "/waiting", "k-1").await.replayed());
    assert!(!next.ask(Protocol::H1, "/orders", &refused).await.replayed());
    assert_eq!((shop.done.times("k-1"), next.journal.times("k-1")), (1, 0));
}

async fn a_request_that_outlasts_the_grace_is_released<G: Backend>(backend: G) {
    let executor = backend.executor().await;
    let shop = Shop::with(executor.clone()).await;
    let mut early = running(&shop).await;
    assert!(!executor.shutdown(Duration::ZERO).await.graceful);
    let answer = early.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (503, "shutting-down"));
    shop.release();

    // The key is free for another process at once.
    let next = Shop::with(backend.executor().await).await;
    next.release();
    let answer = next.ask(Protocol::H1, "/waiting", "k-1").await;
    assert_eq!((answer.status.as_u16(), answer.replayed()), (200, false));
    assert_eq!((shop.done.times("k-1"), next.done.times("k-1")), (0, 1));
}

async fn a_caller_that_left_before_the_shutdown_finds_the_response_after_it<G: Backend>(
    backend: G,
) {
    let executor = backend.executor().await;
    let shop = Shop::with(executor.clone()).await;
    running(&shop).await.reset();
    shop.left(1).await;
    let closing = tokio::spawn(async move { executor.shutdown(GRACE).await });
    shop.release();
    assert!(closing.await.expect("it ends").graceful);
    let next = Shop::with(backend.executor().await).await;
    assert!(next.ask(Protocol::H1, "/waiting", "k-1").await.replayed());
    assert_eq!((shop.done.times("k-1"), next.journal.times("k-1")), (1, 0));
}

mod on {
    use super::{
        a_caller_that_left_before_the_shutdown_finds_the_response_after_it,
        a_request_that_outlasts_the_grace_is_released,
        a_request_under_way_is_finished_and_new_ones_are_sent_elsewhere,
    };

    macro_rules! on {
        ($($store:ident $backend:ident)*) => {$(
            crate::backend::tests_on! {
                $store $backend
                a_request_under_way_is_finished_and_new_ones_are_sent_elsewhere
                a_request_that_outlasts_the_grace_is_released
                a_caller_that_left_before_the_shutdown_finds_the_response_after_it
            }
        )*};
    }

    on! { memory Memory sqlite Sqlite postgres Postgres mariadb MariaDb redis Redis }
}
