//! The handle by which the work of a transaction uses that transaction.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::Context;
use crate::event::Event;
use crate::outbox::Outbox;
use crate::store::{self, ErrorKind, TransactionalStore};

/// The work's access to its transaction. Dropping the unit returns the transaction to the executor.
/// If the unit outlives the work, the call fails with [`Error::Escaped`](super::Error::Escaped),
/// and the transaction is not committed.
pub struct Unit<S: TransactionalStore> {
    pub(super) transaction: Option<S::Transaction>,
    pub(super) store: Arc<S>,
    pub(super) returned: Arc<Mutex<Option<S::Transaction>>>,
    pub(super) context: Context,
}

impl<S: TransactionalStore> fmt::Debug for Unit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unit").field("context", &self.context).finish_non_exhaustive()
    }
}

impl<S: TransactionalStore> Unit<S> {
    /// Returns the connection, inside the transaction. Do not commit or roll back on it; savepoints
    /// are allowed.
    pub fn conn(&mut self) -> &mut S::Connection {
        S::connection(self.transaction.as_mut().expect("a unit has its transaction until it drops"))
    }

    /// Returns the context of the attempt: fence, operation id, downstream keys, cancellation.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl<S> Unit<S>
where
    S: TransactionalStore + Outbox<Connection = <S as TransactionalStore>::Connection>,
{
    /// Appends events to the outbox in the work's transaction: they are stored if and only if the
    /// work commits, and a relay of this process is woken after the commit. Each event that has no
    /// cause gets this operation as its cause.
    ///
    /// # Errors
    /// The error of the store if the outbox could not be written. The transaction will not be
    /// committed then, even if later appends succeed.
    pub async fn append(&mut self, events: impl IntoIterator<Item = Event>) -> store::Result<()> {
        // An append that fails or is dropped may have written some of the events: then the
        // transaction is not committed.
        let had_failed = self.context.begin_append();
        let operation = self.context.operation_id();
        let events: Vec<_> = events.into_iter().map(|event| event.caused_by(operation)).collect();
        let ids = events.iter().map(|event| (event.tenant(), event.id()));
        if ids.collect::<HashSet<_>>().len() < events.len() {
            let twice = "two of the events have one id; derive one for each, or leave it out";
            return Err(store::Error::new(ErrorKind::Misconfigured, "append", twice));
        }
        let store = Arc::clone(&self.store);
        store.append(self.conn(), &events).await?;
        self.context.end_append(had_failed);
        let bell = store.bell().clone();
        self.context.after_commit(move || bell.ring());
        Ok(())
    }
}

impl<S: TransactionalStore> Drop for Unit<S> {
    fn drop(&mut self) {
        *self.returned.lock().unwrap_or_else(PoisonError::into_inner) = self.transaction.take();
    }
}
