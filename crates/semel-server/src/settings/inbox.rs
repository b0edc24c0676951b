//! `[inbox]`: how events are handled.

use std::time::Duration;

use semel_core::AnyStore;
use semel_core::policy::{OnFailure, Policy, Wait};
use serde::Deserialize;

use super::duration;

/// `[inbox]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InboxSettings {
    /// The lease of a handler's claim.
    #[serde(deserialize_with = "duration::optional")]
    pub lease: Option<Duration>,
    /// Whether a second delivery waits for the first.
    pub wait_if_in_progress: bool,
    /// The longest wait.
    #[serde(with = "duration")]
    pub wait_max: Duration,
    /// Attempts before an event is dead.
    pub max_attempts: Option<u32>,
    /// The pause before the second attempt; it doubles.
    #[serde(deserialize_with = "duration::optional")]
    pub base_backoff: Option<Duration>,
    /// The longest pause.
    #[serde(deserialize_with = "duration::optional")]
    pub max_backoff: Option<Duration>,
}

impl Default for InboxSettings {
    fn default() -> Self {
        Self {
            lease: None,
            wait_if_in_progress: false,
            // The library has no default: it does not wait unless it is asked to.
            wait_max: Duration::from_secs(5),
            max_attempts: None,
            base_backoff: None,
            max_backoff: None,
        }
    }
}

impl InboxSettings {
    /// Returns the backoff between attempts.
    pub(crate) fn backoff(&self) -> OnFailure {
        super::pauses(self.base_backoff, self.max_backoff)
    }

    /// Returns the policy as set, with the library's defaults.
    pub(crate) fn policy(&self) -> Policy {
        let usual = semel_core::inbox::Inbox::<AnyStore>::default_policy();
        Policy {
            lease: self.lease.unwrap_or(usual.lease),
            wait: if self.wait_if_in_progress { Wait::UpTo(self.wait_max) } else { usual.wait },
            on_failure: self.backoff(),
            max_attempts: self.max_attempts.or(usual.max_attempts),
            ..usual
        }
    }
}
