//! Commits whose reply is lost: some that took effect, and some that did not.

use std::sync::Arc;
use std::time::Duration;

use semel_core::executor::{Error, Unit};
use semel_core::store::ErrorKind;
use semel_core::{Command, Execution};
use semel_faults::effects::{self, Effect, EffectStore, Visitor};
use semel_faults::harness::{command, executor};
use semel_faults::on_stores;
use semel_stores::PrivateStore;
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};

#[derive(Clone, Copy)]
struct Doubt {
    fault: Fault,
    claim_first: bool,
}

impl Doubt {
    fn command(self, id: &str) -> Command {
        match self.claim_first {
            true => command(id).claim_first(),
            false => command(id),
        }
    }

    fn id(self) -> String {
        format!("{:?}-{}", self.fault, self.claim_first)
    }
}

impl Visitor for Doubt {
    type Output = ();

    async fn visit<S: EffectStore>(self, store: S) {
        let store = FaultyStore::new(store);
        let faults = store.faults().clone();
        faults.next(StoreCall::Commit, self.fault);
        let executor = executor(store, Duration::from_secs(30));
        let work = |mut unit: Unit<FaultyStore<S>>| async move {
            let effect = Effect::of(unit.context());
            S::perform(unit.conn(), &effect).await.map_err(|error| error.to_string())?;
            Ok::<_, String>(effect.value)
        };
        let first = executor.transact(self.command(&self.id()), work).await;
        assert_eq!(faults.happened(StoreCall::Commit), 1, "{:?} did not happen", self.fault);
        let expected = match self.fault {
            // The commit took effect, and the executor found that out.
            Fault::LoseReply => {
                let Ok(Execution::Executed { value, receipt }) = first else { panic!("{first:?}") };
                assert!(receipt.recorded);
                Some(value)
            }
            // The commit did not take effect, and the executor found that out: the caller gets an
            // error.
            Fault::LoseRequest | Fault::Refuse | Fault::Delay(_) | Fault::Hang => {
                let Err(Error::Store(error)) = first else { panic!("{first:?}") };
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                None
            }
        };
        let again = executor.transact(self.command(&self.id()), work).await.expect("an answer");
        match expected {
            Some(value) => assert_eq!((again.replayed(), again.value()), (true, Some(&value))),
            None => assert!(matches!(again, Execution::Executed { .. }), "{again:?}"),
        }
    }
}

async fn an_ambiguous_commit_happens_exactly_once(private: Arc<PrivateStore>) {
    let mut ids = Vec::new();
    for fault in [Fault::LoseReply, Fault::LoseRequest] {
        for claim_first in [false, true] {
            let doubt = Doubt { fault, claim_first };
            ids.push(doubt.id());
            effects::visit(private.backend(), doubt).await.expect("a store");
        }
    }
    let effects = effects::read(private.backend()).await.expect("readable");
    for id in ids {
        let count = effects.iter().filter(|effect| effect.key == id).count();
        assert_eq!(count, 1, "effects of {id}");
    }
}

on_stores!(an_ambiguous_commit_happens_exactly_once: sqlite postgres mysql);
