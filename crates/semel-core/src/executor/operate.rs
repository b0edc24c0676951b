//! The operator's verbs on an executor: each also drops what this process remembers of the record.

use super::Executor;
use crate::key::Key;
use crate::operate::Operate;
use crate::store::Inspect;

impl<S: Inspect> Operate for Executor<S> {
    type Ledger = S;

    fn ledger(&self) -> &S {
        self.store()
    }

    fn changed(&self, key: &Key) {
        self.refresh(key);
    }
}
