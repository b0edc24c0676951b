//! What telling costs: the same transaction with an event in it and without, and with the least that
//! an outbox can be.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::event;
use super::ground::{Ground, Telling};
use crate::bench::Trouble;
use crate::bench::arguments::{Arguments, Which};
use crate::bench::report::{Report, Subject, Target};
use crate::bench::round::{Contender, Reference, contest};

/// As many as the stores have connections for transactions.
const TASKS: usize = 16;

/// What a transaction tells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    Ours,
    /// A row in a table that somebody wrote by hand, and that no relay could claim from.
    Bare,
    Nothing,
}

/// BEGIN, an order, an event if it tells, COMMIT; in the store's own transactions.
struct Placing<S: Telling> {
    ground: Arc<Ground<S>>,
    tells: Tells,
    /// Orders, events and bare events after the last turn of anybody.
    seen: Arc<Mutex<[u64; 3]>>,
}

impl<S: Telling> Contender for Placing<S> {
    async fn once(&self, number: u64) -> Result<(), Trouble> {
        let store = &self.ground.store;
        let mut transaction = store.begin().await?;
        S::place(S::connection(&mut transaction), number).await?;
        let connection = S::connection(&mut transaction);
        match self.tells {
            Tells::Ours => store.append(connection, &[event(number)]).await?,
            Tells::Bare => S::bare(connection, &event(number)).await?,
            Tells::Nothing => {}
        }
        Ok(store.commit(transaction).await?)
    }

    async fn audit(&self, done: u64) -> Result<(), Trouble> {
        let mut seen = self.seen.lock().await;
        let ground = &self.ground;
        let now = [ground.orders().await?, ground.events().await?, ground.bare_events().await?];
        let more = [now[0] - seen[0], now[1] - seen[1], now[2] - seen[2]];
        *seen = now;
        let expected = match self.tells {
            Tells::Ours => [done, done, 0],
            Tells::Bare => [done, 0, done],
            Tells::Nothing => [done, 0, 0],
        };
        if more != expected {
            return Err(format!("orders and events: {expected:?} expected, {more:?} found").into());
        }
        Ok(())
    }
}

pub(super) async fn bench<S: Telling>(
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), Trouble> {
    let ground = Arc::new(Ground::<S>::new().await?);
    let seen = Arc::new(Mutex::new([0; 3]));
    let placing = |tells| Arc::new(Placing { ground: ground.clone(), tells, seen: seen.clone() });
    let references = vec![
        Reference {
            name: "the same transaction without an event".to_owned(),
            lane: placing(Tells::Nothing),
            target: (S::WHICH == Which::Postgres).then_some(Target::AtLeast(0.85)),
        },
        Reference {
            name: "the same with a bare insert into five columns".to_owned(),
            lane: placing(Tells::Bare),
            target: None,
        },
    ];
    let subject = Subject { bench: "append", store: S::WHICH.name(), concurrency: TASKS };
    contest(report, subject, placing(Tells::Ours), references, arguments.pace).await?;
    if let Some(ground) = Arc::into_inner(ground) {
        ground.remove().await;
    }
    Ok(())
}
