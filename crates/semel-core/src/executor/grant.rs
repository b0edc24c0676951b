//! A granted claim as plain values; its lease is renewed elsewhere.

use std::time::Instant;

use crate::claim::{Lease, OperationId, Origin};
use crate::fingerprint::Fingerprint;

/// The values of a granted claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) lease: Lease,
    pub(super) operation_id: OperationId,
    pub(super) attempt: u32,
    pub(super) origin: Origin,
    /// The fingerprint that later requests are compared with.
    pub(super) fingerprint: Fingerprint,
    /// Whether a crashed attempt must be verified before the work runs.
    pub(super) verify: bool,
    /// The time at which the grant was requested.
    pub(super) since: Instant,
}
