//! Shows counts of the load and the database while it runs, and checks them at the end.

use std::sync::Arc;
use std::time::Duration;

use semel_core::outbox::{Outbox as _, RowAction, Selection, Status};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::board::{Board, View};
use super::load::Load;
use super::responses::Differences;
use crate::demo::OrderService;
use crate::demo::arrivals::Arrivals;
use crate::demo::events::QUIET;
use crate::demo::tally::Tally;
use crate::exit::ExitError;

/// The interval of a table that is redrawn in place, and of plain lines.
const REDRAWN: Duration = Duration::from_millis(250);
const LINES: Duration = Duration::from_secs(1);
/// The pause after counting is at least this many times as long as counting took.
const LEISURE: u32 = 4;
/// Published events that are published again in one step.
const RESENT: u32 = 20;
/// How long the end may see no progress before what is missing counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the database may be unavailable at the end.
const AWAY: Duration = Duration::from_secs(30);

/// The last counts, and where they come from.
pub(super) struct Watch<'d> {
    service: &'d OrderService,
    tenant: &'d str,
    load: &'d Load,
    /// Messages of the load's events, if a broker delivers them.
    arrivals: Option<Arc<Arrivals>>,
    board: Board,
    tally: Tally,
    pending: u64,
    /// How long the last count took.
    took: Duration,
    /// The last event that was published again.
    resent: Option<u64>,
    patience: Duration,
    quiet: Duration,
}

impl<'d> Watch<'d> {
    pub(super) fn new(
        service: &'d OrderService,
        tenant: &'d str,
        load: &'d Load,
        arrivals: Option<Arc<Arrivals>>,
    ) -> Self {
        Self {
            service,
            tenant,
            load,
            quiet: arrivals.as_ref().map_or(Duration::ZERO, |_| QUIET),
            arrivals,
            board: Board::default(),
            tally: Tally::default(),
            pending: 0,
            took: Duration::ZERO,
            resent: None,
            patience: PATIENCE,
        }
    }

    pub(super) async fn pause(&self, ends: Option<Instant>, stop: &CancellationToken) {
        let every = if self.board.in_place() { REDRAWN } else { LINES };
        let next = Instant::now() + every.max(self.took * LEISURE);
        let next = ends.map_or(next, |ends| ends.min(next));
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Publishes events again, as a broker may deliver duplicates at any time.
    pub(super) async fn send_again(&mut self) {
        let published = Selection {
            tenant: Some(self.tenant.to_owned()),
            status: Some(Status::Published),
            ..Selection::default()
        };
        let store = self.service.executor.store();
        match store.apply(&published, &RowAction::Republish, self.resent, RESENT).await {
            Ok(applied) => {
                let changed = u64::from(applied.changed);
                self.load.counts().add(|counts| counts.resent += changed);
                // Starts over when the end is reached.
                self.resent = applied.last;
            }
            Err(error) => {
                tracing::warn!(%error, "events could not be published again; trying again later")
            }
        }
    }

    pub(super) async fn look(&mut self) -> Result<(), ExitError> {
        let began = Instant::now();
        let backlog = self.service.executor.store().backlog().await;
        self.pending = backlog.map_err(uncounted)?.waiting;
        let tally = self.service.tables.tally(Some(self.tenant)).await;
        self.tally = tally.map_err(uncounted)?;
        self.took = began.elapsed();
        let (counts, tally, pending) = (self.load.counts().read(), self.tally, self.pending);
        self.board.show(&View { counts, tally, pending });
        Ok(())
    }

    /// Waits until everything has arrived and nothing more comes, or nothing moves any more.
    pub(super) async fn settle(&mut self, stop: &CancellationToken) -> Result<(), ExitError> {
        let mut seen = None;
        // Other clients may place orders meanwhile: only a new minimum of the backlog is progress.
        let mut least = u64::MAX;
        let (mut moved, mut complete) = (Instant::now(), None);
        while !stop.is_cancelled() {
            let looking = Instant::now();
            surely(async || self.look().await).await?;
            // The time of counting does not count as time without progress.
            moved += looking.elapsed();
            let sees = (self.tally, self.arrivals.as_ref().map(|arrivals| arrivals.count()));
            if seen != Some(sees) || self.pending < least {
                (seen, least, moved) = (Some(sees), least.min(self.pending), Instant::now());
            }
            let arrived = self.tally.missing() == 0 && self.pending == 0;
            if moved.elapsed() > self.patience || (arrived && moved.elapsed() >= self.quiet) {
                break;
            }
            complete = arrived.then(|| complete.unwrap_or_else(Instant::now));
            if complete.is_some_and(|since| since.elapsed() > self.patience) {
                tracing::warn!("the broker keeps redelivering events");
                break;
            }
            self.pause(None, stop).await;
        }
        Ok(())
    }

    /// Checks a load that was stopped: what is missing may be on its way, but what is doubled is wrong.
    pub(super) async fn leave(&mut self) -> Result<(), ExitError> {
        surely(async || self.look().await).await?;
        self.judge(&self.wrong(self.tally.repeated()))?;
        let missing = self.tally.missing();
        if missing > 0 {
            crate::demo::say(&format!(
                "stopped with {missing} effects on their way; started again, it goes on with them\n"
            ));
        }
        Ok(())
    }

    /// Checks a load that has ended.
    pub(super) async fn verdict(&self) -> Result<(), ExitError> {
        let (tables, tenant) = (&self.service.tables, self.tenant);
        let placed = surely(async || tables.placed(tenant).await.map_err(uncounted)).await?;
        let (counts, orders) = (self.load.counts().read(), placed.len());
        let nothing = Differences { lost: 0, too_many: self.tally.repeated() };
        let Differences { lost, too_many } =
            self.load.responses().compare(placed).unwrap_or(nothing);
        let mut found = self.wrong(too_many);
        found.extend([
            (self.tally.missing(), "effects lost"),
            (lost, "orders lost"),
            (whole(counts.unanswered), "keys without an answer"),
        ]);
        self.judge(&found)?;
        let keys = counts.answered;
        crate::demo::say(&format!(
            "{keys} keys, {orders} orders, one answer each, one effect in every group\n"
        ));
        Ok(())
    }

    /// Returns counts that must be 0.
    fn wrong(&self, orders: i64) -> Vec<(i64, &'static str)> {
        vec![
            (self.tally.doubled(), "effects doubled"),
            (self.tally.unfounded(), "effects of no order"),
            (orders, "orders too many"),
            (whole(self.load.counts().read().differing), "answers that differ"),
        ]
    }

    fn judge(&self, found: &[(i64, &str)]) -> Result<(), ExitError> {
        let found = found.iter().filter(|(count, _)| *count != 0);
        let found: Vec<String> = found.map(|(count, what)| format!("{count} {what}")).collect();
        if found.is_empty() {
            return Ok(());
        }
        let counts = self.load.counts().read();
        let keys = counts.answered + counts.unanswered;
        Err(ExitError::findings(format_args!("chaos: {} of {keys} keys", found.join(", "))))
    }
}

/// Asks the database, and retries for [`AWAY`] if it is unavailable.
async fn surely<T>(mut ask: impl AsyncFnMut() -> Result<T, ExitError>) -> Result<T, ExitError> {
    let end = Instant::now() + AWAY;
    loop {
        match ask().await {
            Err(failure) if Instant::now() < end => {
                tracing::warn!(%failure, "the database could not be read; trying again");
                tokio::time::sleep(REDRAWN).await;
            }
            asked => return asked,
        }
    }
}

fn uncounted(error: impl std::fmt::Display) -> ExitError {
    ExitError::failed(format_args!("the effects cannot be counted: {error}"))
}

fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
