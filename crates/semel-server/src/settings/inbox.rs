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
    /// How long a handler's claim lives without renewal.
    #[serde(deserialize_with = "duration::optional")]
    pub lease: Option<Duration>,
    /// Whether a second delivery waits for the first.
    pub wait_if_in_progress: bool,
    /// How long it waits at most.
    #[serde(with = "duration")]
    pub wait_max: Duration,
    /// Tries before an event is given up.
    pub max_attempts: Option<u32>,
    /// The pause before the second try; it doubles.
    #[serde(deserialize_with = "duration::optional")]
    pub base_backoff: Option<Duration>,
    /// The longest such pause.
    #[serde(deserialize_with = "duration::optional")]
    pub max_backoff: Option<Duration>,
}

impl Default for InboxSettings {
    fn default() -> Self {
        Self {
            lease: None,
            wait_if_in_progress: false,
            // Of whoever waits, which nobody does unless it is asked for: the library has no number.
            wait_max: Duration::from_secs(5),
            max_attempts: None,
            base_backoff: None,
            max_backoff: None,
        }
    }
}

impl InboxSettings {
    /// The pauses between tries.
    pub(crate) fn backoff(&self) -> OnFailure {
        super::pauses(self.base_backoff, self.max_backoff)
    }

    /// How an event is handled, as it was set, or as the library has it.
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
