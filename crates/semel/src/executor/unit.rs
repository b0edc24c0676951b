//! What the work of a transaction holds.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::Context;
use crate::store::TransactionalStore;

/// The work's hold on its transaction. It goes back to the executor when the work ends; a unit that
/// outlives the work makes the call fail with [`Error::Escaped`](super::Error::Escaped), and nothing is committed.
pub struct Unit<S: TransactionalStore> {
    pub(super) transaction: Option<S::Transaction>,
    pub(super) home: Arc<Mutex<Option<S::Transaction>>>,
    pub(super) context: Context,
}

impl<S: TransactionalStore> fmt::Debug for Unit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unit").field("context", &self.context).finish_non_exhaustive()
    }
}

impl<S: TransactionalStore> Unit<S> {
    /// The connection, inside the transaction. Do not commit or roll back on it; savepoints are fine.
    pub fn conn(&mut self) -> &mut S::Connection {
        S::connection(self.transaction.as_mut().expect("a unit has its transaction until it drops"))
    }

    /// What the work knows about its claim: fence, operation id, downstream keys, cancellation.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl<S: TransactionalStore> Drop for Unit<S> {
    fn drop(&mut self) {
        *self.home.lock().unwrap_or_else(PoisonError::into_inner) = self.transaction.take();
    }
}
