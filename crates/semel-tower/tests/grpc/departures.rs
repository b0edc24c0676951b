//! Records the calls whose callers the server has seen leave.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use semel_core::store::BoxFuture;
use tower::{Layer, Service};

use crate::backend::until;

/// The keys of calls whose callers have left. This is a layer around the layer under test.
#[derive(Clone, Debug, Default)]
pub(crate) struct Departures(Arc<Mutex<HashSet<String>>>);

impl Departures {
    /// Waits until the server has noticed that the caller of `key` has left.
    pub(crate) async fn noticed(&self, key: &str) {
        until(async || self.0.lock().expect("not poisoned").contains(key)).await;
    }
}

impl<S> Layer<S> for Departures {
    type Service = Watched<S>;

    fn layer(&self, inner: S) -> Watched<S> {
        Watched { inner, departures: self.clone() }
    }
}

/// A service whose callers are watched.
#[derive(Clone)]
pub(crate) struct Watched<S> {
    inner: S,
    departures: Departures,
}

impl<S, B> Service<http::Request<B>> for Watched<S>
where
    S: Service<http::Request<B>, Future: Send + 'static>,
    S::Response: 'static,
    S::Error: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let key = request.headers().get("idempotency-key");
        let key = key.map(|key| key.to_str().expect("text").to_owned());
        let waiting = Waiting { key, departures: self.departures.clone() };
        let calling = self.inner.call(request);
        Box::pin(async move {
            let mut waiting = waiting;
            let answer = calling.await;
            waiting.key = None;
            answer
        })
    }
}

/// A call that is being answered. If it is dropped, its caller has left.
struct Waiting {
    key: Option<String>,
    departures: Departures,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.departures.0.lock().expect("not poisoned").insert(key);
        }
    }
}
