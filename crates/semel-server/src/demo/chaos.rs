//! `--chaos`: a load that does to the demo what the world does, and a table that shows what came of it.
//!
//! Everything goes through real sockets. Whether anything was doubled or lost is counted in the
//! database, under a tenant of this run's own, and never concluded from what the load has seen.

mod board;
mod caller;
mod load;

use std::sync::Arc;
use std::time::Duration;

use semel::outbox::{Selection, Status, Verb};
use semel_ids::Generator;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::board::{Board, View};
use self::load::Load;
use super::Desk;
use super::tables::Tables;
use super::tally::Tally;
use crate::failure::Failure;
use crate::settings::duration;

/// Between two looks of a table that is redrawn in place, and between two plain lines.
const REDRAWN: Duration = Duration::from_millis(250);
const LINES: Duration = Duration::from_secs(1);
/// Events that are published again in one go, though they were published before.
const RESENT: u32 = 20;
/// How long the end may go without any progress before what is missing counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);

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
    pub(super) fn of(wanted: bool, lasts: Option<&str>) -> Result<Option<Self>, Failure> {
        let wrong = |why| Failure::usage(format_args!("--chaos-for: {why}"));
        let lasts = lasts.map(duration::parse).transpose().map_err(wrong)?;
        if lasts.is_some_and(|lasts| lasts.is_zero()) {
            return Err(wrong("a load of no length shows nothing".to_owned()));
        }
        if !wanted && lasts.is_none() {
            return Ok(None);
        }
        let tenant = format!("chaos-{}", Generator::new().generate().map_err(Failure::failed)?);
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
        desk: &Desk<S>,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let load = Arc::new(Load::new(url, &self.tenant)?);
        let over = stop.child_token();
        let working = load.start(&over, stop);
        let mut watch = Watch::new(desk, &self.tenant, &load);
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
        if ends.is_none() || stop.is_cancelled() {
            watch.look().await?;
            watch.leave();
            return Ok(());
        }
        watch.settle(stop).await?;
        // Stopped while things were on their way, nobody can say what is lost.
        if stop.is_cancelled() {
            watch.leave();
            return Ok(());
        }
        watch.verdict()
    }
}

/// Looks at what the load and the database say.
struct Watch<'d, S: Tables> {
    desk: &'d Desk<S>,
    tenant: &'d str,
    load: &'d Load,
    board: Board,
    tally: Tally,
    pending: u64,
    /// The last event that was published again.
    resent: Option<u64>,
}

impl<'d, S: Tables> Watch<'d, S> {
    fn new(desk: &'d Desk<S>, tenant: &'d str, load: &'d Load) -> Self {
        let (tally, board) = (Tally::default(), Board::default());
        Self { desk, tenant, load, board, tally, pending: 0, resent: None }
    }

    async fn pause(&self, ends: Option<Instant>, stop: &CancellationToken) {
        let every = if self.board.in_place() { REDRAWN } else { LINES };
        let next = Instant::now() + every;
        let next = ends.map_or(next, |ends| ends.min(next));
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = stop.cancelled() => {}
        }
    }

    /// What a broker may do at any time: brings events that were handled once more.
    async fn send_again(&mut self) {
        let published = Selection {
            tenant: Some(self.tenant.to_owned()),
            status: Some(Status::Published),
            ..Selection::default()
        };
        let store = self.desk.executor.store();
        match store.apply(&published, &Verb::Republish, self.resent, RESENT).await {
            Ok(applied) => {
                self.load.counts().resent(applied.changed);
                // From the beginning again when the end is reached.
                self.resent = applied.last;
            }
            Err(error) => tracing::warn!(%error, "no event could be sent again"),
        }
    }

    async fn look(&mut self) -> Result<(), Failure> {
        let unread = |error: &dyn std::fmt::Display| {
            Failure::failed(format_args!("the effects cannot be counted: {error}"))
        };
        let backlog = self.desk.executor.store().backlog().await;
        self.pending = backlog.map_err(|error| unread(&error))?.waiting;
        let tally = S::tally(&self.desk.reading, Some(self.tenant)).await;
        self.tally = tally.map_err(|error| unread(&error))?;
        let (counts, tally, pending) = (self.load.counts().read(), self.tally, self.pending);
        self.board.show(&View { counts, tally, pending });
        Ok(())
    }

    /// Waits until everything has arrived, or nothing moves any more.
    async fn settle(&mut self, stop: &CancellationToken) -> Result<(), Failure> {
        let mut moved = Instant::now();
        loop {
            let before = (self.tally, self.pending);
            self.look().await?;
            let arrived = self.tally.missing() == 0 && self.pending == 0;
            if before != (self.tally, self.pending) {
                moved = Instant::now();
            }
            if arrived || stop.is_cancelled() || moved.elapsed() > PATIENCE {
                return Ok(());
            }
            self.pause(None, stop).await;
        }
    }

    /// Says what the numbers of a load that was stopped leave open.
    fn leave(&self) {
        let missing = self.tally.missing();
        if missing > 0 {
            super::say(&format!(
                "stopped with {missing} effects on their way; started again, it goes on with them\n"
            ));
        }
    }

    fn verdict(&self) -> Result<(), Failure> {
        let counts = self.load.counts().read();
        let keys = i64::try_from(counts.answered).unwrap_or(i64::MAX);
        let found = [
            (self.tally.doubled(), "effects doubled"),
            (self.tally.unfounded(), "effects of no order"),
            (self.tally.missing(), "effects lost"),
            (self.tally.repeated(), "second orders of a key"),
            ((self.tally.orders - keys).max(0), "orders too many"),
            ((keys - self.tally.orders).max(0), "orders lost"),
            (i64::try_from(counts.differing).unwrap_or(i64::MAX), "answers that differ"),
        ];
        let found = found.iter().filter(|(count, _)| *count != 0);
        let found: Vec<String> = found.map(|(count, what)| format!("{count} {what}")).collect();
        if found.is_empty() {
            super::say(&format!(
                "{keys} keys, {keys} orders, one answer each, one effect in every group\n"
            ));
            return Ok(());
        }
        Err(Failure::findings(format_args!("chaos: {} of {keys} keys", found.join(", "))))
    }
}
