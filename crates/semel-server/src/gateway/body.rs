//! Bodies on their way through the gateway. None is read here.

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

/// Why a body broke off.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How a request's body gets on: an upload takes as long as it takes.
#[derive(Clone, Debug)]
pub(super) struct UploadProgress(Arc<Mutex<BodyState>>);

/// What is known of a body that is still to come.
#[derive(Clone, Copy, Debug)]
struct BodyState {
    /// When something was last heard of it.
    last: Instant,
    /// Whether the upstream would take more of it than its caller has sent.
    awaited: bool,
    broken: bool,
}

impl UploadProgress {
    pub(super) fn new() -> Self {
        let upcoming = BodyState { last: Instant::now(), awaited: false, broken: false };
        Self(Arc::new(Mutex::new(upcoming)))
    }

    fn note<E>(&self, polled: &Poll<Option<Result<Frame<Bytes>, E>>>) {
        let mut upcoming = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        upcoming.awaited = polled.is_pending();
        upcoming.broken |= matches!(polled, Poll::Ready(Some(Err(_))));
        if polled.is_ready() {
            upcoming.last = Instant::now();
        }
    }

    fn now(&self) -> BodyState {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the caller broke it off.
    pub(super) fn is_broken(&self) -> bool {
        self.now().broken
    }

    /// Whether it is the caller who keeps everybody waiting.
    pub(super) fn is_awaited(&self) -> bool {
        self.now().awaited
    }

    /// Returns after `limit` without any.
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
    /// What it takes of what there is, for as long as it is not over.
    _upload: Option<UploadPermit>,
}

impl<B> RequestBody<B> {
    /// A body whose trailers say nothing under a name of ours.
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

/// An answer's body: the upstream's, as far as it was read, or a few words of ours.
#[derive(Debug)]
pub(super) struct ResponseBody {
    body: Body<Incoming>,
    /// What ends an answer that has no end of its own (a stream of events): its connection must.
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl ResponseBody {
    /// One that is over when `cut` says so, if anything does.
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
    async fn an_upload_that_goes_on_is_not_late_and_a_silent_one_is() {
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
