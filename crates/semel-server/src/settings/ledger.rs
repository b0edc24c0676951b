//! `[ledger]`: where records are kept, and what is done with an operation that nobody says more about.

use std::time::Duration;

use semel_core::Executor;
use semel_core::executor::Polling;
use semel_core::policy::Policy;
use semel_core::store::Store;
use serde::Deserialize;

use super::{duration, waits};
use crate::exit::ExitError;
use crate::store::StoreUrl;

/// `[ledger]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerSettings {
    /// The store's URL. `None` leaves the choice to the command.
    #[serde(deserialize_with = "address")]
    pub store: Option<StoreUrl>,
    /// What a Redis ledger's keys begin with.
    pub prefix: String,
    /// How long answers are kept.
    #[serde(deserialize_with = "duration::optional")]
    pub keep: Option<Duration>,
    /// How long a claim lives without renewal.
    #[serde(deserialize_with = "duration::optional")]
    pub lease: Option<Duration>,
    /// How long a repeat waits for the first answer. Zero does not wait.
    pub wait: Option<WaitTimeout>,
    /// The first pause between two looks of a waiting repeat.
    #[serde(deserialize_with = "duration::optional")]
    pub wait_interval: Option<Duration>,
    /// The longest such pause.
    #[serde(deserialize_with = "duration::optional")]
    pub wait_max_interval: Option<Duration>,
}

/// How long a repeat waits for the first answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitTimeout {
    /// So long at most; zero does not wait.
    UpTo(Duration),
    /// `"caller"`: as long as its caller stays, and an hour at most.
    Caller,
}

impl WaitTimeout {
    /// The longest wait of a caller that stays: it holds a connection for all of it.
    const CALLER: Duration = Duration::from_secs(60 * 60);

    /// The longest that it is.
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
    /// How an operation runs of which nobody says more.
    pub(crate) fn policy(&self) -> Policy {
        let usual = Policy::default();
        Policy {
            keep: self.keep.unwrap_or(usual.keep),
            lease: self.lease.unwrap_or(usual.lease),
            wait: self.wait.map_or(usual.wait, |wait| waits(wait.limit())),
            ..usual
        }
    }

    /// How often those look who wait.
    pub(crate) fn polling(&self) -> Polling {
        let Polling { first, max } = Polling::default();
        Polling {
            first: self.wait_interval.unwrap_or(first),
            max: self.wait_max_interval.unwrap_or(max),
        }
    }

    /// Runs operations on `store` by what was set.
    pub(crate) fn executor<S: Store>(&self, store: S) -> Result<Executor<S>, ExitError> {
        let built = Executor::builder(store).policy(self.policy()).polling(self.polling()).build();
        built.map_err(|invalid| ExitError::usage(format_args!("[ledger]: {invalid}")))
    }
}

fn address<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<StoreUrl>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}
