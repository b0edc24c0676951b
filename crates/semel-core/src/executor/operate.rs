//! Implements the operator's methods for an executor: each also removes the changed key from the
//! cache of this process.

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
