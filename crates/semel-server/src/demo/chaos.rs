//! `--chaos`: a load that does to the demo what the world does, and a table that shows what came of it.
//!
//! Everything goes through real sockets. Whether anything was doubled or lost is counted in the
//! database, under a tenant of this run's own, and never concluded from what the load has seen.

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
use super::tables::Tables;
use crate::exit::ExitError;
use crate::settings::duration;

/// A load that was asked for.
#[derive(Clone, Debug)]
pub(super) struct Chaos {
    /// `None` goes on until the demo is stopped.
    lasts: Option<Duration>,
    /// Whose orders it places: a tenant that nobody else can know.
    tenant: Arc<str>,
}

impl Chaos {
    /// What `--chaos` and `--chaos-for` ask for.
    pub(super) fn of(wanted: bool, lasts: Option<&str>) -> Result<Option<Self>, ExitError> {
        let wrong = |why| ExitError::usage(format_args!("--chaos-for: {why}"));
        let lasts = lasts.map(duration::parse).transpose().map_err(wrong)?;
        if lasts.is_some_and(|lasts| lasts.is_zero()) {
            return Err(wrong("a load of no length shows nothing".to_owned()));
        }
        if !wanted && lasts.is_none() {
            return Ok(None);
        }
        let tenant = format!("chaos-{}", Generator::new().generate().map_err(ExitError::failed)?);
        Ok(Some(Self { lasts, tenant: tenant.into() }))
    }

    /// Whose requests and events are to go wrong.
    pub(super) fn tenant(&self) -> Arc<str> {
        Arc::clone(&self.tenant)
    }

    /// Mistreats the orders service at `url` until its time is over, or `stop`.
    pub(super) async fn run<S: Tables>(
        self,
        url: &str,
        service: &OrderService<S>,
        arrivals: Option<Arc<Arrivals>>,
        stop: &CancellationToken,
    ) -> Result<(), ExitError> {
        let told =
            if self.lasts.is_some() { ResponseLog::kept() } else { ResponseLog::forgotten() };
        let load = Arc::new(Load::new(url, &self.tenant, told)?);
        let over = stop.child_token();
        let working = load.start(&over, stop);
        let mut watch = Watch::new(service, &self.tenant, &load, arrivals);
        let began = Instant::now();
        let ends = self.lasts.map(|lasts| began + lasts);
        while !stop.is_cancelled() && ends.is_none_or(|ends| Instant::now() < ends) {
            watch.pause(ends, stop).await;
            watch.send_again().await;
            // A database that is away for a moment is what this is about.
            if let Err(failure) = watch.look().await {
                tracing::warn!(%failure, "looking again in a moment");
            }
        }
        // Every key that was begun gets its answer, and every event its effects; unless the demo is
        // stopped, and there is nobody to answer.
        over.cancel();
        working.wait().await;
        if ends.is_some() && !stop.is_cancelled() {
            watch.settle(stop).await?;
        }
        // Stopped while things were on their way, nobody can say what is lost.
        if ends.is_none() || stop.is_cancelled() {
            return watch.leave().await;
        }
        watch.verdict().await
    }
}
