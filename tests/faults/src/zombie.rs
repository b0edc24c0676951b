//! Zombies: a process is stopped past its lease during its work, another takes over, the first goes on
//! and settles.
//!
//! In half of the cases the second has settled by then, in the other half it still works. In both the
//! late settlement must be refused, and the late caller gets the second's result.

use std::path::PathBuf;
use std::time::Duration;

use semel_core::executor::Error;
use semel_core::store::Store as _;
use semel_core::{Recorded, State};
use tokio::time::Instant;

use crate::BoxError;
use crate::child::{self, CallResult, Mode};
use crate::effects;
use crate::process::{ChildProcess, HeldCall};
use crate::report::Line;
use semel_stores::PrivateStore;

/// Claims held by the process when it is stopped.
const KEYS: usize = 8;
/// How long a takeover may take after the lease is over.
const TAKEOVER: Duration = Duration::from_secs(60);

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program `faults`, which is started as the child.
    pub program: PathBuf,
    /// `run`, or `claim-first` where the store is a server with transactions.
    pub mode: Mode,
    /// How often the first process is stopped.
    pub stops: u32,
    /// The lease of claims.
    pub lease: Duration,
}

#[derive(Debug, Default)]
struct Count {
    stops: usize,
    zombies: usize,
    takeovers: usize,
    /// The ledger recorded the zombie's value, or a caller got it.
    accepted: usize,
    /// The zombie's caller got another result than the winner's.
    misled: usize,
    /// Repeats whose result is not the winner's.
    differing: usize,
}

/// Runs it on a private store.
///
/// # Errors
/// A process could not be started or stopped, or the store could not be read.
pub async fn run(private: &PrivateStore, settings: &Settings) -> Result<Line, BoxError> {
    effects::create(private.backend()).await?;
    let child = child::Settings {
        backend: private.backend().clone(),
        mode: settings.mode,
        lease: settings.lease,
        ledger: private.directory().join("effects"),
        fails_one_in: 0,
    };
    let began = Instant::now();
    let first = ChildProcess::healthy(&settings.program, &child).await?;
    let second = ChildProcess::healthy(&settings.program, &child).await?;
    let mut count = Count::default();
    for stop in 0..settings.stops {
        once(private, &first, &second, stop, &mut count).await?;
    }
    let doubled = child.effects().await?.len().saturating_sub(count.zombies);
    let line = Line::new()
        .column("store", private.backend().name())
        .column("mode", settings.mode.name())
        .column("stops", count.stops)
        .column("zombies", count.zombies)
        .column("takeovers", count.takeovers)
        .column("seconds", began.elapsed().as_secs_f64());
    let line = match settings.mode {
        Mode::Run | Mode::Hold => line.column("doubled", doubled),
        Mode::Transact | Mode::ClaimFirst => line.zero("doubled", doubled),
    };
    Ok(line
        .zero("stale accepted", count.accepted)
        .zero("misled", count.misled)
        .zero("answers differ", count.differing)
        .promise(count.takeovers == count.zombies, "a claim was not taken over: no zombie"))
}

/// Stops the first process with eight claims, which the second takes over.
async fn once(
    private: &PrivateStore,
    first: &ChildProcess,
    second: &ChildProcess,
    stop: u32,
    count: &mut Count,
) -> Result<(), BoxError> {
    let (mut ids, mut late) = (Vec::new(), Vec::new());
    let mut names = (0..10 * KEYS).map(|n| format!("zombie-{stop}-{n}"));
    while late.len() < KEYS {
        let id = names.next().ok_or("the first process was granted next to nothing")?;
        let mut held = first.handle().hold(&id)?;
        // On a busy machine a lease may lapse before the work starts; then it is not granted.
        if held.holding().await? {
            ids.push(id);
            late.push(held);
        }
    }
    first.stop().await?;
    count.stops += 1;
    count.zombies += KEYS;
    let (over, open) = ids.split_at(KEYS / 2);
    let mut winners = Vec::new();
    for id in over {
        winners.push(Winner::Done(take_over(second, id).await?));
    }
    for id in open {
        winners.push(Winner::AtIt(Box::new(take_and_hold(second, id).await?)));
    }
    first.resume().await?;
    for ((id, winner), zombie) in ids.iter().zip(winners).zip(late) {
        let told = zombie.finish().await?;
        let (answer, settled) = match winner {
            Winner::Done(answer) => (answer, true),
            Winner::AtIt(held) => (held.finish().await?, false),
        };
        let again = first.handle().ask(id, Duration::from_secs(2)).await?;
        judge(private, id, (told, settled), &answer, &again, count).await?;
    }
    Ok(())
}

enum Winner {
    Done(CallResult),
    AtIt(Box<HeldCall>),
}

/// Executes the operation of `id` in `second` as soon as the lease has lapsed.
async fn take_over(second: &ChildProcess, id: &str) -> Result<CallResult, BoxError> {
    let deadline = Instant::now() + TAKEOVER;
    loop {
        match second.handle().ask(id, Duration::ZERO).await? {
            done @ CallResult::Done { .. } => return Ok(done),
            other if Instant::now() > deadline => {
                return Err(format!("{id} was not taken over: {other:?}").into());
            }
            CallResult::InProgress | CallResult::Uncertain | CallResult::Failed(_) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Begins the operation of `id` in `second` as soon as the lease has lapsed.
async fn take_and_hold(second: &ChildProcess, id: &str) -> Result<HeldCall, BoxError> {
    let deadline = Instant::now() + TAKEOVER;
    loop {
        let mut held = second.handle().hold(id)?;
        if held.holding().await? {
            return Ok(held);
        }
        if Instant::now() > deadline {
            return Err(format!("{id} was not taken over").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn judge(
    private: &PrivateStore,
    id: &str,
    (told, settled): (CallResult, bool),
    winner: &CallResult,
    again: &CallResult,
    count: &mut Count,
) -> Result<(), BoxError> {
    let CallResult::Done { value: won, attempt, fence, .. } = winner else {
        count.accepted += 1;
        return Ok(());
    };
    // More than two if an attempt of the winner was granted too late to start.
    count.takeovers += usize::from(*attempt >= 2);
    match &told {
        CallResult::Done { value, .. } => {
            count.misled += usize::from(value != won);
            count.accepted += usize::from(value != won);
        }
        // The winner still worked, or its lease had lapsed. Once it has settled, its result is what the
        // late caller gets.
        CallResult::InProgress | CallResult::Uncertain => count.misled += usize::from(settled),
        CallResult::Failed(why) => {
            let lost = Error::<BoxError>::ClaimLost.to_string();
            count.misled += usize::from(settled || *why != lost);
        }
    }
    let same = matches!(again, CallResult::Done { value, .. } if value == won);
    count.differing += usize::from(!same);
    let store = private.backend().open().await?;
    let record = store.peek(&child::key(id)).await?.ok_or("the record is gone")?.record;
    let kept = match &record.outcome {
        Some(Recorded::Whole(outcome)) => serde_json::from_slice::<String>(outcome.body())?,
        Some(Recorded::Omitted { .. }) | None => String::new(),
    };
    let theirs = record.state == State::Succeeded && record.fence.0 == *fence && kept == *won;
    count.accepted += usize::from(!theirs);
    Ok(())
}
