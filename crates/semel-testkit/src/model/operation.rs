//! The steps of a random history, and how histories are drawn.

use proptest::prelude::*;
use semel_core::OnCrash;

/// The number of keys of one history.
pub(crate) const KEYS: usize = 3;

/// A span in half units. Leases, retentions and delays are odd, and time advances by even spans, so
/// no deadline falls on the moment of a step: the time that the steps themselves take cannot change
/// an answer.
pub(crate) type Span = i64;

/// A claim: the arguments of a begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimOperation {
    pub(crate) key: usize,
    /// Identifies the request. Two different requests under one key mismatch; `None` matches any.
    pub(crate) request: Option<u8>,
    pub(crate) lease: Span,
    pub(crate) keep: Span,
    pub(crate) on_crash: OnCrash,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) can_verify: bool,
    /// The retry payload of the claim, as a byte.
    pub(crate) retry_payload: Option<u8>,
}

/// How a record ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Complete { body: u8, keep: Span },
    Fail { text: u8, delay: Option<Span>, keep: Span, max_attempts: Option<u32> },
    Die { text: u8 },
    Suspend { text: u8 },
    Discard { text: u8 },
    Release,
}

/// One step. A holder is an index into all grants of the history, stale ones included. An index
/// beyond the last grant wraps round, so any part of a history is a valid history.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Begin(ClaimOperation),
    /// A claim that ends at once.
    Once(ClaimOperation, End),
    Renew {
        holder: usize,
        lease: Span,
    },
    Settle {
        holder: usize,
        end: End,
    },
    Advance {
        by: Span,
    },
    Sweep {
        limit: u32,
    },
    Peek {
        key: usize,
    },
    Redrive {
        key: usize,
    },
    EndByOperator {
        key: usize,
        end: End,
    },
    /// A re-grant with a version that was read earlier.
    SwapSeen {
        seen: usize,
        lease: Span,
        retry_payload: Option<u8>,
    },
    /// Sets the store's clock ahead, or back if it is ahead.
    Jump {
        by: Span,
    },
    Count,
    /// Lists the keys that are due.
    Due,
}

fn odd(limit: Span) -> impl Strategy<Value = Span> + Clone {
    (0..limit).prop_map(|half| 2 * half + 1)
}

fn retry_payload() -> impl Strategy<Value = Option<u8>> + Clone {
    prop_oneof![1 => Just(None), 1 => any::<u8>().prop_map(Some)]
}

fn ask() -> impl Strategy<Value = ClaimOperation> {
    let request = prop_oneof![6 => Just(Some(0)), 1 => Just(Some(1)), 1 => Just(None)];
    let on_crash = prop_oneof![
        3 => Just(OnCrash::Rerun),
        1 => Just(OnCrash::Hold),
        1 => Just(OnCrash::Verify),
    ];
    let most = prop_oneof![2 => Just(None), 1 => (1..4u32).prop_map(Some)];
    (0..KEYS, request, odd(4), odd(8), on_crash, most, any::<bool>(), retry_payload()).prop_map(
        |(key, request, lease, keep, on_crash, max_attempts, can_verify, retry_payload)| {
            ClaimOperation {
                key,
                request,
                lease,
                keep,
                on_crash,
                max_attempts,
                can_verify,
                retry_payload,
            }
        },
    )
}

fn end() -> impl Strategy<Value = End> {
    let delay = prop_oneof![2 => Just(Some(0)), 3 => odd(4).prop_map(Some), 1 => Just(None)];
    let most = prop_oneof![2 => Just(None), 1 => (1..4u32).prop_map(Some)];
    prop_oneof![
        3 => (any::<u8>(), odd(8)).prop_map(|(body, keep)| End::Complete { body, keep }),
        4 => (any::<u8>(), delay, odd(8), most).prop_map(|(text, delay, keep, max_attempts)| {
            End::Fail { text, delay, keep, max_attempts }
        }),
        1 => any::<u8>().prop_map(|text| End::Die { text }),
        1 => any::<u8>().prop_map(|text| End::Suspend { text }),
        1 => any::<u8>().prop_map(|text| End::Discard { text }),
        1 => Just(End::Release),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let any_holder = 0..64usize;
    prop_oneof![
        10 => ask().prop_map(Operation::Begin),
        4 => (ask(), end()).prop_map(|(ask, end)| Operation::Once(ask, end)),
        3 => (any_holder.clone(), odd(4))
            .prop_map(|(holder, lease)| Operation::Renew { holder, lease }),
        7 => (any_holder, end()).prop_map(|(holder, end)| Operation::Settle { holder, end }),
        5 => (1..5i64).prop_map(|units| Operation::Advance { by: 2 * units }),
        2 => prop_oneof![Just(1), Just(2), Just(100)]
            .prop_map(|limit| Operation::Sweep { limit }),
        1 => (0..KEYS).prop_map(|key| Operation::Peek { key }),
        1 => (0..KEYS).prop_map(|key| Operation::Redrive { key }),
        1 => (0..KEYS, end()).prop_map(|(key, end)| Operation::EndByOperator { key, end }),
        2 => (0..64usize, odd(4), retry_payload())
            .prop_map(|(seen, lease, retry_payload)| Operation::SwapSeen { seen, lease, retry_payload }),
        // Further than any sweeper trusts.
        2 => (10..40i64).prop_map(|units| Operation::Jump { by: 2 * units }),
        1 => Just(Operation::Count),
        1 => Just(Operation::Due),
    ]
}

/// Returns the strategy for histories of exactly `length` steps.
pub(crate) fn history(length: usize) -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(), length)
}
