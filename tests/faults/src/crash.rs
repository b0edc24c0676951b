//! Crashes: processes are killed at random points while clients repeat their calls.
//!
//! Two children serve one store. Each is started with a random failpoint, or with none and a `kill -9` at
//! a random moment, and is replaced when it has ended. Clients call either child with new and old keys
//! until each key has a result. Afterwards every key is repeated without faults, and the effects are
//! counted in a table without a unique constraint.
//!
//! A kill is counted by the exit status, not by the intention.

mod audit;
mod clients;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::BoxError;
use crate::child::{self, Mode};
use crate::effects;
use crate::process::{ChildProcess, Exit};
use crate::report::Line;
use clients::{CallLog, Slots};
use semel_stores::PrivateStore;

/// Returns the failpoints of a mode.
const fn failpoints(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Transact => &[
            "begin.before",
            "begin.after",
            "work.after",
            "settle.before",
            "commit.before",
            "commit.after",
            "sweep.before",
            "sweep.after",
        ],
        Mode::ClaimFirst => &[
            "begin.before",
            "begin.after",
            "work.after",
            "settle.before",
            "fail.before",
            "commit.before",
            "commit.after",
            "renew.before",
            "renew.after",
            "sweep.before",
            "sweep.after",
        ],
        Mode::Run | Mode::Hold => &[
            "begin.before",
            "begin.after",
            "work.after",
            "settle.before",
            "settle.after",
            "fail.before",
            "renew.before",
            "renew.after",
            "sweep.before",
            "sweep.after",
        ],
    }
}

/// Concurrent children.
const CHILDREN: usize = 2;
/// Concurrent clients.
const CLIENTS: usize = 12;
/// A child whose failpoint was not reached within this time is killed with `kill -9`.
const GIVE_UP: Duration = Duration::from_millis(400);
/// After the faults every key must have a result within a lease and this time.
const GRACE: Duration = Duration::from_secs(60);

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program `faults`, which is started as the child.
    pub program: PathBuf,
    /// How operations are executed.
    pub mode: Mode,
    /// Children that must have been killed, at least.
    pub kills: u32,
    /// The lease of claims.
    pub lease: Duration,
}

/// How children ended.
#[derive(Debug, Default)]
pub(crate) struct ExitCounts {
    by: Mutex<BTreeMap<String, u32>>,
    kills: AtomicU32,
    /// Exits that were neither an abort nor a `kill -9`.
    strange: AtomicU32,
}

impl ExitCounts {
    pub(crate) fn count(&self, death: Exit, armed: Option<&str>) {
        let name = match death {
            Exit::Aborted => armed.and_then(|name| name.split('@').next()).unwrap_or("abort"),
            Exit::Killed => "kill -9",
            Exit::Other(status) => {
                eprintln!("a child ended by itself: {status}");
                self.strange.fetch_add(1, Ordering::SeqCst);
                return;
            }
        };
        let mut by = self.by.lock().unwrap_or_else(PoisonError::into_inner);
        *by.entry(name.to_owned()).or_default() += 1;
        self.kills.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn kills(&self) -> u32 {
        self.kills.load(Ordering::SeqCst)
    }

    pub(crate) fn strange(&self) -> u32 {
        self.strange.load(Ordering::SeqCst)
    }

    /// Returns the number of kills by cause.
    pub(crate) fn by(&self) -> BTreeMap<String, u32> {
        self.by.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Runs it on a private store.
///
/// # Errors
/// A process could not be started, or the store could not be read afterwards.
pub async fn run(private: &PrivateStore, settings: &Settings) -> Result<Line, BoxError> {
    effects::create(private.backend()).await?;
    let child = child::Settings {
        backend: private.backend().clone(),
        mode: settings.mode,
        lease: settings.lease,
        ledger: private.directory().join("effects"),
        fails_one_in: 12,
    };
    let (deaths, log, slots) =
        (Arc::new(ExitCounts::default()), Arc::new(CallLog::default()), Slots::new());
    let over = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let mut askers = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (log, slots) = (Arc::clone(&log), slots.clone());
        askers.spawn(clients::ask(log, slots, Arc::clone(&over), Arc::clone(&deaths)));
    }
    let keepers = (0..CHILDREN).map(|slot| keep(slot, &slots, &child, settings, &deaths));
    let kept = futures_util::future::join_all(keepers).await;
    over.store(true, Ordering::SeqCst);
    while askers.join_next().await.is_some() {}
    kept.into_iter().collect::<io::Result<()>>()?;
    let took = began.elapsed();

    let lasting = ChildProcess::healthy(&settings.program, &child).await?;
    clients::ask_until_a_panic(&log, lasting.handle()).await;
    drop(lasting);
    let stuck = settle_all(&log, &child, settings).await?;
    let line = Line::new()
        .column("store", private.backend().name())
        .column("mode", settings.mode.name())
        .column("kills", deaths.kills())
        .column("kills/s", f64::from(deaths.kills()) / took.as_secs_f64())
        .column("keys", log.len())
        .column("calls", log.calls())
        .column("deaths", serde_json::to_value(deaths.by())?);
    let line = audit::audit(line, private, &child, &log).await?;
    Ok(line
        .column("panics", log.panics())
        .promise(log.panics() > 0, "nothing panicked")
        .zero("stuck", stuck)
        .zero("strange exits", deaths.strange())
        .promise(deaths.kills() >= settings.kills, "fewer kills than were asked for"))
}

/// Replaces one child until enough have been killed.
async fn keep(
    slot: usize,
    slots: &Slots,
    child: &child::Settings,
    settings: &Settings,
    deaths: &ExitCounts,
) -> io::Result<()> {
    while deaths.kills() < settings.kills {
        let points = failpoints(settings.mode);
        let point = points.get(fastrand::usize(..=points.len()));
        // Renewals and sweeps are rarer than calls.
        let most =
            |name: &str| if name.starts_with("renew") || name.starts_with("sweep") { 1 } else { 6 };
        let armed = point.map(|name| format!("{name}@{}", fastrand::u32(1..=most(name))));
        let mut process = ChildProcess::start(&settings.program, child, armed.as_deref())?;
        slots.put(slot, process.handle().clone());
        let patience = match armed {
            Some(_) => GIVE_UP,
            None => Duration::from_millis(fastrand::u64(5..150)),
        };
        let (line, waits) = (process.handle().clone(), armed.is_some());
        let given_up = async {
            // Counted from when the child is ready, which depends on the machine.
            if waits {
                let _ = line.ready().await;
            }
            tokio::time::sleep(patience).await;
        };
        let death = tokio::select! {
            death = process.exited() => Some(death?),
            () = given_up => None,
        };
        let death = match death {
            Some(death) => death,
            None => process.kill().await?,
        };
        deaths.count(death, armed.as_deref());
    }
    Ok(())
}

/// Repeats every key without faults; returns the number of those without a result in time.
async fn settle_all(
    log: &Arc<CallLog>,
    child: &child::Settings,
    settings: &Settings,
) -> Result<usize, BoxError> {
    let healthy = child::Settings { fails_one_in: 0, ..child.clone() };
    let process = ChildProcess::healthy(&settings.program, &healthy).await?;
    let deadline = Instant::now() + settings.lease + GRACE;
    clients::finish(log, process.handle(), deadline).await;
    drop(process);
    // A new process, without a replay cache, returns the same results.
    let stranger = ChildProcess::healthy(&settings.program, &healthy).await?;
    clients::ask_again(log, stranger.handle()).await;
    Ok(log.unanswered().len())
}
