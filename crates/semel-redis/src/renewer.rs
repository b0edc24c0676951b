//! Renewing leases over a connection of its own, so that a queue of other commands, or a busy
//! runtime on the other side of it, cannot make a lease lapse.

use std::time::Duration;

use semel::Lease;
use semel::store::{Renewed, Renewer, Result};

use crate::error::{Effect, unexpected};
use crate::keys::Keys;
use crate::layout;
use crate::reply;
use crate::script::{self, Call};
use crate::settings::Settings;
use crate::store::{lease_guard, unreadable};
use crate::transport::Transport;

/// Extends leases.
pub struct RedisRenewer {
    transport: Transport,
    keys: Keys,
}

impl std::fmt::Debug for RedisRenewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisRenewer").finish_non_exhaustive()
    }
}

impl RedisRenewer {
    pub(crate) async fn connect(settings: &Settings) -> Result<Self> {
        let dialled = settings.dial().await;
        let transport = dialled.map_err(|failure| failure.during("renew", Effect::Reads))?;
        Ok(Self { transport, keys: settings.keys.clone() })
    }
}

impl Renewer for RedisRenewer {
    async fn renew(&mut self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>> {
        let forever = layout::FOREVER.to_string();
        let packed: Vec<_> = leases
            .iter()
            .map(|(lease, length)| {
                let name = self.keys.name(&lease.digest);
                let stored = layout::span(Some(*length));
                (name, lease_guard(lease), stored, layout::collectable(*length).to_string())
            })
            .collect();
        let args: Vec<[&[u8]; 6]> = packed
            .iter()
            .map(|(_, guard, stored, length)| {
                let (first, last) = (guard.first.as_bytes(), guard.last.as_bytes());
                let (length, forever) = (length.as_bytes(), forever.as_bytes());
                [first, last, &guard.expected, stored, length, forever]
            })
            .collect();
        let calls: Vec<_> = packed
            .iter()
            .zip(&args)
            .map(|((key, ..), args)| Call { script: &script::RENEW, key, args })
            .collect();
        let answers = self.transport.call_many(&calls).await;
        let renewed = answers.into_iter().map(|answer| {
            let value = answer.map_err(|failure| failure.during("renew", Effect::Writes))?;
            match reply::int(&value) {
                Some(1) => Ok(Renewed::Extended),
                Some(0) => Ok(Renewed::Lost),
                Some(-1) => Err(unreadable("renew")),
                _ => Err(unexpected("renew", &value)),
            }
        });
        renewed.collect()
    }
}
