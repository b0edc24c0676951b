//! Callers that are answered before their operation has ended, and ask for its outcome later.
//!
//! The response names the operation and nothing else. A [pointer](pointer) in the store leads from
//! the operation's id to its key, for the same tenant and principal only.

mod pointer;
pub(crate) mod status;

use std::future::Future;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::{self, Either};
use http::Response;
use semel_core::{Error, Executor, Key, OperationId, Served, Store, Wait};
use tokio::sync::oneshot;

use crate::protocol::{Protocol, RespondAsync, Route};

/// The attempt's side of the start: it says that it has begun, and learns whether its caller left.
pub(crate) struct Start {
    notify: oneshot::Sender<OperationId>,
    detached: Detached,
}

/// The caller's side of the start.
pub(crate) struct Started {
    notified: oneshot::Receiver<OperationId>,
    detached: Detached,
}

/// Whether the caller was answered before the attempt ended. Caller and attempt agree on it: the
/// outcome for a detached caller is always stored, and a caller whose response will not be stored
/// is never detached.
#[derive(Clone, Default)]
pub(crate) struct Detached(Arc<OnceLock<bool>>);

impl Detached {
    /// Detaches the caller; `false` if the attempt has ended and its response will not be stored.
    fn detach(&self) -> bool {
        *self.0.get_or_init(|| true)
    }

    /// Returns whether the caller was detached, for good.
    pub(crate) fn decide(&self) -> bool {
        *self.0.get_or_init(|| false)
    }
}

/// Connects an attempt with its caller.
pub(crate) fn start() -> (Start, Started) {
    let (notify, notified) = oneshot::channel();
    let detached = Detached::default();
    (Start { notify, detached: detached.clone() }, Started { notified, detached })
}

impl Start {
    /// Notifies the caller that the attempt has begun.
    pub(crate) fn notify(self, id: OperationId) -> Detached {
        let _ = self.notify.send(id);
        self.detached
    }
}

/// How long a repeat of a request that is running waits for it.
pub(crate) fn wait_for_rival(wish: &RespondAsync) -> Wait {
    if wish.wait.is_zero() { Wait::No } else { Wait::UpTo(wish.wait) }
}

/// Answers as soon as the attempt has begun and its pointer is written; otherwise returns what
/// the executor says.
pub(crate) async fn serve<P: Protocol, S: Store, A>(
    wish: RespondAsync,
    executor: &Executor<S>,
    (key, route): (&Key, &Route<P>),
    started: Started,
    serving: impl Future<Output = Result<Served<A>, Error>>,
) -> Result<Response<Bytes>, Result<Served<A>, Error>> {
    let mut serving = std::pin::pin!(serving);
    let accepted = |id| (wish.accepted)(id, route.rules.retry_after);
    // Polled beside everything that is waited for here: an attempt may have no task of its own
    // (`Command::attended`), and hold the store's only connection.
    let id = tokio::select! {
        biased;
        served = &mut serving => match served {
            // Another caller runs it: this one can ask for the outcome as well.
            Ok(Served::InProgress { operation_id: Some(id), .. }) => id,
            served => return Err(served),
        },
        Ok(id) = started.notified => {
            let waiting = tokio::time::timeout(wish.wait, &mut serving);
            if !wish.wait.is_zero() && let Ok(served) = waiting.await {
                return Err(served);
            }
            if !started.detached.detach() {
                return Err(serving.await);
            }
            let pointing = std::pin::pin!(pointer::write(executor, (key, route), id));
            // Without a pointer the operation could not be found: the caller waits after all.
            return match future::select(pointing, serving).await {
                Either::Left((Ok(()), _)) => Ok(accepted(id)),
                Either::Left((Err(_), serving)) => Err(serving.await),
                Either::Right((served, pointing)) => {
                    pointing.await.map(|()| accepted(id)).map_err(|_| served)
                }
            };
        }
    };
    match pointer::write(executor, (key, route), id).await {
        Ok(()) => Ok(accepted(id)),
        Err(_) => Err(Ok(Served::InProgress { operation_id: Some(id), lease_remaining: None })),
    }
}
