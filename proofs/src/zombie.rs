//! Zombies: a process stops past its lease in the middle of its work, another takes over, the first
//! wakes up and finishes as if nothing had happened.
//!
//! Half of the time the second has finished when the first wakes, half of the time it is still at
//! it. Either way the late completion must be refused, and the late caller gets the winner's answer.

use std::path::PathBuf;
use std::time::Duration;

use semel_core::executor::Error;
use semel_core::store::Store as _;
use semel_core::{Recorded, State};
use tokio::time::Instant;

use crate::child::{self, Answer, Mode};
use crate::crash::Trouble;
use crate::effects::{self, Journal};
use crate::place::Place;
use crate::report::Line;
use crate::subject::{HeldCall, Subject};

/// Claims that one stop turns into zombies.
const KEYS: usize = 8;
/// How long a takeover may take after the lease is over.
const TAKEOVER: Duration = Duration::from_secs(60);

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binary `faults`, which can be a child.
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
    /// The ledger has, or anybody was told, the zombie's value.
    accepted: usize,
    /// The zombie's caller was told another answer than the winner's.
    misled: usize,
    /// Of calls that were made again afterwards.
    differing: usize,
}

/// Runs it, in a place of its own.
///
/// # Errors
/// A process could not be started or stopped, or the store could not be read.
pub async fn run(place: &Place, settings: &Settings) -> Result<Line, Trouble> {
    let child = child::Settings {
        backend: place.backend().clone(),
        mode: settings.mode,
        lease: settings.lease,
        journal: Journal::at(place.directory().join("effects.jsonl")),
        fails_one_in: 0,
    };
    let began = Instant::now();
    let first = Subject::healthy(&settings.program, &child).await?;
    let second = Subject::healthy(&settings.program, &child).await?;
    let mut count = Count::default();
    for stop in 0..settings.stops {
        once(place, &first, &second, stop, &mut count).await?;
    }
    let effects = match settings.mode {
        Mode::Run | Mode::Hold => child.journal.read()?,
        Mode::Transact | Mode::ClaimFirst => effects::read(place.backend()).await?,
    };
    let doubled = effects.len().saturating_sub(count.zombies);
    let line = Line::new()
        .column("store", place.backend().name())
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

/// One stop: eight claims held by the first, taken over by the second.
async fn once(
    place: &Place,
    first: &Subject,
    second: &Subject,
    stop: u32,
    count: &mut Count,
) -> Result<(), Trouble> {
    let (mut ids, mut late) = (Vec::new(), Vec::new());
    let mut names = (0..10 * KEYS).map(|n| format!("zombie-{stop}-{n}"));
    while late.len() < KEYS {
        let id = names.next().ok_or("the first process was granted next to nothing")?;
        let mut held = first.line().hold(&id)?;
        // On a busy machine a lease may be over before the work could start; then it does not.
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
        let again = first.line().ask(id, Duration::from_secs(2)).await?;
        judge(place, id, (told, settled), &answer, &again, count).await?;
    }
    Ok(())
}

enum Winner {
    Done(Answer),
    AtIt(Box<HeldCall>),
}

/// Has `second` finish the operation of `id` as soon as the lease is over.
async fn take_over(second: &Subject, id: &str) -> Result<Answer, Trouble> {
    let deadline = Instant::now() + TAKEOVER;
    loop {
        match second.line().ask(id, Duration::ZERO).await? {
            done @ Answer::Done { .. } => return Ok(done),
            other if Instant::now() > deadline => {
                return Err(format!("{id} was not taken over: {other:?}").into());
            }
            Answer::InProgress | Answer::Uncertain | Answer::Failed(_) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Has `second` begin the operation of `id` as soon as the lease is over.
async fn take_and_hold(second: &Subject, id: &str) -> Result<HeldCall, Trouble> {
    let deadline = Instant::now() + TAKEOVER;
    loop {
        let mut held = second.line().hold(id)?;
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
    place: &Place,
    id: &str,
    (told, settled): (Answer, bool),
    winner: &Answer,
    again: &Answer,
    count: &mut Count,
) -> Result<(), Trouble> {
    let Answer::Done { value: won, attempt, fence, .. } = winner else {
        count.accepted += 1;
        return Ok(());
    };
    // More than two where one of the winner's own came too late to start.
    count.takeovers += usize::from(*attempt >= 2);
    match &told {
        Answer::Done { value, .. } => {
            count.misled += usize::from(value != won);
            count.accepted += usize::from(value != won);
        }
        // The winner was still at it, or out of time by then; once it has an answer, that is the
        // late caller's.
        Answer::InProgress | Answer::Uncertain => count.misled += usize::from(settled),
        Answer::Failed(why) => {
            let lost = Error::<Trouble>::ClaimLost.to_string();
            count.misled += usize::from(settled || *why != lost);
        }
    }
    let same = matches!(again, Answer::Done { value, .. } if value == won);
    count.differing += usize::from(!same);
    let store = place.backend().open().await?;
    let record = store.peek(&child::key(id)).await?.ok_or("the record is gone")?.record;
    let kept = match &record.outcome {
        Some(Recorded::Whole(outcome)) => serde_json::from_slice::<String>(outcome.body())?,
        Some(Recorded::Omitted { .. }) | None => String::new(),
    };
    let theirs = record.state == State::Succeeded && record.fence.0 == *fence && kept == *won;
    count.accepted += usize::from(!theirs);
    Ok(())
}
