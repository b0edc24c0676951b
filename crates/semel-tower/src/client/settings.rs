//! The settings of outbound calls.

use std::time::Duration;

use super::dialect::Dialect;
use super::retry::Backoff;

/// The settings of calls to one provider. The setters of [`CallLayer`](super::CallLayer) explain
/// each.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) dialect: Dialect,
    pub(super) fresh: bool,
    pub(super) tries: u32,
    pub(super) budget: Duration,
    pub(super) try_timeout: Duration,
    pub(super) backoff: Backoff,
    pub(super) longest_retry_after: Duration,
    pub(super) read_ahead: usize,
}
