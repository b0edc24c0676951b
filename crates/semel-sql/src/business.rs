//! Reads business tables for the id map: tables of the application whose rows have public ids.
//!
//! The dialects share what is here: the names of tables and columns (validated, because names
//! cannot be bound as values), the columns and indexes that a table must have, and the findings
//! about a table that lacks them. Each dialect has its own statements. They only read, and only the
//! configured columns.
//!
//! ```no_run
//! # async fn example(pool: semel_sql::sqlx::SqlitePool, store: semel_sql::sqlite::SqliteStore)
//! # -> semel_core::store::Result<()> {
//! use semel_ids::migration::{FileCheckpoint, MapMigration};
//! use semel_ids::resource::Order;
//! use semel_sql::business::Layout;
//! use semel_sql::sqlite::SqliteTable;
//!
//! let orders = SqliteTable::open(pool, Layout::new("orders")).await?;
//! let moving = MapMigration::of::<Order>(&store, &orders).rows_per_second(20_000);
//! let filled = moving.backfill(&FileCheckpoint::new("orders.json"), |now| eprintln!("{now}")).await?;
//! let verified = moving.verify(|now| eprintln!("{now}")).await?;
//! println!("{filled}\n{verified}");
//! # Ok(())
//! # }
//! ```

mod inspection;
mod names;

use semel_core::store::{Error, ErrorKind, Result};
use semel_ids::migration::{BusinessRow, Field, TableCursor, TablePage};

pub use inspection::Inspection;
#[cfg(feature = "postgres")]
pub(crate) use inspection::Role;
pub(crate) use inspection::{Class, Column, Dialect, Facts, Index, inspect, usable};
pub use names::Layout;
pub(crate) use names::Names;

/// A business row, and the cursor from which a listing continues after it.
pub(crate) struct Placed {
    pub(crate) cursor: String,
    pub(crate) row: BusinessRow,
}

/// Makes a page of at most `limit` rows from up to `limit + 1` rows. The extra row shows whether
/// there is a next page, and whether its key differs from the last key of this page.
///
/// # Errors
/// `Misconfigured` if the extra row has the same key as the last row of the page: the next page
/// would skip it.
pub(crate) fn page(mut placed: Vec<Placed>, limit: u32) -> Result<TablePage> {
    let limit = limit as usize;
    let mut next = None;
    if placed.len() > limit {
        placed.truncate(limit + 1);
        let beyond = placed.pop().expect("more rows than the limit");
        let last = placed.last().map(|last| &last.cursor);
        if last == Some(&beyond.cursor) {
            let text = format!(
                "two rows have the key {:?}; choose a unique column as the key",
                beyond.row.key
            );
            return Err(Error::new(ErrorKind::Misconfigured, "read the business table", text));
        }
        next = last.map(TableCursor::new);
    }
    Ok(TablePage { rows: placed.into_iter().map(|placed| placed.row).collect(), next })
}

/// Keeps only the rows whose tenant and public id equal the requested ones byte for byte. A
/// collation may have matched others.
pub(crate) fn exactly(
    rows: impl IntoIterator<Item = BusinessRow>,
    tenant: &str,
    publics: &[&str],
) -> Vec<BusinessRow> {
    let exact = |row: &BusinessRow| {
        matches!(&row.tenant, Field::Value(own) if own == tenant)
            && matches!(&row.public, Field::Value(public) if publics.contains(&public.as_str()))
    };
    rows.into_iter().filter(exact).collect()
}

/// Returns the error for a cursor that this table did not issue.
pub(crate) fn foreign_cursor(cursor: &TableCursor) -> Error {
    let text = format!(
        "the cursor {:?} does not belong to this table; begin without a cursor",
        cursor.as_str()
    );
    Error::new(ErrorKind::Misconfigured, "read the business table", text)
}

/// Returns whether `text` is the canonical form of an integer, so that no two texts mean one
/// tenant.
pub(crate) fn is_integer(text: &str) -> bool {
    text.parse::<i128>().is_ok_and(|number| number.to_string() == text)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.bytes().all(|c| c.is_ascii_hexdigit()) || !text.len().is_multiple_of(2) {
        return None;
    }
    let pairs = (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16));
    pairs.collect::<std::result::Result<_, _>>().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(key: &str) -> Placed {
        let row = BusinessRow {
            key: key.to_owned(),
            tenant: Field::Null,
            public: Field::Null,
            internal: Field::Null,
        };
        Placed { cursor: key.to_owned(), row }
    }

    #[test]
    fn a_page_knows_whether_another_follows() {
        let rows = |keys: &[&str]| keys.iter().map(|key| placed(key)).collect::<Vec<_>>();
        let full = page(rows(&["1", "2", "3"]), 2).expect("a page");
        assert_eq!((full.rows.len(), full.next), (2, Some(TableCursor::new("2"))));
        let last = page(rows(&["1", "2"]), 2).expect("a page");
        assert_eq!((last.rows.len(), last.next), (2, None));
        assert_eq!(page(Vec::new(), 2).expect("a page"), TablePage::default());
        let error = page(rows(&["1", "2", "2"]), 2).expect_err("not unique");
        assert!(error.to_string().contains("unique"), "{error}");
    }

    #[test]
    fn bytes_survive_a_cursor() {
        let bytes = [0, 1, 0x7f, 0xff];
        assert_eq!(unhex(&hex(&bytes)), Some(bytes.to_vec()));
        for wrong in ["0", "0g", "é1", "+1"] {
            assert_eq!(unhex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_integer_has_one_spelling() {
        assert!(is_integer("0") && is_integer("-7") && is_integer("18446744073709551615"));
        for other in ["", "07", "+7", "7 ", "0x7", "seven", "-0"] {
            assert!(!is_integer(other), "{other:?}");
        }
    }
}
