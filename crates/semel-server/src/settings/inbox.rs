//! The settings of `[inbox]`, which control how events are handled.

use std::time::Duration;

use semel_core::AnyStore;
use semel_core::policy::{OnFailure, Policy, Wait};
use serde::Deserialize;

use super::duration;

/// The settings of `[inbox]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InboxSettings {
    /// The lease of a handler's claim.
    #[serde(deserialize_with = "duration::optional")]
    pub lease: Option<Duration>,
    /// Whether a second delivery waits for the first.
    pub wait_if_in_progress: bool,
    /// The longest time that a second delivery waits for the first.
    #[serde(with = "duration")]
    pub wait_max: Duration,
    /// The number of attempts after which an event is dead.
    pub max_attempts: Option<u32>,
    /// The pause before the second attempt; it doubles with every attempt.
    #[serde(deserialize_with = "duration::optional")]
    pub base_backoff: Option<Duration>,
    /// The longest pause between two attempts.
    #[serde(deserialize_with = "duration::optional")]
    pub max_backoff: Option<Duration>,
}

impl Default for InboxSettings {
    fn default() -> Self {
        Self {
            lease: None,
            wait_if_in_progress: false,
            // The library has no default, because it does not wait by default.
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

    /// Returns the policy with these settings; a missing value gets the library's default.
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
