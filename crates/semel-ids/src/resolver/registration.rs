//! A binding on its way into the map.

use super::Resolver;
use super::name::Name;
use super::near::Opened;
use crate::map::{Binding, Registered};

/// A binding that was written in a transaction which has not ended. Say how it ended.
///
/// Until then this node believes in no absence of the id, nor for
/// [`absence_bound`](crate::CacheSettings::absence_bound) afterwards. If nobody says how it ended,
/// other nodes are not told, and know within that time.
#[must_use = "call `committed` after the commit, so that all nodes know the id at once"]
#[derive(Debug)]
pub struct Registration {
    resolver: Resolver,
    binding: Binding,
    opened: Opened,
    registered: Registered,
    ended: bool,
}

impl Registration {
    pub(super) fn begin(resolver: &Resolver, binding: &Binding) -> Self {
        let near = &resolver.0.near;
        let opened = near.open(&near.names.of(binding));
        let (resolver, binding) = (resolver.clone(), binding.clone());
        Self { resolver, binding, opened, registered: Registered::New, ended: false }
    }

    pub(super) fn found(mut self, registered: Registered) -> Self {
        self.registered = registered;
        self
    }

    /// Whether the binding was there before.
    pub fn registered(&self) -> Registered {
        self.registered
    }

    /// The transaction has committed: this node knows the id now, and the others are told.
    pub fn committed(mut self) {
        self.ended = true;
        let inner = &self.resolver.0;
        let name = self.name();
        let word = inner.registered(&name);
        inner.near.registered(name, self.binding.internal(), self.opened);
        if let Some(middle) = &inner.middle {
            middle.tell_later(word);
        }
    }

    /// The transaction was rolled back, for certain.
    pub fn rolled_back(mut self) {
        self.ended = true;
        self.resolver.0.near.dropped(&self.name());
    }

    fn name(&self) -> Name {
        self.resolver.0.near.names.of(&self.binding)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.ended {
            self.resolver.0.near.unclear(&self.name());
        }
    }
}
