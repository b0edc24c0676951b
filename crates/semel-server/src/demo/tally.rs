//! Counts orders and effects as sets, so that a second effect of one order does not hide a missing
//! effect of another.
//!
//! Effects of unknown orders are counted separately.

/// The consumer groups of orders.
pub(super) const GROUPS: [&str; 3] = ["INVENTORY", "NOTIFY", "BILLING"];

/// The numbers of orders and effects at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// The number of orders.
    pub(super) orders: i64,
    /// The number of distinct products. The built-in load orders another product under every key.
    pub(super) products: i64,
    /// The effects of each group, in the order of [`GROUPS`].
    pub(super) effects: [Effects; GROUPS.len()],
}

/// The numbers of effects of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// The number of rows.
    pub(super) rows: i64,
    /// The number of distinct orders in the rows.
    pub(super) named: i64,
    /// The number of distinct orders in the rows that exist in the table `orders`.
    pub(super) known: i64,
}

/// A group and three counts: rows, distinct orders in them, and those of the orders that exist. The
/// row for the table `orders` has no group, and its second count is the number of distinct
/// products.
pub(super) type Counted = (Option<String>, i64, i64, i64);

impl Tally {
    /// Returns the number of effects beyond the first of an order in its group.
    pub(super) fn doubled(&self) -> i64 {
        self.effects.iter().map(|effects| effects.rows - effects.named).sum()
    }

    /// Returns the number of effects of unknown orders. There should be none, because an order
    /// commits before its event is published.
    pub(super) fn unfounded(&self) -> i64 {
        self.effects.iter().map(|effects| effects.named - effects.known).sum()
    }

    /// Returns the number of missing effects.
    pub(super) fn missing(&self) -> i64 {
        self.effects.iter().map(|effects| self.orders - effects.known).sum()
    }

    /// Returns the number of orders beyond the first of a product. Under the built-in load these
    /// are second orders of a key.
    pub(super) fn repeated(&self) -> i64 {
        self.orders - self.products
    }

    /// Creates a tally from the counts of the database. Unknown groups are ignored.
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
