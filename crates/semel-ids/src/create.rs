//! Creates a resource exactly once: claim, business rows, mapping, events and outcome are one
//! commit.
//!
//! Ids are not random: they are derived from the operation id, which the ledger keeps. So a retry
//! after a failure and a takeover after a crash create the resource with the same ids, and a replay
//! returns them.

use std::fmt::{self, Display};
use std::future::Future;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use semel_core::executor::{Command, Error, Execution, Executor, Unit};
use semel_core::store::TransactionalStore;
use semel_core::{OperationId, Reference};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use ulid::Ulid;

use crate::map::{self, Binding, IdMap, RegisterError};
use crate::resolver::Resolver;
use crate::resource::{Resource, ResourceType};
use crate::typed::TypedId;

/// A store that keeps the ledger and the id map in one database.
pub trait CreatingStore:
    TransactionalStore + IdMap<Connection = <Self as TransactionalStore>::Connection>
{
    /// Defers writing a binding to the commit of a transaction of the executor. Returns whether it is
    /// deferred; if not, which is the default, [`IdMap::insert`] must write it now.
    ///
    /// Only the ids of an operation that begins in this transaction can be deferred, since no other row
    /// has them. If one has them nevertheless, the commit fails.
    fn defer_binding(&self, transaction: &mut Self::Transaction, binding: &Binding) -> bool {
        let _ = (transaction, binding);
        false
    }
}

/// Adds [`create`](Self::create) to executors.
///
/// ```
/// use semel_core::{Command, Executor};
/// use semel_ids::create::CreatingStore;
/// use semel_ids::resource::Order;
/// use semel_ids::{CreateExt, TypedId};
///
/// /// Places an order exactly once: a retry gets the same id.
/// async fn place<S: CreatingStore>(
///     executor: &Executor<S>,
///     command: Command,
/// ) -> Result<Option<TypedId<Order>>, String> {
///     let created = executor.create::<Order>(command).run(|mut making| async move {
///         let id = making.id();
///         let _connection = making.conn(); // writes the order's rows in the same transaction
///         Ok::<_, String>(id)
///     });
///     Ok(created.await.map_err(|error| error.to_string())?.id())
/// }
/// ```
pub trait CreateExt<S: CreatingStore> {
    /// Prepares the creation of an `R`. [`Creation::run`] performs it exactly once.
    fn create<R: Resource>(&self, command: Command) -> Creation<S, R>;

    /// Prepares the creation of an `R` in an open transaction, for example of a handler behind an
    /// atomic layer, whose response is the outcome. [`Insertion::run`] performs it.
    fn create_in<R: Resource>(&self, unit: Unit<S>) -> Insertion<S, R>;
}

impl<S: CreatingStore> CreateExt<S> for Executor<S> {
    fn create<R: Resource>(&self, command: Command) -> Creation<S, R> {
        Creation { executor: self.clone(), command, resolver: None, of: PhantomData }
    }

    fn create_in<R: Resource>(&self, unit: Unit<S>) -> Insertion<S, R> {
        Insertion { executor: self.clone(), unit, resolver: None, of: PhantomData }
    }
}

/// The prepared creation of an `R`.
#[must_use = "nothing happens until `run` is awaited"]
pub struct Creation<S: CreatingStore, R> {
    executor: Executor<S>,
    command: Command,
    resolver: Option<Resolver>,
    of: PhantomData<fn() -> R>,
}

impl<S: CreatingStore, R: Resource> Creation<S, R> {
    /// Sets the resolver that registers the new id, so that the id can be resolved at once. Default
    /// none. Set it in every process that resolves ids.
    pub fn resolver(mut self, resolver: &Resolver) -> Self {
        self.resolver = Some(resolver.clone());
        self
    }

    /// Runs `work` exactly once: the writes and events of the work, the mapping of the id, the
    /// claim and the outcome are one commit. The outcome's reference is the public id.
    ///
    /// # Errors
    /// The same errors as [`Executor::transact`]; [`CreateError::Work`] contains the error of the
    /// work.
    pub async fn run<T, E, F, Fut>(self, work: F) -> Result<Created<R, T>, Error<CreateError<E>>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Display + Send + 'static,
        F: FnOnce(NewResource<S, R>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let Self { executor, command, resolver, .. } = self;
        let registrar = Registrar::new(&executor, resolver);
        let execution = executor.transact(command, move |unit| registrar.make(unit, work)).await?;
        Ok(Created::new(execution))
    }
}

/// The prepared creation of an `R` in an open transaction.
#[must_use = "nothing happens until `run` is awaited"]
pub struct Insertion<S: CreatingStore, R> {
    executor: Executor<S>,
    unit: Unit<S>,
    resolver: Option<Resolver>,
    of: PhantomData<fn() -> R>,
}

impl<S: CreatingStore, R: Resource> Insertion<S, R> {
    /// Sets the resolver that registers the new id; see [`Creation::resolver`].
    pub fn resolver(mut self, resolver: &Resolver) -> Self {
        self.resolver = Some(resolver.clone());
        self
    }

    /// Maps the id in the transaction and runs `work` in it. The outcome's reference is the public
    /// id; the outcome itself is the response of the handler that opened the transaction.
    ///
    /// # Errors
    /// [`CreateError`]. The transaction must not be committed after an error: the handler should
    /// return a response that its layer does not keep, such as a 5xx.
    pub async fn run<T, E, F, Fut>(self, work: F) -> Result<T, CreateError<E>>
    where
        F: FnOnce(NewResource<S, R>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        Registrar::new(&self.executor, self.resolver).make(self.unit, work).await
    }
}

impl<S: CreatingStore, R> fmt::Debug for Insertion<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Insertion").field("unit", &self.unit).finish_non_exhaustive()
    }
}

impl<S: CreatingStore, R> fmt::Debug for Creation<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Creation").field("command", &self.command).finish_non_exhaustive()
    }
}

struct Registrar<S: CreatingStore> {
    executor: Executor<S>,
    resolver: Option<Resolver>,
    /// Whether the registration of an id failed or was cancelled.
    registration_failed: AtomicBool,
}

impl<S: CreatingStore> Registrar<S> {
    fn new(executor: &Executor<S>, resolver: Option<Resolver>) -> Self {
        Self { executor: executor.clone(), resolver, registration_failed: AtomicBool::new(false) }
    }

    /// Maps the first id of the operation, and runs `work` with that id.
    async fn make<R, T, E, F, Fut>(self, mut unit: Unit<S>, work: F) -> Result<T, CreateError<E>>
    where
        R: Resource,
        F: FnOnce(NewResource<S, R>) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let id = self.register::<R>(&mut unit, 0).await?;
        let reference = Reference::new(&id.public()).expect("a public id is a reference");
        unit.context().refer_to(reference);
        let registrar = Arc::new(self);
        let making = NewResource { unit, id, registrar: Arc::clone(&registrar), next: 1 };
        let made = work(making).await.map_err(CreateError::Work)?;
        match registrar.registration_failed.load(Ordering::Acquire) {
            true => Err(CreateError::IgnoredFailure),
            false => Ok(made),
        }
    }

    /// Maps the id of an `R` with this number within the operation, in the operation's transaction.
    async fn register<R: Resource>(
        &self,
        unit: &mut Unit<S>,
        number: u32,
    ) -> Result<TypedId<R>, RegisterError> {
        let id = TypedId::<R>::new(derive(unit.context().operation_id(), R::TYPE, number));
        let binding = Binding::of(unit.context().key().tenant(), id)
            .expect("the tenant of a key is a tenant");
        let store = self.executor.store();
        let deferred = store.defer_binding(unit.transaction(), &binding);
        match &self.resolver {
            Some(resolver) => {
                let registration = match deferred {
                    true => resolver.begin_registration(&binding),
                    false => resolver.register(store, unit.conn(), &binding).await?,
                };
                unit.context().after_commit(move || registration.committed());
            }
            None if deferred => {}
            None => {
                map::register(store, unit.conn(), &binding).await?;
            }
        }
        Ok(id)
    }
}

/// The argument of the work that creates a resource: the new id, and the transaction ([`Unit`]).
pub struct NewResource<S: CreatingStore, R> {
    unit: Unit<S>,
    id: TypedId<R>,
    registrar: Arc<Registrar<S>>,
    next: u32,
}

impl<S: CreatingStore, R: Resource> NewResource<S, R> {
    /// Returns the new id. It is mapped when the transaction commits, and is the same in every
    /// attempt.
    pub fn id(&self) -> TypedId<R> {
        self.id
    }

    /// Maps the id of another resource in the same transaction, such as a line of an order. The ids
    /// depend on their types and on the order of these calls, so that every attempt gets the same
    /// ids.
    ///
    /// # Errors
    /// [`RegisterError`]. The transaction is not committed then, even if the work succeeds
    /// ([`CreateError::IgnoredFailure`]).
    pub async fn another<Q: Resource>(&mut self) -> Result<TypedId<Q>, RegisterError> {
        let number = self.next;
        self.next += 1;
        let registrar = Arc::clone(&self.registrar);
        // If the registration fails or is cancelled, it is unknown whether it was written; later
        // calls do not change that.
        let registration_failed = registrar.registration_failed.swap(true, Ordering::AcqRel);
        let id = registrar.register::<Q>(&mut self.unit, number).await?;
        registrar.registration_failed.store(registration_failed, Ordering::Release);
        Ok(id)
    }
}

impl<S: CreatingStore, R> Deref for NewResource<S, R> {
    type Target = Unit<S>;

    fn deref(&self) -> &Unit<S> {
        &self.unit
    }
}

impl<S: CreatingStore, R> DerefMut for NewResource<S, R> {
    fn deref_mut(&mut self) -> &mut Unit<S> {
        &mut self.unit
    }
}

impl<S: CreatingStore, R: Resource> fmt::Debug for NewResource<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewResource").field("id", &self.id).field("unit", &self.unit).finish()
    }
}

/// The result of [`Creation::run`].
#[derive(Clone, Debug)]
pub struct Created<R, T> {
    execution: Execution<T>,
    of: PhantomData<fn() -> R>,
}

impl<R: Resource, T> Created<R, T> {
    fn new(execution: Execution<T>) -> Self {
        Self { execution, of: PhantomData }
    }

    /// Returns the id of the resource that this or an earlier call created; `None` while another call is
    /// in progress.
    pub fn id(&self) -> Option<TypedId<R>> {
        match &self.execution {
            Execution::Executed { receipt, .. } | Execution::Replayed { receipt, .. } => {
                Some(TypedId::new(derive(receipt.operation_id, R::TYPE, 0)))
            }
            Execution::InProgress { .. } => None,
        }
    }

    /// Returns the execution with the result of the work.
    pub fn execution(&self) -> &Execution<T> {
        &self.execution
    }

    /// Returns the execution with the result of the work by value.
    pub fn into_execution(self) -> Execution<T> {
        self.execution
    }
}

/// The reason why a creation failed.
#[derive(Debug, thiserror::Error)]
pub enum CreateError<E> {
    /// The id could not be mapped.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The registration of an id failed, but the work reported success.
    #[error(
        "an id of the new resource could not be registered, so nothing was committed; try again"
    )]
    IgnoredFailure,
    /// The error that the work returned.
    #[error("{0}")]
    Work(E),
}

/// Derives an id from an operation: the operation's time, and 80 bits of a hash of operation, type
/// and number.
fn derive(operation: OperationId, kind: ResourceType, number: u32) -> Ulid {
    let mut hash = Sha256::new();
    hash.update(b"semel/id/1\0");
    hash.update(operation.to_bytes());
    hash.update(number.to_be_bytes());
    hash.update(kind.name());
    let mut id = operation.to_bytes();
    id[6..].copy_from_slice(&hash.finalize()[..10]);
    Ulid::from_bytes(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Order, Payment};

    #[test]
    fn derived_ids_differ_by_operation_type_and_number_and_are_stable() {
        let operation: OperationId = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().expect("an operation id");
        let id = derive(operation, Order::TYPE, 0);
        assert_eq!(id, derive(operation, Order::TYPE, 0));
        assert_eq!(id.timestamp_ms(), 1_469_922_850_259);
        assert_ne!(id, derive(operation, Order::TYPE, 1));
        assert_ne!(id, derive(operation, Payment::TYPE, 0));
        assert_ne!(id, derive(OperationId::generate(), Order::TYPE, 0));
        // This value must never change: a takeover by a newer version must derive the same id.
        assert_eq!(id.to_string(), "01ARZ3NDEKYRNNYRS69199WXHN");
    }
}
