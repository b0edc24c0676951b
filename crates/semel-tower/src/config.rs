//! The configuration that all services of a layer share.

use semel_core::{Executor, Store};

use crate::caller::{PrincipalFrom, Tenant};
use crate::protocol::{Protocol, Routing};

/// The configuration that all services of a layer share: the executor, how callers are identified,
/// and the rules.
pub(crate) struct LayerConfig<P: Protocol, S: Store> {
    pub(crate) executor: Executor<S>,
    pub(crate) tenant: Tenant,
    pub(crate) principal: PrincipalFrom,
    pub(crate) routing: Routing<P>,
}

impl<P: Protocol, S: Store> Clone for LayerConfig<P, S> {
    fn clone(&self) -> Self {
        Self {
            executor: self.executor.clone(),
            tenant: self.tenant.clone(),
            principal: self.principal.clone(),
            routing: self.routing.clone(),
        }
    }
}
