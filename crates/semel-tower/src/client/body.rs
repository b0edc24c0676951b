//! Request bodies that can be sent again, and response bodies that are read ahead.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Empty, Full};

/// A request body that may be sent more than once.
///
/// A body held in memory can be sent again; a stream cannot, and is sent once, in a [`OneShot`].
/// Implement this trait for a body type of your own, and return `None` if the body cannot be sent
/// again.
///
/// ```
/// use semel_tower::client::{OneShot, Replay};
///
/// assert_eq!("text".replay(), Some("text"));
/// assert!(OneShot::new("text").replay().is_none());
/// ```
pub trait Replay: Sized {
    /// Returns a copy of the body from its beginning, or `None` if the body cannot be sent again.
    /// Called before the body is sent.
    fn replay(&self) -> Option<Self>;
}

macro_rules! replayed_by_cloning {
    ($(($($bound:tt)*) $body:ty),* $(,)?) => {$(
        impl<$($bound)*> Replay for $body {
            fn replay(&self) -> Option<Self> {
                Some(self.clone())
            }
        }
    )*};
}

replayed_by_cloning![
    () (), () Bytes, () String, () Vec<u8>, () &'static str, () &'static [u8],
    (D) Empty<D>, (D: Clone) Full<D>,
];

impl<L: Replay, R: Replay> Replay for Either<L, R> {
    fn replay(&self) -> Option<Self> {
        match self {
            Either::Left(body) => body.replay().map(Either::Left),
            Either::Right(body) => body.replay().map(Either::Right),
        }
    }
}

pin_project_lite::pin_project! {
    /// A body that can be sent only once: a call with this body gets a key, but only one try.
    #[derive(Clone, Copy, Debug)]
    pub struct OneShot<B> {
        #[pin]
        body: B,
    }
}

impl<B> OneShot<B> {
    /// Wraps a body that cannot be sent again.
    pub fn new(body: B) -> Self {
        Self { body }
    }

    /// Returns the wrapped body.
    pub fn into_inner(self) -> B {
        self.body
    }
}

impl<B> Replay for OneShot<B> {
    fn replay(&self) -> Option<Self> {
        None
    }
}

impl<B: Body> Body for OneShot<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The point up to which the body of a response was read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The response was read to its end.
    Whole,
    /// The response was read to the limit; there is more.
    Limit,
    /// The response was read to where it broke off.
    Cut,
}

/// The body of a response, of which a part may have been read ahead. Yields the frames of the inner
/// service's body unchanged.
pub struct ReadAheadBody<B: Body> {
    read: VecDeque<Frame<B::Data>>,
    cut: Option<B::Error>,
    rest: Option<Pin<Box<B>>>,
}

impl<B: Body> ReadAheadBody<B> {
    pub(super) fn new(body: B) -> Self {
        Self { read: VecDeque::new(), cut: None, rest: Some(Box::pin(body)) }
    }

    /// Returns whether the response should be read whole within its try: its length is known to be
    /// at most `limit`, or its length is unknown and it is JSON. Any other response may be an
    /// endless stream.
    pub(super) fn should_be_read_whole(&self, headers: &HeaderMap, limit: usize) -> bool {
        let small = |size| size <= u64::try_from(limit).unwrap_or(u64::MAX);
        self.size_hint().upper().map_or_else(|| is_json(headers), small)
    }

    /// Reads frames into `self` until they have more than `limit` bytes or the body ends. The
    /// frames stay in `self` if the future is dropped.
    pub(super) async fn read_ahead(&mut self, limit: usize) -> Reach {
        let mut held = 0_usize;
        while let Some(body) = &mut self.rest {
            match poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
                None => self.rest = None,
                Some(Ok(frame)) => {
                    held = held.saturating_add(frame.data_ref().map_or(0, Buf::remaining));
                    self.read.push_back(frame);
                    if held > limit {
                        return Reach::Limit;
                    }
                }
                Some(Err(error)) => {
                    self.cut = Some(error);
                    self.rest = None;
                    return Reach::Cut;
                }
            }
        }
        Reach::Whole
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(text)) = headers.get(CONTENT_TYPE).map(|value| value.to_str()) else {
        return false;
    };
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

// Only the boxed inner body is pinned, and the box itself is `Unpin`.
impl<B: Body> Unpin for ReadAheadBody<B> {}

impl<B: Body> std::fmt::Debug for ReadAheadBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadAheadBody")
            .field("frames_read_ahead", &self.read.len())
            .finish_non_exhaustive()
    }
}

impl<B: Body> Body for ReadAheadBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        if let Some(frame) = self.read.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        if let Some(error) = self.cut.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match &mut self.rest {
            Some(body) => body.as_mut().poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty()
            && self.cut.is_none()
            && self.rest.as_ref().is_none_or(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let data = self.read.iter().filter_map(Frame::data_ref);
        let read = data.map(|data| data.remaining() as u64).sum::<u64>();
        let mut hint = match &self.rest {
            Some(body) => body.size_hint(),
            None if self.cut.is_none() => SizeHint::with_exact(0),
            None => SizeHint::new(),
        };
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint.set_lower(hint.lower().saturating_add(read));
        hint
    }
}
