//! Bodies of requests and responses that pass through the gateway.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use semel_tower::Body;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::concurrency::UploadPermit;
use super::headers::ReservedHeaders;

/// The error type of bodies.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The progress of an upload. An upload has no time limit as long as bytes arrive.
#[derive(Clone, Debug)]
pub(super) struct UploadProgress(Arc<Mutex<BodyState>>);

/// The state of a body that is being received.
#[derive(Clone, Copy, Debug)]
struct BodyState {
    /// The time at which the last frame arrived.
    last: Instant,
    /// Whether the upstream waits for more bytes of the body.
    awaited: bool,
    broken: bool,
}

impl UploadProgress {
    pub(super) fn new() -> Self {
        let state = BodyState { last: Instant::now(), awaited: false, broken: false };
        Self(Arc::new(Mutex::new(state)))
    }

    fn note<E>(&self, polled: &Poll<Option<Result<Frame<Bytes>, E>>>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.awaited = polled.is_pending();
        state.broken |= matches!(polled, Poll::Ready(Some(Err(_))));
        if polled.is_ready() {
            state.last = Instant::now();
        }
    }

    fn now(&self) -> BodyState {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the caller's upload broke off.
    pub(super) fn is_broken(&self) -> bool {
        self.now().broken
    }

    /// Returns whether the upstream waits for more bytes from the caller.
    pub(super) fn is_awaited(&self) -> bool {
        self.now().awaited
    }

    /// Waits until there has been no progress for `limit`.
    pub(super) async fn none_for(&self, limit: Duration) {
        loop {
            let end = self.now().last + limit;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// A request's body on its way to the upstream.
#[derive(Debug)]
pub(super) struct RequestBody<B> {
    body: B,
    owned: Arc<ReservedHeaders>,
    progress: Option<UploadProgress>,
    /// The permit of the upload, held until the body ends.
    _upload: Option<UploadPermit>,
}

impl<B> RequestBody<B> {
    /// Creates a body from whose trailers reserved headers are removed.
    pub(super) fn new(
        body: B,
        owned: Arc<ReservedHeaders>,
        progress: Option<UploadProgress>,
        upload: Option<UploadPermit>,
    ) -> Self {
        Self { body, owned, progress, _upload: upload }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Some(progress) = &self.progress {
            progress.note(&polled);
        }
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            self.owned.strip_trailers(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response: a body from the upstream, or a text of the gateway.
#[derive(Debug)]
pub(super) struct ResponseBody {
    body: Body<Incoming>,
    /// Completes when the connection must close, and then ends an event stream.
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl ResponseBody {
    /// Creates a body that ends when `cut` is cancelled.
    pub(super) fn new(body: Body<Incoming>, cut: Option<CancellationToken>) -> Self {
        Self { body, cut: cut.map(|token| Box::pin(token.cancelled_owned())) }
    }
}

impl From<Bytes> for ResponseBody {
    fn from(words: Bytes) -> Self {
        Self::new(Body::whole(words), None)
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { body, cut } = &mut *self;
        if let Some(cut) = cut
            && cut.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(None);
        }
        Pin::new(body).poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_an_upload_without_progress_is_late() {
        let progress = UploadProgress::new();
        let frames = futures_util::stream::unfold(0, |n| async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            (n < 3).then(|| (Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"x"))), n + 1))
        });
        let body = StreamBody::new(Box::pin(frames));
        let owned = Arc::new(ReservedHeaders::new([]));
        let body = RequestBody::new(body, owned, Some(progress.clone()), None);
        let limit = Duration::from_secs(30);
        tokio::select! {
            () = progress.none_for(limit) => panic!("it goes on"),
            read = body.collect() => assert_eq!(read.unwrap().to_bytes(), "xxx"),
        }
        let since = Instant::now();
        progress.none_for(limit).await;
        assert_eq!(since.elapsed(), limit);
    }
}
