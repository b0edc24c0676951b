//! Claims in transactions that belong to the caller, and session state that work leaves behind.

use semel_core::executor::{Claimed, Unit};
use semel_core::store::{ErrorKind, TransactionalStore};
use semel_core::{Command, Context, Error, Execution, Executor, Key, Outcome, State};
use tokio::sync::oneshot;

use crate::Fixture;

use super::transacting::{Leak, On, TransactionFixture, command, executor, place, state, value};

/// A claim that was made outside a transaction can be settled in the caller's transaction, whatever
/// its isolation and duration.
pub async fn a_claim_handed_to_a_transaction_is_settled_in_it<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let Ok(Claimed::Granted(mut claim)) = executor.claim(command()).await else {
        panic!("a grant");
    };
    let store = executor.store();
    let mut transaction = store.begin().await.expect("a transaction");
    let connection = F::Store::connection(&mut transaction);
    executor.hold_in(connection, &mut claim).await.expect("held");
    F::effect(connection, "order").await;
    let outcome = Outcome::new(Outcome::JSON, r#""by hand""#);
    executor.settle_in(connection, claim, outcome).await.expect("settled");
    store.commit(transaction).await.expect("committed");
    assert_eq!(value(&place::<F>(&executor, command(), "not run").await), "by hand");
    assert_eq!(fixture.effects("order").await, 1);
}

/// Claims and settles on the connection of a plain client, in that client's own transaction.
async fn settle_plainly<F: TransactionFixture>(
    executor: &On<F>,
    connection: &mut <F::Store as TransactionalStore>::Connection,
) -> Result<(), Error> {
    let claimed = executor.open_in(connection, command()).await?;
    let Claimed::Granted(claim) = claimed else { panic!("a grant, not {claimed:?}") };
    F::effect(connection, "order").await;
    executor.settle_in(connection, claim, Outcome::new(Outcome::JSON, r#""by hand""#)).await
}

/// A claim can be opened and settled in a transaction that the store did not begin.
pub async fn a_claim_can_live_in_a_plain_clients_transaction<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let mut plain = fixture.plain().await;
    for end in ["ROLLBACK", "COMMIT"] {
        F::execute(&mut plain, "BEGIN").await;
        settle_plainly::<F>(&executor, &mut plain).await.expect("settled");
        F::execute(&mut plain, end).await;
        let effects = u64::from(end == "COMMIT");
        assert_eq!(fixture.effects("order").await, effects, "after {end}");
        assert_eq!(state::<F>(&executor).await.is_some(), end == "COMMIT");
    }
    assert_eq!(value(&place::<F>(&executor, command(), "not run").await), "by hand");
    assert_eq!(fixture.effects("order").await, 1);
}

/// A claim that was committed first is settled with the writes of a plain client's transaction.
pub async fn a_committed_claim_is_settled_in_a_plain_clients_transaction<F: TransactionFixture>(
    fixture: F,
) {
    let executor = executor(&fixture).await;
    let mut plain = fixture.plain().await;
    let Ok(Claimed::Granted(claim)) = executor.claim(command()).await else { panic!("a grant") };
    F::execute(&mut plain, "BEGIN").await;
    F::effect(&mut plain, "order").await;
    let outcome = Outcome::new(Outcome::JSON, r#""by hand""#);
    executor.settle_in(&mut plain, claim, outcome).await.expect("settled");
    assert_eq!(state::<F>(&executor).await, Some((State::Running, 1)), "not before the commit");
    F::execute(&mut plain, "COMMIT").await;
    assert_eq!(value(&place::<F>(&executor, command(), "not run").await), "by hand");
    assert_eq!(fixture.effects("order").await, 1);
}

/// A settlement is refused if the transaction of the work's writes is over.
pub async fn a_claim_whose_plain_transaction_is_over_is_refused<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let mut plain = fixture.plain().await;
    F::execute(&mut plain, "BEGIN").await;
    let claimed = executor.open_in(&mut plain, command()).await.expect("a store");
    let Claimed::Granted(claim) = claimed else { panic!("a grant, not {claimed:?}") };
    F::effect(&mut plain, "order").await;
    F::execute(&mut plain, "COMMIT").await;
    let outcome = Outcome::new(Outcome::JSON, r#""by hand""#);
    let late = executor.settle_in(&mut plain, claim, outcome).await;
    assert!(
        matches!(&late, Err(Error::Store(e)) if e.kind() == ErrorKind::Misconfigured),
        "{late:?}"
    );
    assert_eq!(state::<F>(&executor).await, Some((State::Running, 1)), "nothing was written");
}

type Connection<F> = <<F as Fixture>::Store as TransactionalStore>::Connection;

/// Work runs in a plain client's transaction, and is done when that client commits.
pub async fn work_in_a_plain_clients_transaction_is_done_with_its_commit<F: TransactionFixture>(
    fixture: F,
) {
    // With the local cache: a result that may still be rolled back must not get into it.
    let executor = Executor::new(fixture.store().await);
    let mut plain = fixture.plain().await;
    let place = async |connection: &mut Connection<F>, answer: &str| {
        let work = async |connection: &mut Connection<F>, _: &Context| {
            F::effect(connection, "order").await;
            if answer == "broken" { Err("no stock".to_owned()) } else { Ok(answer.to_owned()) }
        };
        executor.transact_in(connection, command(), work).await
    };
    for (answer, end) in [("broken", "ROLLBACK"), ("undone", "ROLLBACK"), ("done", "COMMIT")] {
        F::execute(&mut plain, "BEGIN").await;
        let executed = place(&mut plain, answer).await;
        if answer == "broken" {
            assert!(matches!(executed, Err(Error::Work(_))), "{executed:?}");
        } else {
            assert_eq!(value(&executed), answer);
            assert!(executed.is_ok_and(|execution| !execution.replayed()), "{answer} ran");
            let own = place(&mut plain, "not run").await;
            assert_eq!(value(&own), answer, "the transaction sees its own result");
        }
        F::execute(&mut plain, end).await;
        let committed = u64::from(end == "COMMIT");
        assert_eq!(fixture.effects("order").await, committed, "after {end} of {answer}");
        assert_eq!(state::<F>(&executor).await.is_some(), end == "COMMIT", "{answer}");
    }
    F::execute(&mut plain, "BEGIN").await;
    let again = place(&mut plain, "not run").await;
    F::execute(&mut plain, "ROLLBACK").await;
    assert_eq!(value(&again), "done");
    assert!(again.is_ok_and(|execution| execution.replayed()));
    assert_eq!(fixture.effects("order").await, 1);
}

/// Without a transaction of the caller the work does not run, and no claim is left.
pub async fn work_outside_a_transaction_is_refused_before_it_runs<F: TransactionFixture>(
    fixture: F,
) {
    let executor = Executor::new(fixture.store().await);
    let mut plain = fixture.plain().await;
    let work = async |connection: &mut Connection<F>, _: &Context| {
        F::effect(connection, "order").await;
        Ok::<_, String>("not run".to_owned())
    };
    let refused = executor.transact_in(&mut plain, command(), work).await;
    let error = refused.expect_err("there is no transaction");
    let Error::Store(error) = error else { panic!("{error:?}") };
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert_eq!(fixture.effects("order").await, 0);
    assert_eq!(state::<F>(&executor).await, None);
}

/// Runs work that executes `leave` and then `look`, and returns what `look` found. The work fails
/// afterwards if `fails` is set.
async fn ask_inside<F: TransactionFixture>(
    executor: &On<F>,
    id: String,
    leave: Option<&'static str>,
    look: &'static str,
    fails: bool,
) -> Option<String> {
    let key = Key::command("acme", "ORDER_CREATE", &id).expect("a valid key");
    let (found, answer) = oneshot::channel();
    let done: Result<Execution<()>, Error<String>> = executor
        .transact(Command::new(key), move |mut unit: Unit<F::Store>| async move {
            if let Some(leave) = leave {
                F::execute(unit.conn(), leave).await;
            }
            let _ = found.send(F::query_text(unit.conn(), look).await);
            if fails { Err("no stock".to_owned()) } else { Ok(()) }
        })
        .await;
    assert_eq!(done.is_err(), fails, "{done:?}");
    answer.await.expect("the work ran")
}

/// State that one tenant's work leaves in its session does not reach the next work, however the
/// first one ended.
pub async fn nothing_that_work_leaves_in_its_session_reaches_another<F: TransactionFixture>(
    fixture: F,
) {
    let executor = executor(&fixture).await;
    for (number, Leak { leave, look }) in F::leaks().iter().copied().enumerate() {
        for fails in [false, true] {
            let ask = async |name: &str, leave, fails| {
                let id = format!("leak-{number}-{fails}-{name}");
                ask_inside::<F>(&executor, id, leave, look, fails).await
            };
            let before = ask(&format!("before-{fails}"), None, false).await;
            let left = ask("leaving", Some(leave), fails).await;
            assert_ne!(left, before, "the work left session state: {leave}");
            for rest in 0..3 {
                let after = ask(&format!("after-{fails}-{rest}"), None, false).await;
                assert_eq!(after, before, "left by: {leave} (the work failed: {fails})");
            }
        }
    }
}
