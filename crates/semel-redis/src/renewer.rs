//! Renews leases over a connection of its own, so that neither a queue of other commands nor a busy
//! runtime behind them can make a lease lapse.

use std::time::Duration;

use redis::Value;
use semel_core::Lease;
use semel_core::store::{Renewed, Renewer, Result};

use crate::error::Effect;
use crate::guard::lease_guard;
use crate::keys::Keys;
use crate::layout;
use crate::reply;
use crate::script::{self, Call};
use crate::settings::Settings;
use crate::transport::Transport;

/// Renews leases in Redis.
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
        let (mut renewed, mut failed) = (Vec::with_capacity(leases.len()), Vec::new());
        for ((lease, _), answer) in leases.iter().zip(answers) {
            // One record that cannot be read must not cost the others their leases.
            renewed.push(answer.map_or_else(
                |failure| {
                    failed.push(failure);
                    Renewed::Unknown
                },
                |value| renewed_by(lease, &value),
            ));
        }
        match failed.pop() {
            Some(failure) if failed.len() + 1 == leases.len() => {
                Err(failure.during("renew", Effect::Writes))
            }
            _ => Ok(renewed),
        }
    }
}

/// Reads the script's answer about one lease.
fn renewed_by(lease: &Lease, value: &Value) -> Renewed {
    match reply::int(value) {
        Some(1) => Renewed::Extended,
        Some(0) => Renewed::Lost,
        _ => {
            let digest = &lease.digest;
            tracing::warn!(%digest, "did not renew a claim whose record cannot be read");
            Renewed::Unknown
        }
    }
}
