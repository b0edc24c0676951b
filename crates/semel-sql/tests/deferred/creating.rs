//! Ids of a creation, which are mapped in the message that commits it.

use semel_core::event::Event;
use semel_core::executor::LocalReplay;
use semel_core::outbox::{Outbox, Selection};
use semel_core::store::TransactionalStore;
use semel_core::{Command, Error, Executor, Key, State};
use semel_ids::create::{CreateError, CreatingStore};
use semel_ids::map::{Binding, RegisterError};
use semel_ids::resource::{Order, Payment, Resource};
use semel_ids::{CreateExt as _, PublicId, TypedId};

/// A store that can do all of it.
pub(crate) trait Whole:
    CreatingStore + Clone + Outbox<Connection = <Self as TransactionalStore>::Connection>
{
}

impl<S> Whole for S where
    S: CreatingStore + Clone + Outbox<Connection = <S as TransactionalStore>::Connection>
{
}

fn command(id: &str) -> Command {
    Command::new(Key::command("acme", "ORDER_CREATE", id).expect("a key"))
}

fn executor<S: Whole>(store: &S) -> Executor<S> {
    let executor = Executor::builder(store.clone()).local_replay(LocalReplay::OFF);
    executor.build().expect("the default policy is valid")
}

fn created() -> Event {
    Event::builder("acme", "order.created", "/orders").build().expect("an event")
}

async fn is_mapped<S: Whole, R: Resource>(store: &S, id: TypedId<R>) -> bool {
    let publics: [PublicId; 1] = [id.public()];
    !store.find("acme", R::TYPE, &publics).await.expect("found").is_empty()
}

async fn events<S: Whole>(store: &S) -> usize {
    Outbox::list(store, &Selection::default(), None, 100).await.expect("listed").len()
}

/// Creates twice, the first time to prepare. `trips` counts since it was last called.
pub(crate) async fn costs_no_trip<S: Whole>(
    store: &S,
    trips: impl Fn() -> u64 + Clone + Send + Sync + 'static,
) {
    let executor = executor(store);
    for (round, id) in ["warm", "counted"].into_iter().enumerate() {
        let count = trips.clone();
        let creating = executor.create::<Order>(command(id));
        let made = creating.run(async move |mut making| {
            let order = making.id();
            count();
            let payment = making.another::<Payment>().await.map_err(|error| error.to_string())?;
            making.append([created()]).await.map_err(|error| error.to_string())?;
            Ok::<_, String>((count(), order, payment))
        });
        let made = made.await.expect("made").into_execution();
        let (counted, order, payment) = *made.value().expect("a value");
        assert_eq!(counted, 0, "{id}");
        assert!(is_mapped(store, order).await && is_mapped(store, payment).await, "{id}");
        assert_eq!(events(store).await, round + 1);
    }
}

/// A row that takes the id while the work runs makes the commit fail; the next attempt finds it there, and
/// goes on if it is the same and live.
pub(crate) async fn is_refused_where_it_was_taken_meanwhile<S: Whole>(store: &S) {
    let executor = executor(store);
    for revoked in [false, true] {
        let id = format!("revoked {revoked}");
        let rival = store.clone();
        let creating = executor.create::<Order>(command(&id));
        let failed = creating.run(async move |mut making| {
            making.append([created()]).await.map_err(|error| error.to_string())?;
            let taken = Binding::of::<Order>("acme", making.id()).expect("a tenant");
            let _ = rival.insert_many(std::slice::from_ref(&taken)).await.expect("written");
            if revoked {
                let gone = rival.revoke("acme", Order::TYPE, taken.public()).await;
                assert!(gone.expect("revoked"));
            }
            Ok::<_, String>(())
        });
        let failed = failed.await.expect_err("its id is taken");
        let Error::Store(error) = failed else { panic!("{failed}") };
        assert_eq!(error.operation(), "insert", "{error}");
        assert_eq!(events(store).await, 0);
        let key = Key::command("acme", "ORDER_CREATE", &id).expect("a key");
        let record = executor.peek(&key).await.expect("peeked").expect("recorded").record;
        assert_eq!((record.state, record.attempt), (State::Failed, 1));
        let again = executor.create::<Order>(command(&id)).run(async |making| {
            drop(making);
            Ok::<_, String>(())
        });
        match again.await {
            Ok(_) => assert!(!revoked),
            Err(Error::Work(CreateError::Register(RegisterError::Revoked { .. }))) => {
                assert!(revoked);
            }
            Err(error) => panic!("{error}"),
        }
    }
}
