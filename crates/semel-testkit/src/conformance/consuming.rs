//! Messages that are handled once, and claims that the caller settles itself.
//!
//! These behaviours are guarantees to users, tested with an executor on this store.

use std::time::Duration;

use semel_core::executor::Claimed;
use semel_core::{Consumed, Error, Key, Outcome};
use tokio::sync::oneshot;

use super::work::{PAST_LEASE, Work, command, executor, key, value};
use crate::Fixture;

/// A message is handled once; a failure frees it again; a concurrent consumer gets an error.
pub async fn a_message_is_consumed_once<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let message = Key::message("acme", "MAILER", "m-1").expect("a valid key");
    let keep = Duration::from_secs(60);
    let consume = async |result: Result<(), String>| {
        executor.consume(message.clone(), keep, move |_| async move { result }).await
    };
    let failed = consume(Err("no".into())).await;
    assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
    assert!(
        executor.peek(&message).await.expect("a store").is_none(),
        "a failure frees the message"
    );
    assert_eq!(consume(Ok(())).await.expect("handled"), Consumed::Executed);
    assert_eq!(consume(Err("not run".into())).await.expect("seen"), Consumed::Duplicate);
    fixture.advance(keep + Duration::from_millis(1)).await;
    assert_eq!(consume(Ok(())).await.expect("handled anew"), Consumed::Executed);
}

/// While a message is being handled, another consumer gets `Concurrent` and does not wait.
pub async fn a_message_in_hand_is_refused_to_a_rival<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let message = Key::message("acme", "MAILER", "m-1").expect("a valid key");
    let (release, released) = oneshot::channel::<()>();
    let (running, started) = oneshot::channel();
    let first = tokio::spawn({
        let (executor, message) = (executor.clone(), message.clone());
        async move {
            let work = move |_| async move {
                let _ = running.send(());
                released.await.map_err(|e| e.to_string())
            };
            executor.consume(message, Duration::ZERO, work).await
        }
    });
    started.await.expect("the work starts");
    let rival: Result<Consumed, Error<String>> =
        executor.consume(message.clone(), Duration::ZERO, |_| async { Ok(()) }).await;
    assert!(matches!(rival, Err(Error::Concurrent)), "{rival:?}");
    release.send(()).expect("the work waits");
    assert_eq!(first.await.expect("no panic").expect("handled"), Consumed::Executed);
    let found = executor.peek(&message).await.expect("a store").expect("a marker").record;
    assert_eq!(found.keep, Duration::from_secs(24 * 60 * 60), "zero means the default");
}

/// A message and a command with the same parts are different keys.
pub async fn a_marker_is_never_a_commands_result<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let consumed: Result<Consumed, Error<String>> =
        executor.consume(key(), Duration::ZERO, |_| async { Ok(()) }).await;
    assert_eq!(consumed.expect("handled"), Consumed::Executed);
    assert_eq!(value(&work.run(&executor, command()).await), "run 1");
}

/// Manual claims: complete, fail and release take effect once, and return `None` once the claim is
/// lost.
pub async fn a_claim_by_hand_is_settled_once<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    assert!(executor.peek(&key()).await.expect("a store").is_none(), "never used");
    let grant = async || match executor.claim(command()).await {
        Ok(Claimed::Granted(claim)) => claim,
        other => panic!("a grant, not {other:?}"),
    };
    assert!(grant().await.release().await.expect("a store").is_some());
    assert!(executor.peek(&key()).await.expect("a store").is_none());
    assert!(grant().await.fail("no").await.expect("a store").is_some());
    let zombie = grant().await;
    assert!(matches!(executor.claim(command()).await, Ok(Claimed::InProgress { .. })));
    fixture.advance(PAST_LEASE).await;
    let successor = grant().await;
    assert!(zombie.complete(Outcome::empty()).await.expect("a store").is_none(), "lost");
    let receipt = successor.complete(Outcome::new("text/plain", "yes")).await.expect("a store");
    assert_eq!(receipt.expect("recorded").attempt, 3);
    let Ok(Claimed::Completed { outcome, .. }) = executor.claim(command()).await else {
        panic!("completed");
    };
    assert_eq!((outcome.content_type(), &outcome.body()[..]), ("text/plain", &b"yes"[..]));
}
