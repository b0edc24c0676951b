//! Counts the traffic and the injected faults of a proxy.

use std::sync::atomic::{AtomicU64, Ordering};

/// The traffic through a proxy since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyTraffic {
    /// The number of accepted connections.
    pub connections: u64,
    /// The number of bytes forwarded to the server.
    pub request_bytes: u64,
    /// The number of bytes forwarded to clients.
    pub reply_bytes: u64,
    /// The number of pieces in which requests arrived.
    pub request_segments: u64,
    /// The number of pieces in which replies arrived.
    pub reply_segments: u64,
    /// The number of round trips: bursts of requests that follow a reply or begin a connection.
    pub trips: u64,
}

/// The faults injected by a proxy since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// The number of connections that were reset.
    pub resets: u64,
    /// The number of connections that were accepted and never served.
    pub half_open: u64,
    /// The number of pieces that a blackhole held.
    pub held: u64,
    /// The number of pieces that were delayed.
    pub delayed: u64,
    /// The number of replies that were cut.
    pub cuts: u64,
}

impl FaultCounts {
    /// Returns the sum of all faults.
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
