//! How many orders there are, and what came of them: counted as sets, so that no row stands in for
//! another.
//!
//! An effect is held against the order that it is about. One that is about none is counted by itself,
//! and never as the effect that another order lacks.

/// The groups that are told of orders.
pub(super) const GROUPS: [&str; 3] = ["INVENTORY", "NOTIFY", "BILLING"];

/// Orders, and what was done about them, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Orders placed.
    pub(super) orders: i64,
    /// Products that they are for. The load orders another under every key.
    pub(super) products: i64,
    /// By group, in the order of [`GROUPS`].
    pub(super) effects: [Effects; GROUPS.len()],
}

/// What one group has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// Rows that it wrote.
    pub(super) rows: i64,
    /// Orders that they name.
    pub(super) named: i64,
    /// Those of them that there are.
    pub(super) known: i64,
}

/// A name and three counts: rows, what they name, and what there is of it. The orders themselves have
/// no name, and name products.
pub(super) type Counted = (Option<String>, i64, i64, i64);

impl Tally {
    /// Effects that should not be there: second ones.
    pub(super) fn doubled(&self) -> i64 {
        self.effects.iter().map(|effects| effects.rows - effects.named).sum()
    }

    /// Effects of orders that are not there, though an order commits before anybody hears of it.
    pub(super) fn unfounded(&self) -> i64 {
        self.effects.iter().map(|effects| effects.named - effects.known).sum()
    }

    /// Effects that are not there yet.
    pub(super) fn missing(&self) -> i64 {
        self.effects.iter().map(|effects| self.orders - effects.known).sum()
    }

    /// Orders beyond the first of a product: under the load, second orders of a key.
    pub(super) fn repeated(&self) -> i64 {
        self.orders - self.products
    }

    /// From what the database has counted. A group that nobody here knows is nobody's.
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
    fn an_effect_of_no_order_stands_in_for_none() {
        let groups = GROUPS.map(|name| group(name, 3, 3, 2));
        let tally = Tally::of([vec![(None, 3, 3, 3)], groups.to_vec()].concat());
        assert_eq!((tally.unfounded(), tally.missing()), (3, 3), "one of each in every group");
    }

    #[test]
    fn a_group_that_nobody_knows_is_not_taken_for_the_orders() {
        let tally = Tally::of(vec![(None, 3, 2, 3), group("AUDIT", 9, 9, 9), group("", 8, 8, 8)]);
        assert_eq!((tally.orders, tally.repeated()), (3, 1));
    }
}
