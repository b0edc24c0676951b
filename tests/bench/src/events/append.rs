//! The cost of an append: the same transaction with an event, without one, and with a minimal
//! hand-written outbox.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::event;
use super::tables::{EventStore, EventTables};
use crate::BoxError;
use crate::arguments::{Arguments, StoreName};
use crate::contest::{Reference, contest};
use crate::report::{Report, RowLabel, Target};
use semel_bench::turns::Contender;

/// The number of tasks: as many as the stores have connections for transactions.
const TASKS: usize = 16;

/// What a transaction appends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Appends {
    Ours,
    /// A row in a hand-written table, from which no relay could claim.
    Bare,
    Nothing,
}

/// BEGIN, an order, an event if there is one, COMMIT, in the store's own transactions.
struct Placing<S: EventStore> {
    tables: Arc<EventTables<S>>,
    appends: Appends,
    /// The numbers of orders, events and bare events after the last turn of any contender.
    seen: Arc<Mutex<[u64; 3]>>,
}

impl<S: EventStore> Contender for Placing<S> {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let store = &self.tables.store;
        let mut transaction = store.begin().await?;
        S::place(S::connection(&mut transaction), number).await?;
        let connection = S::connection(&mut transaction);
        match self.appends {
            Appends::Ours => store.append(connection, &[event(number)]).await?,
            Appends::Bare => S::bare(connection, &event(number)).await?,
            Appends::Nothing => {}
        }
        Ok(store.commit(transaction).await?)
    }

    async fn audit(&self, done: u64) -> Result<(), BoxError> {
        let mut seen = self.seen.lock().await;
        let tables = &self.tables;
        let now = [tables.orders().await?, tables.events().await?, tables.bare_events().await?];
        let more = [now[0] - seen[0], now[1] - seen[1], now[2] - seen[2]];
        *seen = now;
        let expected = match self.appends {
            Appends::Ours => [done, done, 0],
            Appends::Bare => [done, 0, done],
            Appends::Nothing => [done, 0, 0],
        };
        if more != expected {
            return Err(format!("orders and events: {expected:?} expected, {more:?} found").into());
        }
        Ok(())
    }
}

pub(super) async fn bench<S: EventStore>(
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    let tables = Arc::new(EventTables::<S>::new().await?);
    let seen = Arc::new(Mutex::new([0; 3]));
    let placing =
        |appends| Arc::new(Placing { tables: tables.clone(), appends, seen: seen.clone() });
    let references = vec![
        Reference {
            name: "the same transaction without an event".to_owned(),
            contender: placing(Appends::Nothing),
            target: (S::STORE_NAME == StoreName::Postgres).then_some(Target::AtLeast(0.85)),
        },
        Reference {
            name: "the same with a bare insert into five columns".to_owned(),
            contender: placing(Appends::Bare),
            target: None,
        },
    ];
    let label = RowLabel { bench: "append", store: S::STORE_NAME.name(), concurrency: TASKS };
    contest(report, label, placing(Appends::Ours), references, arguments.pace).await?;
    if let Some(tables) = Arc::into_inner(tables) {
        tables.remove().await;
    }
    Ok(())
}
