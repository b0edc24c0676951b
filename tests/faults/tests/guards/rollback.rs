//! Failures of transactions.

use std::sync::Arc;
use std::time::Duration;

use semel_core::executor::{Error, Unit};
use semel_core::{OnFailure, State};
use semel_faults::effects::{self, Effect, EffectStore, Visitor};
use semel_faults::harness::{command, executor, key};
use semel_faults::on_stores;
use semel_stores::PrivateStore;

struct Fails;

impl Visitor for Fails {
    type Output = ();

    async fn visit<S: EffectStore>(self, store: S) {
        let executor = executor(store, Duration::from_secs(30));
        let failed = executor
            .transact(command("k"), |mut unit: Unit<S>| async move {
                let effect = Effect::of(unit.context());
                S::perform(unit.conn(), &effect).await.expect("written");
                Err::<u32, _>("out of stock")
            })
            .await;
        assert!(matches!(failed, Err(Error::Work("out of stock"))), "{failed:?}");
        let found = executor.store().peek(&key("k")).await.expect("readable");
        let record = found.expect("the failure is on record").record;
        assert_eq!((record.state, record.attempt), (State::Failed, 1));
        assert_eq!(record.error.map(|e| e.to_string()).as_deref(), Some("out of stock"));

        let operation = record.operation_id;
        let again = executor
            .transact(command("k"), |mut unit: Unit<S>| async move {
                let effect = Effect::of(unit.context());
                S::perform(unit.conn(), &effect).await.expect("written");
                Ok::<_, String>(unit.context().operation_id())
            })
            .await
            .expect("the next caller runs");
        assert_eq!((again.attempt(), again.value()), (Some(2), Some(&operation)));

        // Kept as the outcome: the work does not run again.
        let keep = || command("kept").on_failure(OnFailure::Keep);
        let work = |_unit: Unit<S>| async { Err::<u32, _>("no such customer") };
        assert!(matches!(executor.transact(keep(), work).await, Err(Error::Work(_))));
        let repeated = executor.transact(keep(), work).await;
        assert!(matches!(repeated, Err(Error::FailedFinal { .. })), "{repeated:?}");
    }
}

async fn a_failure_is_on_record_after_its_transaction_rolled_back(private: Arc<PrivateStore>) {
    effects::visit(private.backend(), Fails).await.expect("a store");
    let effects = effects::read(private.backend()).await.expect("readable");
    assert_eq!(effects.len(), 1, "the failed attempt left its effect behind: {effects:?}");
    assert_eq!(effects[0].attempt, 2);
}

on_stores!(a_failure_is_on_record_after_its_transaction_rolled_back: sqlite postgres mysql);
