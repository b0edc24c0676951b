//! Requests that run without a claim, because their rules allow it and the store is unavailable.

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use metrics::counter;
use semel_core::Error;
use semel_core::store::ErrorKind;
use tower_service::Service;
use tracing::Instrument as _;

use crate::body::Body;

/// Marks a request that runs without a claim, in its extensions: its rules [fail
/// open](crate::RouteRules::fail_open) and the store is unavailable.
///
/// ```
/// use http::Request;
/// use semel_tower::Unprotected;
///
/// fn may_run_twice<B>(request: &Request<B>) -> bool {
///     request.extensions().get::<Unprotected>().is_some()
/// }
/// assert!(!may_run_twice(&Request::new(())));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Unprotected;

/// Runs the handler without a claim, in a separate task, so that it continues if the caller leaves.
pub(crate) async fn unprotected<I, B, C>(
    mut inner: I,
    mut request: Request<Body<B>>,
) -> Result<Response<Body<C>>, I::Error>
where
    I: Service<Request<Body<B>>, Response = Response<C>> + Send + 'static,
    I::Future: Send + 'static,
    I::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Send,
    C: HttpBody<Data = Bytes> + Send + 'static,
{
    counter!("semel_fail_open_requests_total").increment(1);
    request.extensions_mut().insert(Unprotected);
    let running = async move {
        std::future::poll_fn(|cx| inner.poll_ready(cx)).await?;
        inner.call(request).await
    };
    // The task keeps the span of this request for its logs.
    match tokio::spawn(running.in_current_span()).await {
        Ok(answer) => answer.map(|response| response.map(Body::unread)),
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and the caller's task with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Returns whether a request with this error may run without the store: the store cannot be reached
/// or has no capacity, so nothing is known to have run under the key. Any other error may hide a
/// success, for instance a record that cannot be read.
pub(crate) fn nothing_ran(error: &Error) -> bool {
    let away = [ErrorKind::Unavailable, ErrorKind::Ambiguous];
    matches!(error, Error::Capacity)
        || matches!(error, Error::Store(error) if away.contains(&error.kind()))
}
