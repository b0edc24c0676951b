//! Records that lead from the id of an operation to its key.

use std::sync::Arc;
use std::time::Duration;

use semel_core::{
    Command, Error, Executor, Key, Kind, OnCrash, OnFailure, OperationId, Outcome, Principal,
    Recorded, Store, Wait,
};
use serde::{Deserialize, Serialize};

use crate::caller::scope_of;
use crate::protocol::{Protocol, Route};

/// The scope of all pointers. No operation of a service has this name.
const SCOPE: &str = "semel:operations";
const CONTENT_TYPE: &str = "application/vnd.semel.pointer.v1";
/// The time for which a pointer is kept longer than an outcome, because the pointer is written
/// before the operation has run.
const MARGIN: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time to wait for another caller that writes the same pointer.
const RIVAL: Duration = Duration::from_secs(5);

/// The stored content of a pointer: the operation's name, and the client's id in its key.
#[derive(Serialize, Deserialize)]
struct Pointer {
    operation: String,
    id: String,
}

/// The operation and the key that a pointer leads to.
pub(super) struct Target {
    pub(super) operation: String,
    pub(super) key: Key,
}

/// Writes the pointer from the operation `id` to its `key` and `route`.
pub(super) async fn write<P: Protocol, S: Store>(
    executor: &Executor<S>,
    (key, route): (&Key, &Route<P>),
    id: OperationId,
) -> Result<(), Error> {
    let Some(pointer) = pointer_key(P::KIND, key.tenant(), *key.principal(), id) else {
        return Err(Error::Closed);
    };
    let keep = route.rules.keep.unwrap_or(executor.policy().keep).saturating_add(MARGIN);
    let leads_to = Pointer { operation: route.operation.clone(), id: key.id().to_owned() };
    let body = serde_json::to_vec(&leads_to).expect("a struct of texts has a JSON form");
    let outcome = Outcome::new(CONTENT_TYPE, body);
    // Another caller may be writing the same pointer. The pointer must exist before any caller gets
    // its URL.
    let command = Command::new(pointer)
        .keep(keep)
        .wait(Wait::Deadline(RIVAL))
        .on_crash(OnCrash::Rerun)
        .on_failure(OnFailure::Retry);
    let written = executor
        .serve(command, |context| async move { context.complete((), Recorded::Whole(outcome)) });
    written.await.map(|_| ())
}

/// Reads the pointer of the operation `id`; `None` if this caller has no such operation.
pub(super) async fn read<S: Store>(
    executor: &Executor<S>,
    kind: Kind,
    (tenant, principal): (Arc<str>, Principal),
    id: OperationId,
) -> Result<Option<Target>, Error> {
    let Some(pointer) = pointer_key(kind, &tenant, principal, id) else { return Ok(None) };
    let Some(found) = executor.peek(&pointer).await? else { return Ok(None) };
    let Some(Recorded::Whole(outcome)) = found.record.outcome else { return Ok(None) };
    let Ok(Pointer { operation, id }) = serde_json::from_slice(outcome.body()) else {
        return Ok(None);
    };
    let key = Key::new(kind, &tenant, &scope_of(&operation), principal, &id).ok();
    Ok(key.map(|key| Target { operation, key }))
}

fn pointer_key(kind: Kind, tenant: &str, principal: Principal, id: OperationId) -> Option<Key> {
    Key::new(kind, tenant, SCOPE, principal, &id.to_string()).ok()
}
