//! Bodies on their way through the gateway. None is read here.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::client::too_late;
use super::places::{Place, Upload};

/// Why a body broke off.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// When something was last heard of a request's body: an upload takes as long as it takes.
#[derive(Clone, Debug)]
pub(super) struct Progress(Arc<Mutex<Instant>>);

impl Progress {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    fn noted(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns after `limit` without any.
    pub(super) async fn none_for(&self, limit: Duration) {
        loop {
            let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let end = last + limit;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// A request's body on its way to the upstream.
#[derive(Debug)]
pub(super) struct Outgoing<B> {
    body: B,
    progress: Option<Progress>,
    /// What it takes of what there is, for as long as it is not over.
    _upload: Option<Upload>,
}

impl<B> Outgoing<B> {
    pub(super) fn new(body: B, progress: Option<Progress>, upload: Option<Upload>) -> Self {
        Self { body, progress, _upload: upload }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Outgoing<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let (Poll::Ready(_), Some(progress)) = (&polled, &self.progress) {
            progress.noted();
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

/// An answer's body: the upstream's, or a few words of ours.
#[derive(Debug)]
pub(super) struct Answer {
    from: Source,
    ends: Ends,
}

/// What ends an answer besides whoever gives it.
#[derive(Debug)]
pub(super) enum Ends {
    Nothing,
    /// Somebody waits for its end: it comes before the deadline, or the answer breaks off.
    Late(Deadline),
    /// It has no end of its own (a stream of events), and is over when its connection must be.
    Cut(Pin<Box<WaitForCancellationFutureOwned>>),
}

impl Ends {
    pub(super) fn cut(token: CancellationToken) -> Self {
        Self::Cut(Box::pin(token.cancelled_owned()))
    }
}

/// When an answer that is waited for must be whole.
#[derive(Debug)]
pub(super) struct Deadline {
    pub(super) end: Pin<Box<Sleep>>,
    pub(super) limit: Duration,
    /// What is waited for. With one byte more nobody waits any longer, and the rest is delivered as it
    /// comes.
    pub(super) left: usize,
    /// What it takes of what there is, for as long as it is waited for.
    pub(super) _place: Place,
}

#[derive(Debug)]
enum Source {
    Upstream(Incoming),
    Here(Bytes),
}

impl Answer {
    /// The upstream's.
    pub(super) fn upstream(body: Incoming, ends: Ends) -> Self {
        Self { from: Source::Upstream(body), ends }
    }
}

impl From<Bytes> for Answer {
    fn from(words: Bytes) -> Self {
        Self { from: Source::Here(words), ends: Ends::Nothing }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { from, ends } = &mut *self;
        let body = match from {
            Source::Here(words) if words.is_empty() => return Poll::Ready(None),
            Source::Here(words) => {
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(words)))));
            }
            Source::Upstream(body) => body,
        };
        if let Ends::Cut(cut) = ends
            && cut.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(None);
        }
        match Pin::new(body).poll_frame(cx) {
            Poll::Ready(frame) => {
                let data = |frame: &Frame<Bytes>| frame.data_ref().map_or(0, Bytes::len);
                let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()).map_or(0, data);
                if let Ends::Late(Deadline { left, .. }) = ends {
                    match left.checked_sub(bytes) {
                        Some(less) => *left = less,
                        None => *ends = Ends::Nothing,
                    }
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => match ends {
                Ends::Late(Deadline { end, limit, .. }) => {
                    end.as_mut().poll(cx).map(|()| Some(Err(too_late(*limit).into())))
                }
                Ends::Nothing | Ends::Cut(_) => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.from {
            Source::Upstream(body) => body.is_end_stream(),
            Source::Here(words) => words.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.from {
            Source::Upstream(body) => body.size_hint(),
            Source::Here(words) => SizeHint::with_exact(words.len() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_goes_on_is_not_late_and_a_silent_one_is() {
        let progress = Progress::new();
        let frames = futures_util::stream::unfold(0, |n| async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            (n < 3).then(|| (Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"x"))), n + 1))
        });
        let body = Outgoing::new(StreamBody::new(Box::pin(frames)), Some(progress.clone()), None);
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
