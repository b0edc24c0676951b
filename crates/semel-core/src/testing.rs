//! Switches for tests: failpoints that abort the process, and sabotage that removes a guard.
//!
//! Compiled only with the feature `testing`, and inactive unless the environment sets them. Every guard has
//! a test that fails when the guard is removed here.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names the guards to remove, separated by commas: see [`Guard`].
pub const SABOTAGE: &str = "SEMEL_SABOTAGE";
/// `name` or `name@n`: abort the process when the failpoint is reached for the n-th time.
pub const FAILPOINT: &str = "SEMEL_FAILPOINT";

/// A guard that can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guard {
    /// `fence`: settling and renewing check fence and attempt.
    Fence,
    /// `spawn`: the attempt is a task of its own.
    Spawn,
    /// `identity`: keys are compared byte by byte.
    Identity,
    /// `store-clock`: leases are judged by the store's clock.
    StoreClock,
    /// `expiry-first`: expiry is judged before the fingerprint.
    ExpiryFirst,
    /// `failure-after-rollback`: a failure is recorded after the work's transaction rolled back.
    FailureAfterRollback,
    /// `heartbeat-thread`: renewal runs on a thread of its own.
    HeartbeatThread,
    /// `ambiguity`: a lost reply is resolved by re-reading the attempt id.
    Ambiguity,
    /// `publish-before-mark`: a row is marked published after the broker confirmed it.
    PublishBeforeMark,
    /// `claim-by-state`: outbox rows are claimed by their state, not by a cursor over their numbers.
    ClaimByState,
    /// `commit-before-ack`: a message is acknowledged after the inbox committed.
    CommitBeforeAck,
    /// `clock-jump`: nothing is removed by a clock that has jumped, and times that it wrote are counted
    /// anew.
    ClockJump,
    /// `version`: re-grants are compare-and-swap on the judged version.
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

    /// Returns the name in [`SABOTAGE`].
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
    // Read once: benchmarks that are built with this feature call it often.
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
        // Not a panic: no destructor, no flush, exactly what a power cut leaves of a process.
        std::process::abort();
    }
}
