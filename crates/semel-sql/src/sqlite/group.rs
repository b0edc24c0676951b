//! Runs steps: many in one transaction of the store, or one in a caller's transaction.
//!
//! A group is answered only after its COMMIT. If one step fails, the transaction of the group is
//! rolled back, and `writer` runs the other steps again, each alone.

use futures_util::TryStreamExt;
use semel_core::claim::Fence;
use semel_core::clock::Timestamp;
use semel_core::store::{
    Change, ClockTrust, Opened, Renewed, Result, Settled, Settlement, Swapped, Swept,
};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Either, Executor};

use super::clock::StoreClock;
use super::queue::{Answer, Step};
use super::statements::{self, BEGIN, Bindings, Texts, Verb};
use super::{failure, outbox, watermark};

/// The largest number of statements of one verb that are sent together. With sixteen, the cost of
/// sending is negligible; a larger block would only keep more statements prepared.
const BLOCK: usize = 16;

/// The stage at which a group failed.
#[derive(Debug)]
pub(super) enum Broken {
    /// BEGIN failed: nothing happened, and no other step would succeed now.
    Begin(sqlx::Error),
    /// A statement failed: nothing happened, and the other steps may still succeed.
    Statement(sqlx::Error),
    /// COMMIT failed: the group may have been committed.
    Commit(sqlx::Error),
}

/// A statement to run: its verb, its step, and its part of the step.
#[derive(Clone, Copy)]
struct Planned {
    verb: Verb,
    step: usize,
    part: usize,
}

/// The result of a statement.
struct Done {
    rows: Vec<SqliteRow>,
    changes: u64,
}

/// Runs and commits `steps` as one transaction. Returns one answer per step, in order.
///
/// The clock is read after the write lock is taken. Read earlier, it could be older than a fence
/// that another process has granted meanwhile on a key that it then removed, and fences would not
/// grow.
pub(super) async fn commit(
    connection: &mut SqliteConnection,
    texts: &Texts,
    clock: &StoreClock,
    steps: &[&Step],
) -> std::result::Result<Vec<Result<Answer>>, Broken> {
    connection.execute(BEGIN).await.map_err(Broken::Begin)?;
    run(connection, texts, clock, steps, true).await
}

/// Runs one step in the transaction that `connection` is in.
pub(super) async fn join(
    connection: &mut SqliteConnection,
    texts: &Texts,
    clock: &StoreClock,
    step: &Step,
) -> Result<Answer> {
    match run(connection, texts, clock, &[step], false).await {
        Ok(mut answers) => answers.pop().expect("one answer per step"),
        Err(Broken::Begin(error) | Broken::Statement(error) | Broken::Commit(error)) => {
            Err(failure::in_transaction(step.operation(), error))
        }
    }
}

async fn run(
    connection: &mut SqliteConnection,
    texts: &Texts,
    clock: &StoreClock,
    steps: &[&Step],
    commit: bool,
) -> std::result::Result<Vec<Result<Answer>>, Broken> {
    let now = clock.now();
    let mut answered_alone = Vec::with_capacity(steps.len());
    for step in steps {
        answered_alone.push(match step {
            Step::Outbox(task) => {
                let done = outbox::run(connection, task, now).await;
                Some(Answer::Outbox(done.map_err(Broken::Statement)?))
            }
            Step::Sweep(_) => {
                let trust = watermark::observe(connection, now).await.map_err(Broken::Statement)?;
                let nothing = Swept { clock_suspect: true, ..Swept::default() };
                (trust == ClockTrust::Suspect).then_some(Answer::Swept(nothing))
            }
            Step::Probe { write } => {
                watermark::probe(connection, *write).await.map_err(Broken::Statement)?;
                Some(Answer::Probed)
            }
            Step::Renew(_) | Step::Settle(..) | Step::Open(_) | Step::Swap(..) => None,
        });
    }
    let plan = plan(steps, &answered_alone);
    let mut fences = vec![Fence(0); steps.len()];
    let mut answers: Vec<Vec<Done>> = steps.iter().map(|_| Vec::new()).collect();
    let mut rest = &plan[..];
    while let Some(first) = rest.first() {
        let alike = rest.iter().take_while(|planned| planned.verb == first.verb).count();
        let size = 1 << alike.min(BLOCK).ilog2();
        let (block, later) = rest.split_at(size);
        let last = commit && later.is_empty();
        let mut bindings = Bindings::default();
        for planned in block {
            fences[planned.step] =
                bind(&mut bindings, steps[planned.step], planned.part, clock, now);
        }
        let text = texts.of(first.verb, size, last);
        let query = sqlx::query_with(text, bindings.finish());
        let statements = size * first.verb.statements();
        let mut done = execute(connection, query, statements, last).await?.into_iter();
        for planned in block {
            answers[planned.step].extend(done.by_ref().take(planned.verb.statements()));
        }
        rest = later;
    }
    if commit && plan.is_empty() {
        connection.execute("COMMIT").await.map_err(Broken::Commit)?;
    }
    let answered = steps.iter().zip(answers).zip(fences).zip(answered_alone);
    let answered = answered.map(|(((step, done), fence), alone)| match alone {
        Some(answer) => Ok(answer),
        None => answer(step, &done, fence, clock, now),
    });
    Ok(answered.collect())
}

/// Runs a block. SQLite's thread runs all of its statements without waiting for this task.
async fn execute(
    connection: &mut SqliteConnection,
    query: sqlx::query::Query<'_, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>,
    statements: usize,
    commits: bool,
) -> std::result::Result<Vec<Done>, Broken> {
    let mut done = Vec::with_capacity(statements + 1);
    let mut rows = Vec::new();
    let mut results = connection.fetch_many(query);
    loop {
        match results.try_next().await {
            Ok(Some(Either::Right(row))) => rows.push(row),
            Ok(Some(Either::Left(result))) => {
                let rows = std::mem::take(&mut rows);
                done.push(Done { rows, changes: result.rows_affected() });
            }
            Ok(None) => break,
            Err(error) if commits && done.len() == statements => return Err(Broken::Commit(error)),
            Err(error) => return Err(Broken::Statement(error)),
        }
    }
    if done.len() < statements + usize::from(commits) {
        // SQLite's thread ended: the result of the last statement is unknown.
        let error = sqlx::Error::WorkerCrashed;
        return Err(if commits { Broken::Commit(error) } else { Broken::Statement(error) });
    }
    done.truncate(statements);
    Ok(done)
}

/// Returns the statements of all steps, sorted by verb.
fn plan(steps: &[&Step], answered_alone: &[Option<Answer>]) -> Vec<Planned> {
    let mut plan = Vec::with_capacity(steps.len());
    for (step, asked) in steps.iter().enumerate() {
        if answered_alone[step].is_some() {
            continue;
        }
        let verb = match asked {
            Step::Renew(leases) => {
                let parts = 0..leases.len();
                plan.extend(parts.map(|part| Planned { verb: Verb::Renew, step, part }));
                continue;
            }
            Step::Settle(_, Settlement::Removed) => Verb::Remove,
            Step::Settle(_, settlement) if statements::succeeds(settlement) => Verb::Succeed,
            Step::Settle(..) => Verb::Settle,
            Step::Open(_) => Verb::Open,
            Step::Swap(_, _, Change::Regrant(_) | Change::Replace(_)) => Verb::Grant,
            Step::Swap(_, _, Change::Settle(Settlement::Removed)) => Verb::Discard,
            Step::Swap(_, _, Change::Settle(settlement)) if statements::succeeds(settlement) => {
                Verb::Resolve
            }
            Step::Swap(_, _, Change::Settle(_)) => Verb::End,
            Step::Swap(_, _, Change::Redrive) => Verb::Redrive,
            Step::Swap(_, _, Change::Redate) => Verb::Redate,
            Step::Sweep(_) => Verb::Sweep,
            Step::Outbox(_) | Step::Probe { .. } => {
                unreachable!("answered before the statements are planned")
            }
        };
        plan.push(Planned { verb, step, part: 0 });
    }
    // A stable sort: steps of one verb keep the order in which they arrived.
    plan.sort_by_key(|planned| planned.verb as u8);
    plan
}

/// Binds one statement, and returns the fence that it would grant.
fn bind(
    bindings: &mut Bindings,
    step: &Step,
    part: usize,
    clock: &StoreClock,
    now: Timestamp,
) -> Fence {
    let mut fence = Fence(0);
    match step {
        Step::Renew(leases) => {
            let (lease, length) = &leases[part];
            bindings.renew(lease, *length, now);
        }
        Step::Settle(lease, Settlement::Removed) => bindings.remove(lease),
        Step::Settle(lease, settlement) => bindings.settle(lease, settlement, now),
        Step::Open(draft) => {
            fence = clock.fence(now);
            bindings.open(draft, fence, now);
        }
        Step::Swap(key, judged, change) => match change {
            Change::Regrant(draft) | Change::Replace(draft) => {
                fence = clock.fence(now);
                let fresh = matches!(change, Change::Replace(_));
                bindings.grant((key, *judged), draft, fresh, fence, now);
            }
            Change::Settle(Settlement::Removed) => bindings.discard(key, *judged),
            Change::Settle(settlement) => bindings.end(key, *judged, settlement, now),
            Change::Redrive => bindings.redrive(key, *judged, now),
            Change::Redate => bindings.redate(key, *judged, now),
        },
        Step::Sweep(limit) => bindings.sweep(*limit, now),
        Step::Outbox(_) | Step::Probe { .. } => unreachable!("not run as a planned statement"),
    }
    fence
}

fn answer(
    step: &Step,
    done: &[Done],
    fence: Fence,
    clock: &StoreClock,
    now: Timestamp,
) -> Result<Answer> {
    let changes = |statement: usize| done.get(statement).map_or(0, |done| done.changes);
    Ok(match step {
        Step::Renew(_) => Answer::Renewed(
            done.iter()
                .map(|done| if done.changes > 0 { Renewed::Extended } else { Renewed::Lost })
                .collect(),
        ),
        Step::Settle(..) if changes(0) > 0 => Answer::Settled(Settled::Done),
        Step::Settle(..) => Answer::Settled(Settled::Lost),
        Step::Open(_) if changes(0) > 0 => Answer::Opened(Opened::Inserted { fence }),
        Step::Open(_) => Answer::Opened(match done.get(1).and_then(|found| found.rows.first()) {
            Some(row) => {
                let record = Box::new(statements::record(row, "open")?);
                Opened::Existing { record, now }
            }
            // Another process granted the same fence on this key, to the microsecond: the caller
            // tries again.
            None => Opened::Contended,
        }),
        Step::Swap(..) => Answer::Swapped(match done.first().and_then(|swap| swap.rows.first()) {
            Some(row) => {
                let fence = statements::fence(row)?;
                clock.given(fence);
                Swapped::Done { fence }
            }
            None => Swapped::Lost,
        }),
        Step::Outbox(_) | Step::Probe { .. } => {
            unreachable!("answered before the statements are planned")
        }
        Step::Sweep(limit) => {
            let count = |changes: u64| u32::try_from(changes).unwrap_or(u32::MAX);
            let (suspended, removed) = (count(changes(0)), count(changes(1)));
            let more = removed + suspended >= *limit;
            Answer::Swept(Swept { removed, suspended, more, clock_suspect: false })
        }
    })
}
