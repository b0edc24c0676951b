//! What a transaction writes only when it commits: events and ids, in the message that commits it.

use semel_core::event::Event;
#[cfg(feature = "ids")]
use semel_ids::map::Binding;

/// The largest number of ids in one message. With its tenant and type an id takes less than 200 bytes,
/// so that this many are less than 16 KiB.
#[cfg(feature = "ids")]
const MOST_BINDINGS: usize = 64;

/// Events and ids that a transaction writes when it commits.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    pub(crate) events: Vec<Event>,
    #[cfg(feature = "ids")]
    pub(crate) bindings: Vec<Binding>,
}

impl Deferred {
    /// Adds events after those that were added before.
    pub(crate) fn add_events(&mut self, events: Vec<Event>) {
        self.events.extend(events);
    }

    /// Adds a binding, unless it was added before. Returns whether it is among the bindings: if it is
    /// not, there are too many of them for a message.
    #[cfg(feature = "ids")]
    pub(crate) fn add_binding(&mut self, binding: &Binding) -> bool {
        if self.bindings.contains(binding) {
            return true;
        }
        let fits = self.bindings.len() < MOST_BINDINGS;
        if fits {
            self.bindings.push(binding.clone());
        }
        fits
    }
}

#[cfg(all(test, feature = "ids"))]
mod tests {
    use semel_ids::TypedId;
    use semel_ids::resource::Order;
    use ulid::Ulid;

    use super::*;

    #[test]
    fn more_ids_than_fit_into_a_message_are_not_deferred() {
        let mut deferred = Deferred::default();
        let binding = |number: usize| {
            let id = TypedId::<Order>::new(Ulid(number as u128));
            Binding::of("acme", id).expect("a tenant")
        };
        let taken: Vec<bool> = (0..100).map(|n| deferred.add_binding(&binding(n))).collect();
        let expected: Vec<bool> = (0..100).map(|n| n < MOST_BINDINGS).collect();
        assert_eq!(taken, expected);
        assert!(deferred.add_binding(&binding(0)), "it is among them");
        assert_eq!(deferred.bindings.len(), MOST_BINDINGS);
    }
}
