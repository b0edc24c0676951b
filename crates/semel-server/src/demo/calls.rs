//! Counts the calls under way, so that the demo can report how many were cut at its end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::Service;

/// The counter of calls over HTTP and gRPC.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls(Arc<()>);

impl Calls {
    /// Wraps a service so that its calls are counted.
    pub(super) fn count<S>(&self, inner: S) -> Counted<S> {
        Counted { inner, calls: Arc::downgrade(&self.0) }
    }

    /// Returns the number of calls under way.
    pub(super) fn under_way(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// A service whose calls are counted. A call ends when it is answered or when its caller
/// disconnects.
#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    inner: S,
    /// A weak reference, because a service is cloned for every connection; only a call upgrades it.
    calls: std::sync::Weak<()>,
}

impl<R, S> Service<R> for Counted<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (call, counted) = (self.inner.call(request), self.calls.upgrade());
        Box::pin(async move {
            let answer = call.await;
            drop(counted);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn a_call_counts_until_it_is_answered_or_dropped() {
        let calls = Calls::default();
        let answered = tower::service_fn(|wait: oneshot::Receiver<()>| wait);
        let mut service = calls.count(answered).clone();
        let (answer, wait) = oneshot::channel();
        let (_never, forever) = oneshot::channel();
        let (first, second) = (service.call(wait), service.call(forever));
        assert_eq!(calls.under_way(), 2);
        answer.send(()).unwrap();
        assert_eq!(first.now_or_never(), Some(Ok(())));
        assert_eq!(calls.under_way(), 1);
        drop(second);
        assert_eq!(calls.under_way(), 0);
    }
}
