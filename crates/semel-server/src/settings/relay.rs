//! The settings of `[relay]`, which control how events are published from the outbox.

use std::time::Duration;

use semel_core::outbox::{Outbox, Publisher, RelayBuilder};
use semel_core::policy::OnFailure;
use serde::Deserialize;

use super::duration;
use crate::broker::BrokerUrl;

/// The settings of `[relay]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelaySettings {
    /// The largest number of events in one claim.
    pub batch: Option<u32>,
    /// The lease of claimed events.
    #[serde(deserialize_with = "duration::optional")]
    pub lease: Option<Duration>,
    /// The pause before the second attempt to publish an event; it doubles with every attempt.
    #[serde(deserialize_with = "duration::optional")]
    pub base_backoff: Option<Duration>,
    /// The longest pause between two attempts.
    #[serde(deserialize_with = "duration::optional")]
    pub max_backoff: Option<Duration>,
    /// The number of attempts after which an event is dead.
    pub max_attempts: Option<u32>,
    /// The broker's URL; with `None`, `semel relay` needs `--broker`.
    #[serde(deserialize_with = "broker")]
    pub broker: Option<BrokerUrl>,
    /// The name of the stream, the exchange or the keys on the broker.
    pub broker_name: Option<String>,
    /// The address of the admin listener of `semel relay`, or `off`.
    pub admin_listen: Option<String>,
    /// Whether later events of an aggregate wait behind a dead one.
    pub dead_hold_partition: Option<bool>,
    /// The time for which published events are kept.
    #[serde(deserialize_with = "duration::optional")]
    pub keep: Option<Duration>,
}

impl RelaySettings {
    /// Returns the backoff between attempts.
    pub(crate) fn backoff(&self) -> OnFailure {
        super::pauses(self.base_backoff, self.max_backoff)
    }

    /// Applies the settings to a relay's builder.
    pub(crate) fn over<O: Outbox, P: Publisher>(
        &self,
        mut builder: RelayBuilder<O, P>,
    ) -> RelayBuilder<O, P> {
        if let Some(rows) = self.batch {
            builder = builder.batch(rows);
        }
        if let Some(lease) = self.lease {
            builder = builder.lease(lease);
        }
        if let OnFailure::Backoff { base, cap } = self.backoff() {
            builder = builder.backoff(base, cap);
        }
        if let Some(tries) = self.max_attempts {
            builder = builder.max_attempts(tries);
        }
        if let Some(hold) = self.dead_hold_partition {
            builder = builder.dead_hold_their_partition(hold);
        }
        if let Some(keep) = self.keep {
            builder = builder.keep(keep);
        }
        builder
    }
}

fn broker<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<BrokerUrl>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(serde::de::Error::custom)
}
