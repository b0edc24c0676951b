//! The bodies of requests and responses: an inner body that is passed on unread, a body that was
//! read whole, or a body that was read in part and continues with the rest.
//!
//! Every read has a limit, and the bytes that were read are kept: a response that is too long to
//! store is still delivered from its first byte.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use pin_project_lite::pin_project;

/// The number of bytes of an unneeded request body that are read and dropped before the request is
/// answered.
const DRAINED: usize = 64 << 10;
/// The number of bytes of a longer unneeded body that are read and dropped while the response is
/// sent: a client that writes its whole body before it reads should get to read the response.
const LINGERED: usize = 64 << 20;
/// The longest time for which an unneeded body is read, before its request is answered and again
/// while the response is sent.
const DRAINING: Duration = Duration::from_secs(2);

pin_project! {
    /// The body of a request or a response that a layer passes on.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::{BodyExt as _, Full};
    /// use semel_tower::Body;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let body: Body<Full<Bytes>> = Body::whole("done");
    /// assert_eq!(body.collect().await.expect("infallible").to_bytes(), "done");
    /// # }
    /// ```
    pub struct Body<B: HttpBody> {
        #[pin]
        state: State<B>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<B: HttpBody> {
        Unread { #[pin] inner: B },
        Whole { data: Bytes, trailers: Option<Box<HeaderMap>> },
        Begun { head: Bytes, error: Option<B::Error>, rest: Option<Pin<Box<B>>> },
    }
}

impl<B: HttpBody<Data = Bytes>> Body<B> {
    /// Wraps a body without reading it.
    pub fn unread(inner: B) -> Self {
        Self { state: State::Unread { inner } }
    }

    /// Creates a body of the bytes in `data`.
    pub fn whole(data: impl Into<Bytes>) -> Self {
        Self { state: State::Whole { data: data.into(), trailers: None } }
    }

    /// Returns the error at which the body broke off, if the layer has already read that far.
    pub fn error(&self) -> Option<&B::Error> {
        match &self.state {
            State::Begun { error, .. } => error.as_ref(),
            State::Unread { .. } | State::Whole { .. } => None,
        }
    }

    /// Returns whether no part of the body has been read.
    pub(crate) const fn is_untouched(&self) -> bool {
        matches!(self.state, State::Unread { .. })
    }

    /// Creates a body of the bytes in `data`, followed by `trailers`.
    pub fn with_trailers(data: Bytes, trailers: Option<Box<HeaderMap>>) -> Self {
        Self { state: State::Whole { data, trailers } }
    }
}

/// A body that was read to its end.
#[derive(Clone, Debug, Default)]
pub struct Whole {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<Box<HeaderMap>>,
}

impl From<Bytes> for Whole {
    fn from(data: Bytes) -> Self {
        Self { data, trailers: None }
    }
}

impl<B: HttpBody<Data = Bytes>> From<Whole> for Body<B> {
    fn from(Whole { data, trailers }: Whole) -> Self {
        Self::with_trailers(data, trailers)
    }
}

/// Creates an empty body.
impl<B: HttpBody<Data = Bytes>> Default for Body<B> {
    fn default() -> Self {
        Self::whole(Bytes::new())
    }
}

impl<B: HttpBody> std::fmt::Debug for Body<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.state {
            State::Unread { .. } => "Body(unread)",
            State::Whole { .. } => "Body(whole)",
            State::Begun { .. } => "Body(begun)",
        })
    }
}

impl<B: HttpBody<Data = Bytes>> HttpBody for Body<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().state.project() {
            Projected::Unread { inner } => inner.poll_frame(cx),
            Projected::Whole { data, trailers } => Poll::Ready(if data.is_empty() {
                trailers.take().map(|trailers| Ok(Frame::trailers(*trailers)))
            } else {
                Some(Ok(Frame::data(std::mem::take(data))))
            }),
            Projected::Begun { head, error, rest } => {
                if !head.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(head)))));
                }
                if let Some(error) = error.take() {
                    return Poll::Ready(Some(Err(error)));
                }
                match rest {
                    Some(rest) => rest.as_mut().poll_frame(cx),
                    None => Poll::Ready(None),
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Unread { inner } => inner.is_end_stream(),
            State::Whole { data, trailers } => data.is_empty() && trailers.is_none(),
            State::Begun { head, error, rest } => {
                head.is_empty()
                    && error.is_none()
                    && rest.as_ref().is_none_or(|rest| rest.is_end_stream())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.state {
            State::Unread { inner } => inner.size_hint(),
            State::Whole { data, trailers: None } => SizeHint::with_exact(data.len() as u64),
            // With an exact length, HTTP/1.1 would send `Content-Length` and drop the trailers.
            State::Whole { data, trailers: Some(_) } => {
                let mut hint = SizeHint::new();
                hint.set_lower(data.len() as u64);
                hint
            }
            State::Begun { head, error, rest } => {
                let read = head.len() as u64;
                let left = rest.as_ref().filter(|_| error.is_none()).map(|rest| rest.size_hint());
                let mut hint = SizeHint::new();
                let (lower, upper) = left.map_or((0, None), |left| (left.lower(), left.upper()));
                hint.set_lower(read.saturating_add(lower));
                if let Some(upper) = upper.and_then(|upper| upper.checked_add(read)) {
                    hint.set_upper(upper);
                }
                hint
            }
        }
    }
}

/// The result of reading a body to its end.
#[derive(Debug)]
pub enum Collected<B: HttpBody> {
    /// The body was read to its end.
    Whole {
        /// The bytes of the body.
        data: Bytes,
        /// The trailers, if there are any.
        trailers: Option<Box<HeaderMap>>,
    },
    /// The body has more bytes than the limit.
    TooLong {
        /// The number of bytes that the body has at least.
        bytes: u64,
        /// The body from its first byte.
        body: Body<B>,
    },
    /// The body broke off.
    Broken {
        /// The number of bytes that were read.
        bytes: u64,
        /// The bytes that were read, followed by the error.
        body: Body<B>,
    },
}

/// Reads `body` to its end, or until it has more than `limit` bytes. The bytes that were read are
/// kept in the result.
///
/// ```
/// use bytes::Bytes;
/// use http_body_util::Full;
/// use semel_tower::{Collected, collect};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let body = Full::new(Bytes::from_static(b"four"));
/// let Collected::Whole { data, .. } = collect(body.clone(), 4).await else { panic!("it fits") };
/// assert_eq!(data, "four");
/// assert!(matches!(collect(body, 3).await, Collected::TooLong { bytes: 4, .. }));
/// # }
/// ```
pub async fn collect<B: HttpBody<Data = Bytes>>(body: B, limit: usize) -> Collected<B> {
    let announced = body.size_hint().lower();
    if announced > limit as u64 {
        return Collected::TooLong { bytes: announced, body: Body::unread(body) };
    }
    let mut body = Box::pin(body);
    let mut head = Head::Empty;
    loop {
        let chunk = match body.as_mut().frame().await {
            None => return Collected::Whole { data: head.into(), trailers: None },
            Some(Err(error)) => {
                let (bytes, error) = (head.len() as u64, Some(error));
                let state = State::Begun { head: head.into(), error, rest: None };
                return Collected::Broken { bytes, body: Body { state } };
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(chunk) => chunk,
                // Trailers are the end of a body: frames after them are ignored.
                Err(frame) => {
                    let trailers = frame.into_trailers().ok().map(Box::new);
                    return Collected::Whole { data: head.into(), trailers };
                }
            },
        };
        head = head.with(chunk, usize::try_from(announced).unwrap_or(limit));
        if head.len() > limit {
            let bytes = (head.len() as u64).saturating_add(body.size_hint().lower());
            let state = State::Begun { head: head.into(), error: None, rest: Some(body) };
            return Collected::TooLong { bytes, body: Body { state } };
        }
        // Another poll would often wait only to find the end of the body.
        if body.is_end_stream() {
            return Collected::Whole { data: head.into(), trailers: None };
        }
    }
}

/// Reads the body of a request as [`collect`] does. Returns `None` if that takes longer than
/// `within`.
pub(crate) async fn receive<B: HttpBody<Data = Bytes>>(
    body: B,
    limit: usize,
    within: Option<Duration>,
) -> Option<Collected<B>> {
    match within {
        Some(within) => tokio::time::timeout(within, collect(body, limit)).await.ok(),
        None => Some(collect(body, limit).await),
    }
}

/// The part of a body that has been read. A single chunk is kept as it is. Several chunks are
/// joined into one buffer: a list of one-byte chunks would take about thirty times the memory of
/// its bytes.
enum Head {
    Empty,
    One(Bytes),
    Joined(Vec<u8>),
}

/// The length in bytes below which a chunk is copied: the chunk itself may keep a whole read buffer
/// of its connection alive.
const SMALL: usize = 4 << 10;

impl Head {
    fn len(&self) -> usize {
        match self {
            Head::Empty => 0,
            Head::One(chunk) => chunk.len(),
            Head::Joined(chunks) => chunks.len(),
        }
    }

    /// Appends a chunk. `whole` is the announced length of the body, or 0. That capacity is
    /// reserved at once, since memory that is never written to takes no space. Beyond it the buffer
    /// grows by a quarter instead of doubling, so that its size stays close to the number of bytes
    /// that is compared with the limit.
    fn with(self, chunk: Bytes, whole: usize) -> Self {
        let mut joined = match self {
            head if chunk.is_empty() => return head,
            Head::Empty if chunk.len() < SMALL => return Head::One(Bytes::copy_from_slice(&chunk)),
            Head::Empty => return Head::One(chunk),
            Head::One(first) => {
                let mut joined = Vec::with_capacity(whole.max(first.len() + chunk.len()));
                joined.extend_from_slice(&first);
                joined
            }
            Head::Joined(joined) => joined,
        };
        if joined.capacity() - joined.len() < chunk.len() {
            joined.reserve_exact(chunk.len().max(joined.len() / 4));
        }
        joined.extend_from_slice(&chunk);
        Head::Joined(joined)
    }
}

impl From<Head> for Bytes {
    fn from(head: Head) -> Self {
        match head {
            Head::Empty => Bytes::new(),
            Head::One(chunk) => chunk,
            Head::Joined(joined) => joined.into(),
        }
    }
}

/// Reads and drops the rest of `body`, up to `limit` bytes. Returns whether the end was reached.
async fn drain<B: HttpBody<Data = Bytes>>(mut body: Pin<&mut B>, limit: usize) -> bool {
    let mut read = 0;
    while let Some(frame) = body.as_mut().frame().await {
        let Ok(frame) = frame else { return false };
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > limit {
            return false;
        }
    }
    true
}

/// Reads and drops the body of a request that is answered early. Returns whether the connection must
/// be closed after the response.
///
/// If unread bytes stayed on a connection that is kept alive, the server could parse them as the
/// next request.
pub(crate) async fn dismiss<B>(body: B, version: Version) -> bool
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    if body.is_end_stream() {
        return false;
    }
    if body.size_hint().lower() > DRAINED as u64 {
        return leave(Box::pin(body), version);
    }
    let mut body = Box::pin(body);
    match tokio::time::timeout(DRAINING, drain(body.as_mut(), DRAINED)).await {
        Ok(true) => false,
        Ok(false) => leave(body, version),
        // The time limit has passed.
        Err(_) => version < Version::HTTP_2,
    }
}

/// Stops waiting for an unneeded body that is too long. Returns whether the connection must be
/// closed after the response. If so, a task goes on reading for a while: closing a connection with
/// unread bytes resets it, and the reset may overtake the response.
pub(crate) fn leave<B>(mut body: Pin<Box<B>>, version: Version) -> bool
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    let ends = version < Version::HTTP_2;
    if ends {
        tokio::spawn(async move {
            let _ = tokio::time::timeout(DRAINING, drain(body.as_mut(), LINGERED)).await;
        });
    }
    ends
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use http_body_util::{Full, StreamBody};

    use super::*;

    fn chunks(parts: &[&'static str]) -> impl HttpBody<Data = Bytes, Error = &'static str> {
        let frames = parts.iter().map(|part| match *part {
            "!" => Err("broken"),
            part => Ok(Frame::data(Bytes::from_static(part.as_bytes()))),
        });
        StreamBody::new(futures_util::stream::iter(frames.collect::<Vec<_>>()))
    }

    #[tokio::test]
    async fn a_body_at_the_limit_is_whole_and_one_byte_more_is_not() {
        let Collected::Whole { data, .. } = collect(chunks(&["ab", "", "c"]), 3).await else {
            panic!("too long");
        };
        assert_eq!(data, "abc");
        let Collected::TooLong { bytes, body } = collect(chunks(&["ab", "cd", "ef"]), 3).await
        else {
            panic!("whole");
        };
        assert_eq!(bytes, 4);
        assert_eq!(body.collect().await.expect("goes on").to_bytes(), "abcdef");
    }

    #[tokio::test]
    async fn a_body_at_its_end_is_not_polled_again() {
        struct Once(bool);
        impl HttpBody for Once {
            type Data = Bytes;
            type Error = &'static str;

            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
                assert!(!std::mem::replace(&mut self.0, true), "polled again");
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"ab")))))
            }

            fn is_end_stream(&self) -> bool {
                self.0
            }
        }
        let Collected::Whole { data, .. } = collect(Once(false), 3).await else {
            panic!("not whole");
        };
        assert_eq!(data, "ab");
    }

    #[tokio::test]
    async fn trailers_are_the_end() {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, 1.into())]);
        let data = |text| Frame::data(Bytes::from_static(text));
        let frames = [Ok::<_, &str>(data(b"ab")), Ok(Frame::trailers(trailers)), Ok(data(b"cd"))];
        let body = StreamBody::new(futures_util::stream::iter(frames));
        let Collected::Whole { data, trailers } = collect(body, 9).await else {
            panic!("not whole");
        };
        assert_eq!((data, trailers.map(|trailers| trailers.len())), ("ab".into(), Some(1)));
    }

    #[tokio::test]
    async fn an_announced_length_is_refused_before_reading() {
        let full = Full::new(Bytes::from_static(b"abcd"));
        let Collected::TooLong { bytes, body } = collect(full, 3).await else { panic!("whole") };
        assert_eq!((bytes, body.size_hint().exact()), (4, Some(4)));
    }

    #[tokio::test]
    async fn a_broken_body_yields_the_bytes_read_and_then_the_error() {
        let Collected::Broken { bytes, body } = collect(chunks(&["ab", "!"]), 9).await else {
            panic!("not broken");
        };
        assert_eq!(bytes, 2);
        let mut body = std::pin::pin!(body);
        let first = body.as_mut().frame().await.expect("data").expect("whole");
        assert_eq!(first.into_data().expect("data"), "ab");
        assert_eq!(body.as_mut().frame().await.expect("an error").unwrap_err(), "broken");
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn draining_stops_at_its_limit() {
        assert!(drain(pin!(chunks(&["ab", "cd"])), 4).await);
        assert!(!drain(pin!(chunks(&["ab", "cd", "e"])), 4).await);
        assert!(!drain(pin!(chunks(&["!"])), 4).await);
    }
}
