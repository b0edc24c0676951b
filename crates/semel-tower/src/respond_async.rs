//! Callers that get a 202 before their operation has ended, and look its outcome up later.
//!
//! The 202 contains only the id of the operation. A [pointer](pointer) in the store leads from that
//! id to the key of the operation, for the same tenant and principal only.

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

/// The sending half of the start signal. The attempt reports with it that it has begun, and finds
/// out whether its caller was detached.
pub(crate) struct Start {
    notify: oneshot::Sender<OperationId>,
    detached: Detached,
}

/// The receiving half of the start signal, with which the caller waits until the attempt has begun.
pub(crate) struct Started {
    notified: oneshot::Receiver<OperationId>,
    detached: Detached,
}

/// Whether the caller got a 202 before the attempt ended. Whichever side sets the value first
/// decides for both: the outcome for a detached caller is always stored, and a caller whose
/// response will not be stored is never detached.
#[derive(Clone, Default)]
pub(crate) struct Detached(Arc<OnceLock<bool>>);

impl Detached {
    /// Detaches the caller, if the attempt has not ended yet. Returns whether the caller is
    /// detached.
    fn detach(&self) -> bool {
        *self.0.get_or_init(|| true)
    }

    /// Returns whether the caller was detached. The answer never changes afterwards.
    pub(crate) fn decide(&self) -> bool {
        *self.0.get_or_init(|| false)
    }
}

/// Creates the two halves of the start signal between an attempt and its caller.
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

/// Returns how long a repeat waits for a request that another caller runs.
pub(crate) fn wait_for_rival(preference: &RespondAsync) -> Wait {
    if preference.wait.is_zero() { Wait::No } else { Wait::UpTo(preference.wait) }
}

/// Returns a 202 as soon as the attempt has begun, the preferred wait has passed and the pointer is
/// written. Returns the executor's answer as an error if that comes first.
pub(crate) async fn serve<P: Protocol, S: Store, A>(
    preference: RespondAsync,
    executor: &Executor<S>,
    (key, route): (&Key, &Route<P>),
    started: Started,
    serving: impl Future<Output = Result<Served<A>, Error>>,
) -> Result<Response<Bytes>, Result<Served<A>, Error>> {
    let mut serving = std::pin::pin!(serving);
    let accepted = |id| (preference.accepted)(id, route.rules.retry_after);
    // `serving` is polled together with every other future in this function: an attempt may run
    // without a separate task (`Command::attended`), and may hold the store's only connection.
    let id = tokio::select! {
        biased;
        served = &mut serving => match served {
            // Another caller runs the operation: this caller can look the outcome up as well.
            Ok(Served::InProgress { operation_id: Some(id), .. }) => id,
            served => return Err(served),
        },
        Ok(id) = started.notified => {
            let waiting = tokio::time::timeout(preference.wait, &mut serving);
            if !preference.wait.is_zero() && let Ok(served) = waiting.await {
                return Err(served);
            }
            if !started.detached.detach() {
                return Err(serving.await);
            }
            let pointing = std::pin::pin!(pointer::write(executor, (key, route), id));
            // Without a pointer the operation could not be found, so the caller waits for the
            // response.
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
