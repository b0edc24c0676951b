//! Compares the responses of every key with the orders in the database, key by key, so that a second order of
//! one key does not hide a lost one of another.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::demo::order::OrderId;

/// Each key with the id of the order in its response; `None` without a response. The load uses the key
/// as the product of the order.
#[derive(Debug)]
pub(super) struct ResponseLog(Option<Mutex<Keys>>);

type Keys = HashMap<String, Option<OrderId>>;

/// The differences between database and responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// Orders of responses that are not in the database.
    pub(super) lost: i64,
    /// Orders of no response, beyond the one that a key without a response may have.
    pub(super) too_many: i64,
}

impl ResponseLog {
    /// Creates a log that keeps every key until the load ends.
    pub(super) fn kept() -> Self {
        Self(Some(Mutex::default()))
    }

    /// Creates a log that keeps nothing, for a load without an end.
    pub(super) fn forgotten() -> Self {
        Self(None)
    }

    /// Adds a key.
    pub(super) fn begun(&self, key: &str) {
        if let Some(mut keys) = self.keys() {
            keys.insert(key.to_owned(), None);
        }
    }

    /// Sets the order of a key's response.
    pub(super) fn answered(&self, key: &str, order: OrderId) {
        if let Some(mut keys) = self.keys() {
            keys.insert(key.to_owned(), Some(order));
        }
    }

    fn keys(&self) -> Option<MutexGuard<'_, Keys>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Compares the log with all orders, each with its product; `None` if nothing was kept.
    pub(super) fn compare(&self, placed: Vec<(String, OrderId)>) -> Option<Differences> {
        let keys = self.keys()?;
        let mut orders: HashMap<String, Vec<OrderId>> = HashMap::with_capacity(keys.len());
        for (key, order) in placed {
            orders.entry(key).or_default().push(order);
        }
        let mut differences = Differences::default();
        for (key, known) in keys.iter() {
            let mut there = orders.remove(key).unwrap_or_default();
            let meant = match known {
                Some(known) => there.iter().position(|order| order == known),
                None => there.len().checked_sub(1),
            };
            match meant {
                Some(at) => drop(there.swap_remove(at)),
                None => differences.lost += i64::from(known.is_some()),
            }
            differences.too_many += count(there.len());
        }
        // Orders of unknown keys.
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

    /// Compares `a`, whose response had an order, and `b`, which had no response.
    fn compared(known: OrderId, placed: &[(&str, OrderId)]) -> (i64, i64) {
        let keys = ResponseLog::kept();
        keys.begun("a");
        keys.answered("a", known);
        keys.begun("b");
        let placed = placed.iter().map(|(key, order)| ((*key).to_owned(), *order)).collect();
        let Differences { lost, too_many } = keys.compare(placed).unwrap();
        (lost, too_many)
    }

    #[test]
    fn a_second_order_does_not_hide_a_lost_one() {
        let known = id();
        assert_eq!(compared(known, &[("a", known)]), (0, 0));
        assert_eq!(
            compared(known, &[("a", known), ("b", id())]),
            (0, 0),
            "it may have been placed"
        );
        assert_eq!(compared(known, &[]), (1, 0));
        assert_eq!(compared(known, &[("a", known), ("a", id())]), (0, 1), "a second one");
        assert_eq!(compared(known, &[("a", id())]), (1, 1), "another than in the response");
        assert_eq!(compared(known, &[("b", known)]), (1, 0), "of another key");
        assert_eq!(compared(known, &[("b", id()), ("b", id())]), (1, 1));
        assert_eq!(compared(known, &[("c", id())]), (1, 1), "of an unknown key");
    }

    #[test]
    fn a_load_without_an_end_keeps_nothing() {
        let keys = ResponseLog::forgotten();
        keys.begun("a");
        keys.answered("a", id());
        assert_eq!(keys.compare(Vec::new()), None);
    }
}
