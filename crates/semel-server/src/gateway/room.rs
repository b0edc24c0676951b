//! Room for the bodies of requests with a key, which are held in memory until they are sent.
//!
//! A body counts as it comes, not as it is announced: who announces much and sends little takes little.
//! Where there is no room for more of it, the rest is read and forgotten, so that its caller gets as far
//! as reading why.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::body::BoxError;

/// How many bytes may be held at once.
#[derive(Debug)]
pub(super) struct Room {
    left: AtomicU64,
}

impl Room {
    pub(super) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(bytes) })
    }

    fn take(&self, bytes: u64) -> bool {
        let less = |left: u64| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// What one body takes of it. In a request's extensions while the body is held; the room is left with
/// the last of them.
#[derive(Debug)]
pub(super) struct Held {
    room: Arc<Room>,
    bytes: AtomicU64,
    /// Nobody holds it: it passes as it comes.
    passing: AtomicBool,
    refused: AtomicBool,
}

impl Held {
    pub(super) fn new(room: &Arc<Room>) -> Arc<Self> {
        let (passing, refused) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { room: Arc::clone(room), bytes: AtomicU64::new(0), passing, refused })
    }

    /// Whether there was no room for all of it.
    pub(super) fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// The body is not held after all.
    pub(super) fn let_pass(&self) {
        self.passing.store(true, Ordering::Relaxed);
        self.room.give_back(self.bytes.swap(0, Ordering::Relaxed));
    }

    /// Whether there is room for so much more.
    fn grow(&self, bytes: u64) -> bool {
        if self.passing.load(Ordering::Relaxed) {
            return true;
        }
        let taken = self.room.take(bytes);
        match taken {
            true => drop(self.bytes.fetch_add(bytes, Ordering::Relaxed)),
            false => self.refused.store(true, Ordering::Relaxed),
        }
        taken
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.give_back(*self.bytes.get_mut());
    }
}

/// A request's body as it comes in, counted if it may be held.
#[derive(Debug)]
pub(super) struct Counted<B> {
    body: B,
    held: Option<Arc<Held>>,
    /// How much of it would be held at most; the rest is nobody's to hold.
    left: usize,
}

impl<B> Counted<B> {
    /// One that passes as it comes.
    pub(super) fn passing(body: B) -> Self {
        Self { body, held: None, left: 0 }
    }

    /// One that is held, up to `most` bytes of it.
    pub(super) fn held(body: B, held: Arc<Held>, most: usize) -> Self {
        Self { body, held: Some(held), left: most }
    }

    /// What a frame comes to where there may be no room for it; `None` is one to forget.
    fn counted(&mut self, frame: Frame<Bytes>) -> Option<Result<Frame<Bytes>, BoxError>> {
        let Some(held) = &self.held else { return Some(Ok(frame)) };
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let more = self.left.min(bytes);
        self.left -= more;
        if !held.was_refused() && held.grow(more as u64) {
            return Some(Ok(frame));
        }
        // What is longer than anybody would have held is not read for nothing.
        (bytes > more).then(|| Err(no_room()))
    }
}

fn no_room() -> BoxError {
    io::Error::other("there is no room for the body of this request").into()
}

impl<B> HttpBody for Counted<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let polled = Pin::new(&mut self.body).poll_frame(cx);
            let frame = match std::task::ready!(polled) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None if self.held.as_ref().is_some_and(|held| held.was_refused()) => {
                    return Poll::Ready(Some(Err(no_room())));
                }
                None => return Poll::Ready(None),
            };
            if let Some(frame) = self.counted(frame) {
                return Poll::Ready(Some(frame));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let refused = self.held.as_ref().is_some_and(|held| held.was_refused());
        !refused && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    type Sent = Full<Bytes>;

    fn sent(room: &Arc<Room>, text: &'static str, most: usize) -> (Arc<Held>, Counted<Sent>) {
        let held = Held::new(room);
        (Arc::clone(&held), Counted::held(Full::from(text), held, most))
    }

    #[tokio::test]
    async fn what_is_held_takes_room_until_nobody_holds_it() {
        let room = Room::new(4);
        let (first, body) = sent(&room, "abc", 9);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "abc");
        let (second, body) = sent(&room, "de", 9);
        assert!(body.collect().await.is_err());
        assert!(second.was_refused() && !first.was_refused());
        drop((first, second));
        let (_, body) = sent(&room, "fghi", 9);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "fghi");
    }

    #[tokio::test]
    async fn nobody_takes_more_than_would_be_held_and_nothing_for_what_passes() {
        let room = Room::new(4);
        let (long, body) = sent(&room, "abcdefgh", 3);
        assert!(body.collect().await.is_ok());
        let (passing, body) = sent(&room, "ijkl", 9);
        passing.let_pass();
        assert!(body.collect().await.is_ok());
        let (_, body) = sent(&room, "m", 9);
        assert!(body.collect().await.is_ok());
        drop((long, passing));
        assert_eq!(room.left.load(Ordering::Relaxed), 4);
    }
}
