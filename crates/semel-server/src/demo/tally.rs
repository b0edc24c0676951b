//! Counts of orders and effects, as sets: a second effect of one order does not hide a missing one of another.
//!
//! An effect of an unknown order is counted by itself.

/// The consumer groups of orders.
pub(super) const GROUPS: [&str; 3] = ["INVENTORY", "NOTIFY", "BILLING"];

/// Orders and effects at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Orders placed.
    pub(super) orders: i64,
    /// Distinct products. The load orders another one under every key.
    pub(super) products: i64,
    /// By group, in the order of [`GROUPS`].
    pub(super) effects: [Effects; GROUPS.len()],
}

/// The effects of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// Rows.
    pub(super) rows: i64,
    /// Distinct orders that they name.
    pub(super) named: i64,
    /// Those of them that exist.
    pub(super) known: i64,
}

/// A group and three counts: rows, distinct orders that they name, and those that exist. The row of the orders
/// has no group, and counts products.
pub(super) type Counted = (Option<String>, i64, i64, i64);

impl Tally {
    /// Returns second effects.
    pub(super) fn doubled(&self) -> i64 {
        self.effects.iter().map(|effects| effects.rows - effects.named).sum()
    }

    /// Returns effects of unknown orders, although an order commits before its event is published.
    pub(super) fn unfounded(&self) -> i64 {
        self.effects.iter().map(|effects| effects.named - effects.known).sum()
    }

    /// Returns missing effects.
    pub(super) fn missing(&self) -> i64 {
        self.effects.iter().map(|effects| self.orders - effects.known).sum()
    }

    /// Returns orders beyond the first of a product: under the load, second orders of a key.
    pub(super) fn repeated(&self) -> i64 {
        self.orders - self.products
    }

    /// Creates a tally from the database's counts. Unknown groups are ignored.
    pub(super) fn of(rows: Vec<Counted>) -> Self {
        let mut tally = Self::default();
        for (name, rows, named, known) in rows {
            let Some(name) = name else {
                (tally.orders, tally.products) = (rows, named);
                continue;
            };
            if let Some(at) = GROUPS.iter().position(|group| *group == name) {
                tally.effects[at] = Effects { rows, named, known };
            }
        }
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, rows: i64, named: i64, known: i64) -> Counted {
        (Some(name.to_owned()), rows, named, known)
    }

    #[test]
    fn a_second_effect_is_counted_as_doubled_and_none_as_missing() {
        let orders = (None, 3, 3, 3);
        let tally = Tally::of(vec![orders, group("NOTIFY", 4, 3, 3), group("BILLING", 2, 2, 2)]);
        assert_eq!((tally.orders, tally.repeated()), (3, 0));
        assert_eq!(tally.effects[1], Effects { rows: 4, named: 3, known: 3 });
        assert_eq!((tally.doubled(), tally.unfounded()), (1, 0));
        assert_eq!(tally.missing(), 3 + 1, "three of INVENTORY and one of BILLING");
    }

    #[test]
    fn an_effect_of_an_unknown_order_does_not_hide_a_missing_one() {
        let groups = GROUPS.map(|name| group(name, 3, 3, 2));
        let tally = Tally::of([vec![(None, 3, 3, 3)], groups.to_vec()].concat());
        assert_eq!((tally.unfounded(), tally.missing()), (3, 3), "one of each in every group");
    }

    #[test]
    fn an_unknown_group_is_ignored() {
        let tally = Tally::of(vec![(None, 3, 2, 3), group("AUDIT", 9, 9, 9), group("", 8, 8, 8)]);
        assert_eq!((tally.orders, tally.repeated()), (3, 1));
    }
}
