//! What callers were told of every key, and what the database says of it: held against each other key
//! by key, so that an order too many does not make up for one that is lost.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::demo::orders::OrderId;

/// Keys that were begun, with the order that their callers were told of, if they were. The product of
/// an order is its key.
#[derive(Debug)]
pub(super) struct ResponseLog(Option<Mutex<Keys>>);

type Keys = HashMap<String, Option<OrderId>>;

/// Where the database and the callers differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// Orders that somebody was told of, and that are not there.
    pub(super) lost: i64,
    /// Orders that nobody was told of, beyond the one that a key without an answer may have.
    pub(super) too_many: i64,
}

impl ResponseLog {
    /// Remembers every key, until the load ends.
    pub(super) fn kept() -> Self {
        Self(Some(Mutex::default()))
    }

    /// Remembers nothing, for a load that may never end.
    pub(super) fn forgotten() -> Self {
        Self(None)
    }

    /// A caller begins with a key.
    pub(super) fn begun(&self, key: &str) {
        if let Some(mut keys) = self.keys() {
            keys.insert(key.to_owned(), None);
        }
    }

    /// It was told of this order.
    pub(super) fn answered(&self, key: &str, order: OrderId) {
        if let Some(mut keys) = self.keys() {
            keys.insert(key.to_owned(), Some(order));
        }
    }

    fn keys(&self) -> Option<MutexGuard<'_, Keys>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Compares it with all orders that were placed, each with its product; `None` where nothing is
    /// remembered.
    pub(super) fn compare(&self, placed: Vec<(String, OrderId)>) -> Option<Differences> {
        let keys = self.keys()?;
        let mut orders: HashMap<String, Vec<OrderId>> = HashMap::with_capacity(keys.len());
        for (key, order) in placed {
            orders.entry(key).or_default().push(order);
        }
        let mut differences = Differences::default();
        for (key, told) in keys.iter() {
            let mut there = orders.remove(key).unwrap_or_default();
            let meant = match told {
                Some(told) => there.iter().position(|order| order == told),
                None => there.len().checked_sub(1),
            };
            match meant {
                Some(at) => drop(there.swap_remove(at)),
                None => differences.lost += i64::from(told.is_some()),
            }
            differences.too_many += count(there.len());
        }
        // Under keys that nobody has.
        differences.too_many += orders.values().map(|orders| count(orders.len())).sum::<i64>();
        Some(differences)
    }
}

fn count(orders: usize) -> i64 {
    i64::try_from(orders).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use semel_ids::Generator;

    use super::*;

    fn id() -> OrderId {
        OrderId::new(Generator::new().generate().unwrap())
    }

    /// Of `a`, which was told of an order, and of `b`, which was not.
    fn compared(told: OrderId, placed: &[(&str, OrderId)]) -> (i64, i64) {
        let keys = ResponseLog::kept();
        keys.begun("a");
        keys.answered("a", told);
        keys.begun("b");
        let placed = placed.iter().map(|(key, order)| ((*key).to_owned(), *order)).collect();
        let Differences { lost, too_many } = keys.compare(placed).unwrap();
        (lost, too_many)
    }

    #[test]
    fn an_order_too_many_does_not_make_up_for_one_that_is_lost() {
        let told = id();
        assert_eq!(compared(told, &[("a", told)]), (0, 0));
        assert_eq!(compared(told, &[("a", told), ("b", id())]), (0, 0), "it may have been placed");
        assert_eq!(compared(told, &[]), (1, 0));
        assert_eq!(compared(told, &[("a", told), ("a", id())]), (0, 1), "a second one");
        assert_eq!(compared(told, &[("a", id())]), (1, 1), "another than was told");
        assert_eq!(compared(told, &[("b", told)]), (1, 0), "somebody else's");
        assert_eq!(compared(told, &[("b", id()), ("b", id())]), (1, 1));
        assert_eq!(compared(told, &[("c", id())]), (1, 1), "of a key that nobody has");
    }

    #[test]
    fn a_load_without_an_end_remembers_nothing() {
        let keys = ResponseLog::forgotten();
        keys.begun("a");
        keys.answered("a", id());
        assert_eq!(keys.compare(Vec::new()), None);
    }
}
