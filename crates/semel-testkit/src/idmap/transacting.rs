//! Mappings in transactions of an executor: stored if and only if the command committed.

use semel_core::executor::Unit;
use semel_core::store::TransactionalStore;
use semel_core::{Command, Error, Execution, Executor, Key};
use semel_ids::map::{Binding, IdMap, Inserted, register};

use super::IdMapFixture;
use super::shorthand::*;

/// A map that is also a store whose transactions an executor can use.
pub trait TransactionalIdMap:
    TransactionalStore + IdMap<Connection = <Self as TransactionalStore>::Connection> + Clone
{
}

impl<S> TransactionalIdMap for S where
    S: TransactionalStore + IdMap<Connection = <S as TransactionalStore>::Connection> + Clone
{
}

/// Runs a command that registers an order and then returns `end`.
async fn create<S: TransactionalIdMap>(
    executor: &Executor<S>,
    map: &S,
    binding: Binding,
    end: Result<&str, &str>,
) -> Result<Execution<String>, Error<String>> {
    let command = Command::new(Key::command(ACME, "ORDER_CREATE", "k-1").expect("a valid key"));
    let (map, end) = (map.clone(), end.map(str::to_owned).map_err(str::to_owned));
    executor
        .transact(command, move |mut unit: Unit<S>| async move {
            register(&map, unit.conn(), &binding).await.map_err(|error| error.to_string())?;
            end
        })
        .await
}

async fn executor<F: IdMapFixture<Map: TransactionalIdMap>>(
    fixture: &F,
) -> (Executor<F::Map>, F::Map) {
    let map = fixture.map().await;
    let executor = Executor::builder(map.clone()).build().expect("the default policy is valid");
    (executor, map)
}

/// The mapping of a command is stored once the command has committed; a repeat adds none.
pub async fn a_commands_mapping_commits_with_it<F: IdMapFixture<Map: TransactionalIdMap>>(
    fixture: F,
) {
    let (executor, map) = executor(&fixture).await;
    for (number, replayed) in [(1, false), (2, true)] {
        let returned =
            create(&executor, &map, order(number), Ok("placed")).await.expect("an answer");
        assert_eq!(returned.replayed(), replayed);
    }
    assert_eq!(all(&map, ORDER).await, [row(&order(1), true)]);
}

/// A failed command stores no mapping; its next attempt does.
pub async fn a_failed_command_leaves_no_mapping<F: IdMapFixture<Map: TransactionalIdMap>>(
    fixture: F,
) {
    let (executor, map) = executor(&fixture).await;
    let failed = create(&executor, &map, order(1), Err("no stock")).await;
    assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
    assert!(all(&map, ORDER).await.is_empty());
    let _ = create(&executor, &map, order(1), Ok("placed")).await.expect("the command runs again");
    assert_eq!(all(&map, ORDER).await, [row(&order(1), true)]);
}

/// A command whose id is taken fails and stores nothing.
pub async fn a_command_whose_id_is_taken_fails<F: IdMapFixture<Map: TransactionalIdMap>>(
    fixture: F,
) {
    let (executor, map) = executor(&fixture).await;
    assert_eq!(insert(&fixture, &map, &order(1)).await, Inserted::New);
    let failed = create(&executor, &map, renamed(&order(1)), Ok("placed")).await;
    assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
    assert_eq!(all(&map, ORDER).await, [row(&order(1), true)]);
}
