//! The registration of a binding that is being written to the map.

use tokio::time::Instant;

use super::Resolver;
use super::key::CacheKey;
use crate::map::{Binding, Registered};

/// A binding that was written in a transaction which is still open. The caller must report how the
/// transaction ended.
///
/// Until then, and for [`absence_bound`](crate::CacheSettings::absence_bound) afterwards, this node
/// caches no answer that the id does not exist. If the registration is dropped without a report,
/// nothing is published: other nodes see the id within the same bound.
#[must_use = "call `committed` after the commit, so that all nodes see the id at once"]
#[derive(Debug)]
pub struct Registration {
    resolver: Resolver,
    binding: Binding,
    began: Instant,
    registered: Registered,
    ended: bool,
}

impl Registration {
    pub(super) fn begin(resolver: &Resolver, binding: &Binding) -> Self {
        let l1 = resolver.0.l1();
        let began = l1.begin_registration(&l1.keys.of(binding));
        let (resolver, binding) = (resolver.clone(), binding.clone());
        Self { resolver, binding, began, registered: Registered::New, ended: false }
    }

    pub(super) fn written(mut self, registered: Registered) -> Self {
        self.registered = registered;
        self
    }

    /// Returns whether the binding is new or was in the map before.
    pub fn registered(&self) -> Registered {
        self.registered
    }

    /// Reports that the transaction was committed: caches the id on this node and publishes it to
    /// the others.
    pub fn committed(mut self) {
        self.ended = true;
        let (inner, key) = (&self.resolver.0, self.key());
        if let Some(invalidator) = &inner.invalidator {
            invalidator.registered(&key);
        }
        inner.l1().commit_registration(key, self.binding.internal(), self.began);
    }

    /// Reports that the transaction was rolled back. If that is not certain, drop the registration.
    pub fn rolled_back(mut self) {
        self.ended = true;
        self.resolver.0.l1().roll_back_registration(&self.key());
    }

    fn key(&self) -> CacheKey {
        self.resolver.0.l1().keys.of(&self.binding)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.ended {
            self.resolver.0.l1().abandon_registration(&self.key());
        }
    }
}
