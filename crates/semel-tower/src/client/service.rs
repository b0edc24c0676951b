//! One outbound call: its key, its tries and the waits between them.
//!
//! The whole call runs in the future that the caller polls. Nothing is spawned: dropping the future
//! ends the try under way, and the same call may be made again under the same key.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use tokio::time::{Instant, sleep_until, timeout_at};
use tower_service::Service;

use super::body::{Reach, ReadAheadBody, Replay};
use super::invalid_key::InvalidCallKey;
use super::key::CallKey;
use super::retry::Verdict;
use super::settings::Settings;

/// The number of tries that a call took, in the extensions of its response.
///
/// ```
/// use http::Response;
/// use semel_tower::client::Attempts;
///
/// fn was_retried<B>(response: &Response<B>) -> bool {
///     response.extensions().get().is_some_and(|Attempts(tries)| *tries > 1)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts(pub u32);

/// The reason why a call has no response. `E` is the error of the inner service.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<E> {
    /// The key does not fit the dialect. Nothing was sent.
    #[error(transparent)]
    Key(#[from] InvalidCallKey),
    /// The last try had no response in time. The call may have taken effect: repeat it only under
    /// the same key.
    #[error(
        "no response within {limit:?} (try {attempt}); the call may have taken effect, so repeat \
         it only under the same key"
    )]
    TimedOut {
        /// The time limit that passed.
        limit: Duration,
        /// The number of the try.
        attempt: u32,
        /// The key of the call: repeat the call under this key, so that it takes effect once.
        key: Option<CallKey>,
    },
    /// The last try failed. The call may have taken effect: repeat it only under the same key.
    #[error("the call failed: {source}")]
    Service {
        /// The inner service's error.
        source: E,
        /// The key of the call: the same key again makes it one call. `None` before anything was
        /// sent, and for calls without a key.
        key: Option<CallKey>,
    },
}

/// The service that [`CallLayer`](super::CallLayer) creates around a client.
#[derive(Clone, Debug)]
pub struct Call<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> Call<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }

    /// Returns the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B, A> Service<Request<B>> for Call<S>
where
    S: Service<Request<B>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Replay + Send + 'static,
    A: Body + Send + 'static,
    A::Data: Send,
    A::Error: Send,
{
    type Response = Response<ReadAheadBody<A>>;
    type Error = Error<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(|source| Error::Service { source, key: None })
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that is ready makes the call; the clone is not ready yet.
        let clone = self.inner.clone();
        let inner = mem::replace(&mut self.inner, clone);
        Box::pin(Arc::clone(&self.settings).run(inner, request))
    }
}

impl Settings {
    async fn run<S, B, A>(
        self: Arc<Self>,
        mut inner: S,
        request: Request<B>,
    ) -> Result<Response<ReadAheadBody<A>>, Error<S::Error>>
    where
        S: Service<Request<B>, Response = Response<A>>,
        B: Replay,
        A: Body,
    {
        let (mut parts, mut body) = request.into_parts();
        let key = CallKey::attach(&mut parts, &self.dialect, self.fresh)?;
        // A repeat is harmless if the method is idempotent, or if the provider treats both requests
        // as one. A key that the provider ignores protects nothing.
        let covered = key.is_some() && self.dialect.covers(&parts.method);
        let repeatable = covered || parts.method.is_idempotent();
        let deadline = Instant::now() + self.budget;
        let mut attempt = 1;
        loop {
            let may_repeat = repeatable && attempt < self.tries;
            let spare = if may_repeat { body.replay() } else { None };
            let (begun, request) = (Instant::now(), Request::from_parts(parts.clone(), body));
            let ends = deadline.min(begun + self.try_timeout);
            let (result, verdict) = match timeout_at(ends, inner.call(request)).await {
                Ok(Ok(response)) => {
                    let (response, verdict) = self.weigh(response, ends, spare.is_some()).await;
                    (Ok(response), verdict)
                }
                Ok(Err(source)) => {
                    let error = Error::Service { source, key: key.clone() };
                    (Err(error), Verdict::Again { after: None })
                }
                Err(_) => {
                    let (limit, key) = (ends - begun, key.clone());
                    let error = Error::TimedOut { limit, attempt, key };
                    (Err(error), Verdict::Again { after: None })
                }
            };
            let due = self.due(verdict, attempt).filter(|due| *due < deadline);
            let (Some(next), Some(due)) = (spare, due) else {
                return result.map(|response| with_call_details(response, attempt, key));
            };
            let status = result.as_ref().ok().map(|response| response.status().as_u16());
            tracing::debug!(dialect = self.dialect.name(), attempt, status, "calling again");
            self.discard(result.ok(), due).await;
            match timeout_at(deadline, poll_fn(|cx| inner.poll_ready(cx))).await {
                Ok(ready) => ready.map_err(|source| Error::Service { source, key: key.clone() })?,
                Err(_) => return Err(Error::TimedOut { limit: self.budget, attempt, key }),
            }
            body = next;
            attempt += 1;
        }
    }

    /// Returns the response and whether it asks for another try. If the call may be repeated, a
    /// response that should be read whole is read first: one that breaks off asks for another try.
    async fn weigh<A: Body>(
        &self,
        response: Response<A>,
        ends: Instant,
        may_repeat: bool,
    ) -> (Response<ReadAheadBody<A>>, Verdict) {
        let mut verdict = Verdict::of(&self.dialect, response.status(), response.headers());
        let mut response = response.map(ReadAheadBody::new);
        let whole = response.body().should_be_read_whole(response.headers(), self.read_ahead);
        if verdict == Verdict::Final && may_repeat && whole && self.read_ahead > 0 {
            match timeout_at(ends, response.body_mut().read_ahead(self.read_ahead)).await {
                Ok(Reach::Whole | Reach::Limit) => {}
                Ok(Reach::Cut) | Err(_) => verdict = Verdict::Again { after: None },
            }
        }
        (response, verdict)
    }

    /// Returns the time of the next try; `None` if the result is final or asks for too long a wait.
    fn due(&self, verdict: Verdict, attempt: u32) -> Option<Instant> {
        let Verdict::Again { after } = verdict else { return None };
        if after.is_some_and(|after| after > self.longest_retry_after) {
            return None;
        }
        Instant::now().checked_add(self.backoff.wait(attempt, after))
    }

    /// Waits until `due` and meanwhile drains the response that is dropped: a connection with
    /// unread bytes on it would have to be closed.
    async fn discard<A: Body>(&self, response: Option<Response<ReadAheadBody<A>>>, due: Instant) {
        let mut waiting = pin!(sleep_until(due));
        if let Some(mut response) = response {
            let draining = response.body_mut().read_ahead(self.read_ahead);
            tokio::select! {
                biased;
                _ = draining => {}
                () = &mut waiting => return,
            }
        }
        waiting.await;
    }
}

/// Adds the key and the number of tries to the response.
fn with_call_details<A>(
    mut response: Response<A>,
    attempt: u32,
    key: Option<CallKey>,
) -> Response<A> {
    response.extensions_mut().insert(Attempts(attempt));
    if let Some(key) = key {
        response.extensions_mut().insert(key);
    }
    response
}
