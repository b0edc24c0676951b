//! Events: producers commit and roll back, relays and consumers are killed, the broker is killed and
//! restarted, connections are cut, messages are repeated and late. Afterwards every committed event was
//! handled once by each group, in the order of its aggregate, and no other event was.
//!
//! The processes under test are in `child`, the appended events in `producer`, the checks in `audit`.
//! Consumers write one row with every event, into a table without a unique constraint.

mod audit;
mod broker;
mod child;
mod producer;
mod table;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::Instant;

pub use broker::{Broker, Running};
pub use child::{Role, Settings as ChildSettings, serve};
pub use table::{EventStore, Visitor, visit};

use crate::BoxError;
use crate::crash::ExitCounts;
use crate::process::Exit;
use crate::report::Line;
use semel_core::testing::FAILPOINT;
use semel_stores::PrivateStore;

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program `faults`, which is started as the child.
    pub program: PathBuf,
    /// Events to commit, at least.
    pub events: u64,
    /// Children that must have been killed, at least.
    pub kills: u32,
    /// How long the broker runs between two kills; `None` never kills it.
    pub broker_lives: Option<Duration>,
}

/// A child whose failpoint was not reached within this time is killed with `kill -9`.
const GIVE_UP: Duration = Duration::from_secs(3);
/// Runs it on a private store.
///
/// # Errors
/// A process could not be started, or a store could not be read.
pub async fn run(
    private: &PrivateStore,
    broker: Broker,
    settings: &Settings,
) -> Result<Line, BoxError> {
    table::create(private.backend()).await?;
    let mut running = broker.start().await?;
    let child = ChildSettings {
        backend: private.backend().clone(),
        broker: running.address(),
        role: Role::Relay,
        fails_one_in: 50,
    };
    running.address().prepare().await?;
    running.settle().await?;
    let (over, deaths) = (Arc::new(AtomicBool::new(false)), Arc::new(ExitCounts::default()));
    let began = Instant::now();
    let mut keepers = tokio::task::JoinSet::new();
    for role in running.roles() {
        let child = ChildSettings { role: *role, ..child.clone() };
        let keeper = keep(child, settings.clone(), Arc::clone(&over), Arc::clone(&deaths));
        keepers.spawn(keeper);
    }
    let producing = tokio::spawn(producer::produce(private.backend().clone(), settings.events));
    let (mut last, mut broker_deaths, mut resets) = (Instant::now(), 0_u32, 0_u32);
    let wants_a_death = settings.broker_lives.is_some() && running.can_die();
    while !producing.is_finished()
        || deaths.kills() < settings.kills
        || (wants_a_death && broker_deaths == 0)
    {
        tokio::time::sleep(Duration::from_millis(200)).await;
        if fastrand::u32(..10) == 0 {
            resets += u32::from(running.cut_links());
        }
        if settings.broker_lives.is_some_and(|span| last.elapsed() > span) && running.can_die() {
            running.kill_and_restart().await?;
            broker_deaths += 1;
            last = Instant::now();
        }
    }
    over.store(true, Ordering::SeqCst);
    while let Some(kept) = keepers.join_next().await {
        kept??;
    }
    let produced = producing.await??;
    let took = began.elapsed();

    // Without faults, all events are handled.
    let healthy = ChildSettings { fails_one_in: 0, ..child.clone() };
    let mut children = Vec::new();
    for role in running.roles() {
        children.push(start(&ChildSettings { role: *role, ..healthy.clone() }, settings, None)?);
    }
    let drained = audit::wait(private.backend(), &produced).await?;
    // A child that ended by itself is not replaced; its work would only look late.
    let mut ended = 0;
    for child in &mut children {
        ended += usize::from(child.try_wait()?.is_some());
    }
    drop(children);
    let line = Line::new()
        .column("store", private.backend().name())
        .column("broker", running.name())
        .column("events", produced.committed.len())
        .column("rolled back", produced.rolled_back.len())
        .column("kills", deaths.kills())
        .column("broker deaths", broker_deaths)
        .column("links cut", resets)
        .column("seconds", took.as_secs())
        .column("deaths", serde_json::to_value(deaths.by())?);
    let line = audit::audit(line, private.backend(), &produced, &drained).await?;
    running.stop().await;
    Ok(line
        .zero("strange exits", deaths.strange())
        .zero("healthy children that ended", ended)
        .promise(deaths.kills() >= settings.kills, "fewer kills than were asked for")
        .promise(produced.committed.len() as u64 >= settings.events, "fewer events than asked for"))
}

/// Replaces one child until the faults are over.
async fn keep(
    child: ChildSettings,
    settings: Settings,
    over: Arc<AtomicBool>,
    deaths: Arc<ExitCounts>,
) -> io::Result<()> {
    static TURN: AtomicU32 = AtomicU32::new(0);
    while !over.load(Ordering::SeqCst) {
        // In turn, so that each is reached however short the run is.
        let points = child.role.failpoints(child.broker);
        let turn = TURN.fetch_add(1, Ordering::SeqCst) as usize % (points.len() + 1);
        let armed = points.get(turn).map(|name| format!("{name}@{}", fastrand::u32(1..=40)));
        let mut process = start(&child, &settings, armed.as_deref())?;
        let patience = match armed {
            Some(_) => GIVE_UP,
            None => Duration::from_millis(fastrand::u64(50..1_500)),
        };
        // Enough have been killed: the remaining events need running children.
        let calmer = if deaths.kills() >= settings.kills { 5 } else { 1 };
        let patience = patience * calmer;
        let death = match tokio::time::timeout(patience, process.wait()).await {
            Ok(status) => Exit::from(status?),
            Err(_) => {
                let _ = process.start_kill();
                Exit::from(process.wait().await?)
            }
        };
        deaths.count(death, armed.as_deref());
    }
    Ok(())
}

fn start(
    child: &ChildSettings,
    settings: &Settings,
    failpoint: Option<&str>,
) -> io::Result<tokio::process::Child> {
    let mut command = Command::new(&settings.program);
    command
        .arg("event-child")
        .args(["--store", &child.backend.to_string()])
        .args(["--broker", &child.broker.to_string()])
        .args(["--role", child.role.name()])
        .args(["--fails-one-in", &child.fails_one_in.to_string()])
        .env_remove(FAILPOINT)
        .kill_on_drop(true);
    if let Some(failpoint) = failpoint {
        command.env(FAILPOINT, failpoint);
    }
    command.spawn()
}
