//! The memory budget for bodies of requests with a key, which are held until they are sent.
//!
//! Bytes count when they arrive, not when they are announced. The requests of one address share a
//! part of the budget. When the budget is exhausted, the rest of a body is read and dropped, so
//! that the caller gets to read the response.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::body::BoxError;

/// The budget of bytes that may be held at once.
#[derive(Debug)]
pub(super) struct BodyBudget {
    share: u64,
    taken: Mutex<Usage>,
}

#[derive(Debug)]
struct Usage {
    left: u64,
    /// The number of bytes that each address holds.
    peers: HashMap<IpAddr, u64>,
}

impl BodyBudget {
    /// Creates a budget of `bytes` in total and `share` for the requests of one address.
    pub(super) fn new(bytes: u64, share: u64) -> Arc<Self> {
        Arc::new(Self { share, taken: Mutex::new(Usage { left: bytes, peers: HashMap::new() }) })
    }

    fn taken(&self) -> MutexGuard<'_, Usage> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes` more for a body that already holds `own`. Returns whether the budget allowed
    /// it. The only body of an address may exceed the share, so that the share never refuses a body
    /// that fits into the budget.
    fn take(&self, peer: IpAddr, own: u64, bytes: u64) -> bool {
        let mut taken = self.taken();
        let of_peer = taken.peers.get(&peer).copied().unwrap_or(0);
        let more = of_peer.saturating_add(bytes);
        let Some(left) = taken.left.checked_sub(bytes) else { return false };
        if more > self.share && of_peer > own {
            return false;
        }
        taken.left = left;
        taken.peers.insert(peer, more);
        true
    }

    fn give_back(&self, peer: IpAddr, bytes: u64) {
        let mut taken = self.taken();
        taken.left = taken.left.saturating_add(bytes);
        let left = taken.peers.get(&peer).map_or(0, |of_peer| of_peer.saturating_sub(bytes));
        match left {
            0 => taken.peers.remove(&peer),
            left => taken.peers.insert(peer, left),
        };
    }
}

/// Returns the address under which bytes are counted: the IPv4 address, or the /64 network of an
/// IPv6 subscriber.
fn accounting_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & (u128::MAX << 64);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// The bytes that one body holds, in the request's extensions. They are returned to the budget when
/// the last clone is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: Arc<BodyBudget>,
    peer: IpAddr,
    bytes: AtomicU64,
    /// Whether the body is streamed instead of held.
    passing: AtomicBool,
    refused: AtomicBool,
}

impl Reservation {
    /// Creates the reservation for a body from `peer`.
    pub(super) fn new(budget: &Arc<BodyBudget>, peer: IpAddr) -> Arc<Self> {
        Arc::new(Self {
            budget: Arc::clone(budget),
            peer: accounting_address(peer),
            bytes: AtomicU64::new(0),
            passing: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        })
    }

    /// Returns whether the budget was exhausted.
    pub(super) fn was_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Marks the body as streamed instead of held, and returns its bytes to the budget.
    pub(super) fn stop_counting(&self) {
        self.passing.store(true, Ordering::Relaxed);
        self.give_back();
    }

    fn give_back(&self) {
        match self.bytes.swap(0, Ordering::Relaxed) {
            0 => {}
            bytes => self.budget.give_back(self.peer, bytes),
        }
    }

    /// Takes `bytes` more from the budget. Returns whether the budget allowed it.
    fn grow(&self, bytes: u64) -> bool {
        if self.passing.load(Ordering::Relaxed) || bytes == 0 {
            return true;
        }
        let taken = self.budget.take(self.peer, self.bytes.load(Ordering::Relaxed), bytes);
        match taken {
            true => drop(self.bytes.fetch_add(bytes, Ordering::Relaxed)),
            // The bytes so far stay counted until the reader gets the error.
            false => self.refused.store(true, Ordering::Relaxed),
        }
        taken
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The body of a request. Its bytes are counted if it may be held.
#[derive(Debug)]
pub(super) struct MeteredBody<B> {
    body: B,
    held: Option<Arc<Reservation>>,
    /// The number of bytes that may still be held; bytes beyond it are not counted.
    left: usize,
}

impl<B> MeteredBody<B> {
    /// Creates a body that is streamed.
    pub(super) fn passing(body: B) -> Self {
        Self { body, held: None, left: 0 }
    }

    /// Creates a body of which up to `most` bytes are held.
    pub(super) fn held(body: B, held: Arc<Reservation>, most: usize) -> Self {
        Self { body, held: Some(held), left: most }
    }

    /// Counts a frame. Returns `None` if the frame is dropped because the budget is exhausted.
    fn counted(&mut self, frame: Frame<Bytes>) -> Option<Result<Frame<Bytes>, BoxError>> {
        let Some(held) = &self.held else { return Some(Ok(frame)) };
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let more = self.left.min(bytes);
        self.left -= more;
        if !held.was_refused() && held.grow(more as u64) {
            return Some(Ok(frame));
        }
        // A body that is longer than the limit of held bytes is not read to its end.
        (bytes > more).then(|| Err(exhausted()))
    }
}

fn exhausted() -> BoxError {
    io::Error::other("the memory budget for request bodies is exhausted").into()
}

impl<B> HttpBody for MeteredBody<B>
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
                    return Poll::Ready(Some(Err(exhausted())));
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

    type Payload = Full<Bytes>;

    const ANN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const BOB: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn sent(
        budget: &Arc<BodyBudget>,
        text: &'static str,
        most: usize,
    ) -> (Arc<Reservation>, MeteredBody<Payload>) {
        sent_by(ANN, budget, text, most)
    }

    fn sent_by(
        peer: IpAddr,
        budget: &Arc<BodyBudget>,
        text: &'static str,
        most: usize,
    ) -> (Arc<Reservation>, MeteredBody<Payload>) {
        let held = Reservation::new(budget, peer);
        (Arc::clone(&held), MeteredBody::held(Full::from(text), held, most))
    }

    #[tokio::test]
    async fn a_body_counts_until_its_reservation_is_dropped() {
        let budget = BodyBudget::new(4, 4);
        let (first, body) = sent(&budget, "abc", 9);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "abc");
        let (second, body) = sent(&budget, "de", 9);
        assert!(body.collect().await.is_err());
        assert!(second.was_refused() && !first.was_refused());
        drop((first, second));
        let (_, body) = sent(&budget, "fghi", 9);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "fghi");
    }

    #[tokio::test]
    async fn a_body_counts_up_to_its_limit_and_a_streamed_one_not_at_all() {
        let budget = BodyBudget::new(4, 4);
        let (long, body) = sent(&budget, "abcdefgh", 3);
        assert!(body.collect().await.is_ok());
        let (passing, body) = sent(&budget, "ijkl", 9);
        passing.stop_counting();
        assert!(body.collect().await.is_ok());
        let (_, body) = sent(&budget, "m", 9);
        assert!(body.collect().await.is_ok());
        drop((long, passing));
        let taken = budget.taken();
        assert_eq!((taken.left, taken.peers.len()), (4, 0));
    }

    #[tokio::test]
    async fn one_address_cannot_take_the_share_of_others() {
        let budget = BodyBudget::new(10, 4);
        let mut held = Vec::new();
        let mut whole = async |peer, text| {
            let (body_held, body) = sent_by(peer, &budget, text, 99);
            let whole = body.collect().await.is_ok();
            held.push(body_held);
            whole
        };
        assert!(whole(ANN, "abc").await);
        assert!(!whole(ANN, "de").await, "the share is four bytes");
        assert!(whole(ANN, "d").await);
        assert!(whole(BOB, "123456").await, "the only body of an address may have more");
        assert!(!whole(BOB, "7").await);
        held.clear();
        assert!(budget.taken().peers.is_empty());
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        let counted_as = |text: &str| accounting_address(text.parse().unwrap());
        assert_eq!(counted_as("2001:db8::1"), counted_as("2001:db8::ffff:1"));
        assert_ne!(counted_as("2001:db8::1"), counted_as("2001:db8:0:1::1"));
        assert_eq!(counted_as("::ffff:192.0.2.1"), counted_as("192.0.2.1"));
    }
}
