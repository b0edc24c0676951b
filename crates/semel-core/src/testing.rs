//! Switches for tests: failpoints abort the process, and sabotage removes a guard.
//!
//! This module is compiled only with the feature `testing`, and its switches are inactive unless
//! the environment sets them. For every guard there is a test that fails when the guard is removed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The environment variable with the names of the guards to remove, separated by commas: see
/// [`Guard`].
pub const SABOTAGE: &str = "SEMEL_SABOTAGE";
/// The environment variable with a failpoint, `name` or `name@n`: the process aborts when the
/// failpoint is reached for the n-th time.
pub const FAILPOINT: &str = "SEMEL_FAILPOINT";

/// A guard that can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// `fence`: settling and renewing check the fence and the attempt id.
    Fence,
    /// `spawn`: an attempt moves to its own task and survives its caller.
    Spawn,
    /// `identity`: keys are compared byte by byte.
    Identity,
    /// `store-clock`: leases end by the store's clock.
    StoreClock,
    /// `expiry-first`: the judge checks the expiry before the fingerprint.
    ExpiryFirst,
    /// `failure-after-rollback`: a failure is recorded after the work's transaction rolled back.
    FailureAfterRollback,
    /// `heartbeat-thread`: leases are renewed on a separate thread.
    HeartbeatThread,
    /// `ambiguity`: after a lost reply the record's attempt id is read again.
    Ambiguity,
    /// `publish-before-mark`: a row is marked published after the broker confirmed it.
    PublishBeforeMark,
    /// `claim-by-state`: outbox rows are claimed by their state, not by a cursor over their numbers.
    ClaimByState,
    /// `commit-before-ack`: a message is acknowledged after the inbox committed.
    CommitBeforeAck,
    /// `clock-jump`: no record is removed by a clock that has jumped ahead, and times that such a
    /// clock wrote are corrected.
    ClockJump,
    /// `version`: a re-grant is a compare-and-swap on the version that was judged.
    Version,
}

impl Guard {
    /// All guards.
    pub const ALL: [Guard; 13] = [
        Guard::Fence,
        Guard::Spawn,
        Guard::Identity,
        Guard::StoreClock,
        Guard::ExpiryFirst,
        Guard::FailureAfterRollback,
        Guard::HeartbeatThread,
        Guard::Ambiguity,
        Guard::Version,
        Guard::PublishBeforeMark,
        Guard::ClaimByState,
        Guard::CommitBeforeAck,
        Guard::ClockJump,
    ];

    /// Returns the name by which [`SABOTAGE`] selects this guard.
    pub const fn name(self) -> &'static str {
        match self {
            Guard::Fence => "fence",
            Guard::Spawn => "spawn",
            Guard::Identity => "identity",
            Guard::StoreClock => "store-clock",
            Guard::ExpiryFirst => "expiry-first",
            Guard::FailureAfterRollback => "failure-after-rollback",
            Guard::HeartbeatThread => "heartbeat-thread",
            Guard::Ambiguity => "ambiguity",
            Guard::Version => "version",
            Guard::PublishBeforeMark => "publish-before-mark",
            Guard::ClaimByState => "claim-by-state",
            Guard::CommitBeforeAck => "commit-before-ack",
            Guard::ClockJump => "clock-jump",
        }
    }
}

/// Returns whether the environment removes this guard.
pub fn sabotaged(guard: Guard) -> bool {
    // The variable is read once, because benchmarks that are built with this feature call this
    // function often.
    static REMOVED: OnceLock<Vec<Guard>> = OnceLock::new();
    let removed = REMOVED.get_or_init(|| {
        let list = std::env::var(SABOTAGE).unwrap_or_default();
        let named = |guard: &Guard| list.split(',').any(|name| name.trim() == guard.name());
        Guard::ALL.into_iter().filter(named).collect()
    });
    removed.contains(&guard)
}

/// Aborts the process if the environment sets this failpoint.
pub fn failpoint(name: &str) {
    static ARMED: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static REACHED: AtomicU32 = AtomicU32::new(0);
    let armed = ARMED.get_or_init(|| {
        let text = std::env::var(FAILPOINT).ok()?;
        let (name, nth) = text.split_once('@').unwrap_or((&text, "1"));
        Some((name.to_owned(), nth.parse().unwrap_or(1)))
    });
    if let Some((point, nth)) = armed
        && point == name
        && REACHED.fetch_add(1, Ordering::SeqCst) + 1 == *nth
    {
        // An abort runs no destructors and flushes no buffers, like a power cut.
        std::process::abort();
    }
}
