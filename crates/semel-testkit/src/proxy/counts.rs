//! The traffic and the injected faults of a proxy.

use std::sync::atomic::{AtomicU64, Ordering};

/// Traffic so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyTraffic {
    /// Connections that were accepted.
    pub connections: u64,
    /// Bytes that were forwarded to the server.
    pub request_bytes: u64,
    /// Bytes that were forwarded to the client.
    pub reply_bytes: u64,
    /// Pieces in which requests arrived.
    pub request_segments: u64,
    /// Pieces in which replies arrived.
    pub reply_segments: u64,
    /// Round trips: bursts of requests that followed a reply, or began a connection.
    pub trips: u64,
}

/// Faults that happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Connections that were reset.
    pub resets: u64,
    /// Connections that were accepted and never served.
    pub half_open: u64,
    /// Pieces that were held back by a blackhole.
    pub held: u64,
    /// Pieces that were delayed.
    pub delayed: u64,
    /// Replies that were cut.
    pub cuts: u64,
}

impl FaultCounts {
    /// Returns their sum.
    pub fn total(&self) -> u64 {
        let Self { resets, half_open, held, delayed, cuts } = self;
        resets + half_open + held + delayed + cuts
    }
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) connections: AtomicU64,
    pub(super) request_bytes: AtomicU64,
    pub(super) reply_bytes: AtomicU64,
    pub(super) request_segments: AtomicU64,
    pub(super) reply_segments: AtomicU64,
    pub(super) trips: AtomicU64,
    pub(super) resets: AtomicU64,
    pub(super) half_open: AtomicU64,
    pub(super) held: AtomicU64,
    pub(super) delayed: AtomicU64,
    pub(super) cuts: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, amount: usize) {
    counter.fetch_add(amount as u64, Ordering::SeqCst);
}

impl Counts {
    pub(super) fn traffic(&self) -> ProxyTraffic {
        let read = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        ProxyTraffic {
            connections: read(&self.connections),
            request_bytes: read(&self.request_bytes),
            reply_bytes: read(&self.reply_bytes),
            request_segments: read(&self.request_segments),
            reply_segments: read(&self.reply_segments),
            trips: read(&self.trips),
        }
    }

    pub(super) fn happened(&self) -> FaultCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        FaultCounts {
            resets: read(&self.resets),
            half_open: read(&self.half_open),
            held: read(&self.held),
            delayed: read(&self.delayed),
            cuts: read(&self.cuts),
        }
    }
}
