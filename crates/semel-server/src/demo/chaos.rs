//! `--chaos`: a hostile load, and a table that shows its effects.
//!
//! Calls go through real sockets. Whether anything was doubled or lost is counted in the database, under a
//! tenant of this run's own.

mod board;
mod caller;
mod load;
mod responses;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use semel_ids::Generator;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::load::Load;
use self::responses::ResponseLog;
use self::watch::Watch;
use super::OrderService;
use super::arrivals::Arrivals;
use crate::exit::ExitError;
use crate::settings::duration;

/// The requested load.
#[derive(Clone, Debug)]
pub(super) struct Chaos {
    /// `None` goes on until the demo is stopped.
    lasts: Option<Duration>,
    /// The tenant of its orders, generated for this run.
    tenant: Arc<str>,
}

impl Chaos {
    /// Reads `--chaos` and `--chaos-for`.
    pub(super) fn of(wanted: bool, lasts: Option<&str>) -> Result<Option<Self>, ExitError> {
        let wrong = |why| ExitError::usage(format_args!("--chaos-for: {why}"));
        let lasts = lasts.map(duration::parse).transpose().map_err(wrong)?;
        if lasts.is_some_and(|lasts| lasts.is_zero()) {
            return Err(wrong("must be greater than 0".to_owned()));
        }
        if !wanted && lasts.is_none() {
            return Ok(None);
        }
        let tenant = format!("chaos-{}", Generator::new().generate().map_err(ExitError::failed)?);
        Ok(Some(Self { lasts, tenant: tenant.into() }))
    }

    /// Returns the tenant whose requests and events get faults.
    pub(super) fn tenant(&self) -> Arc<str> {
        Arc::clone(&self.tenant)
    }

    /// Runs the load against the orders service at `url` until its time is over, or `stop`.
    pub(super) async fn run(
        self,
        url: &str,
        service: &OrderService,
        arrivals: Option<Arc<Arrivals>>,
        stop: &CancellationToken,
    ) -> Result<(), ExitError> {
        let responses =
            if self.lasts.is_some() { ResponseLog::kept() } else { ResponseLog::forgotten() };
        let load = Arc::new(Load::new(url, &self.tenant, responses)?);
        let over = stop.child_token();
        let working = load.start(&over, stop);
        let mut watch = Watch::new(service, &self.tenant, &load, arrivals);
        let began = Instant::now();
        let ends = self.lasts.map(|lasts| began + lasts);
        while !stop.is_cancelled() && ends.is_none_or(|ends| Instant::now() < ends) {
            watch.pause(ends, stop).await;
            watch.send_again().await;
            // A database that is unavailable for a moment is part of the demonstration.
            if let Err(failure) = watch.look().await {
                tracing::warn!(%failure, "the tables could not be counted; trying again");
            }
        }
        // Every key gets its response and every event its effects, unless the demo is stopped.
        over.cancel();
        working.wait().await;
        if ends.is_some() && !stop.is_cancelled() {
            watch.settle(stop).await?;
        }
        // After a stop, events may still be on their way: what is missing is not lost.
        if ends.is_none() || stop.is_cancelled() {
            return watch.leave().await;
        }
        watch.verdict().await
    }
}
