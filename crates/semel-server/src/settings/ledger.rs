//! The settings of `[ledger]`: the store, and the default policy of operations.

use std::time::Duration;

use semel_core::Executor;
use semel_core::executor::Polling;
use semel_core::policy::Policy;
use semel_core::store::Store;
use serde::Deserialize;

use super::{duration, waits};
use crate::exit::ExitError;
use crate::store::StoreUrl;

/// The settings of `[ledger]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerSettings {
    /// The store's URL; with `None`, the default of the command.
    #[serde(deserialize_with = "address")]
    pub store: Option<StoreUrl>,
    /// The prefix of a Redis ledger's keys.
    pub prefix: String,
    /// The time for which outcomes are stored.
    #[serde(deserialize_with = "duration::optional")]
    pub keep: Option<Duration>,
    /// The time for which a claim lives without renewal.
    #[serde(deserialize_with = "duration::optional")]
    pub lease: Option<Duration>,
    /// The longest time that a duplicate waits for the first outcome. With zero, it does not wait.
    pub wait: Option<WaitTimeout>,
    /// The first polling interval of a waiting duplicate.
    #[serde(deserialize_with = "duration::optional")]
    pub wait_interval: Option<Duration>,
    /// The longest polling interval of a waiting duplicate.
    #[serde(deserialize_with = "duration::optional")]
    pub wait_max_interval: Option<Duration>,
}

/// The longest time that a duplicate waits for the first outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitTimeout {
    /// The duplicate waits at most this long; with zero, not at all.
    UpTo(Duration),
    /// The value `"caller"`: the duplicate waits until its caller disconnects, at most an hour.
    Caller,
}

impl WaitTimeout {
    /// The longest wait of [`WaitTimeout::Caller`]. It is limited because the caller holds a
    /// connection for all of it.
    const CALLER: Duration = Duration::from_secs(60 * 60);

    /// Returns the longest wait.
    pub fn limit(self) -> Duration {
        match self {
            WaitTimeout::UpTo(limit) => limit,
            WaitTimeout::Caller => Self::CALLER,
        }
    }
}

impl<'de> Deserialize<'de> for WaitTimeout {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let written = toml::Value::deserialize(from)?;
        match written.as_str() {
            Some("caller") => Ok(WaitTimeout::Caller),
            _ => duration::deserialize(written).map(WaitTimeout::UpTo).map_err(|error| {
                let why = error.to_string();
                serde::de::Error::custom(format_args!("{}; or \"caller\"", why.trim()))
            }),
        }
    }
}

impl Default for LedgerSettings {
    fn default() -> Self {
        Self {
            store: None,
            prefix: semel_redis::Builder::PREFIX.to_owned(),
            keep: None,
            lease: None,
            wait: None,
            wait_interval: None,
            wait_max_interval: None,
        }
    }
}

impl LedgerSettings {
    /// Returns the default policy of operations.
    pub(crate) fn policy(&self) -> Policy {
        let usual = Policy::default();
        Policy {
            keep: self.keep.unwrap_or(usual.keep),
            lease: self.lease.unwrap_or(usual.lease),
            wait: self.wait.map_or(usual.wait, |wait| waits(wait.limit())),
            ..usual
        }
    }

    /// Returns the polling of waiting duplicates.
    pub(crate) fn polling(&self) -> Polling {
        let Polling { first, max } = Polling::default();
        Polling {
            first: self.wait_interval.unwrap_or(first),
            max: self.wait_max_interval.unwrap_or(max),
        }
    }

    /// Returns an executor on `store` with these settings.
    pub(crate) fn executor<S: Store>(&self, store: S) -> Result<Executor<S>, ExitError> {
        let built = Executor::builder(store).policy(self.policy()).polling(self.polling()).build();
        built.map_err(|invalid| ExitError::usage(format_args!("[ledger]: {invalid}")))
    }
}

fn address<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<StoreUrl>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}
