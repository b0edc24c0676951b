//! Records that cannot be read. Every command that meets such a record reports it, and no command
//! changes it.

use std::collections::HashSet;
use std::fmt;

use semel_core::store::UnreadableRecord;
use serde_json::{Value, json};

use super::{shown, words};
use crate::exit::ExitError;

/// The largest number of unreadable records that are counted.
const MOST: usize = 10_000;

/// The unreadable records that a command has met, each counted once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    seen: HashSet<Vec<u8>>,
    first: Option<UnreadableRecord>,
}

impl Unread {
    pub(crate) fn add(&mut self, some: Vec<UnreadableRecord>) {
        for bad in some {
            if self.seen.len() < MOST {
                self.seen.insert(bad.digest.clone());
            }
            self.first.get_or_insert(bad);
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Returns an error with exit code 3 if there are unreadable records. `more` is appended to the
    /// message.
    pub(crate) fn none(&self, more: Option<&str>) -> Result<(), ExitError> {
        match (self.count(), more) {
            (0, _) => Ok(()),
            (_, None) => Err(ExitError::findings(self)),
            (_, Some(more)) => Err(ExitError::findings(format_args!("{self}; {more}"))),
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count();
        let more = if count < MOST { "" } else { " or more" };
        write!(f, "{}{more} cannot be read", shown::counted(count as u64, "record"))?;
        if let Some(first) = &self.first {
            let which = if count > 1 { "the first is " } else { "" };
            write!(f, " ({which}{}: {})", digest(first), shown::clean(&first.why))?;
        }
        f.write_str("; each keeps its key, and has to be repaired or removed in the store itself")
    }
}

/// Returns the whole digest in hex, because nothing else identifies the record.
pub(crate) fn digest(unreadable: &UnreadableRecord) -> String {
    words::hex(&unreadable.digest)
}

/// Ends a list: prints the cursor at which it continues, and reports unreadable records.
pub(crate) fn listed(some: Vec<UnreadableRecord>, next: Option<String>) -> Result<(), ExitError> {
    let more = next.map(|next| format!("there are more: --after {next}"));
    let mut unread = Unread::default();
    unread.add(some);
    unread.none(more.as_deref())?;
    if let Some(more) = more {
        shown::aside(more);
    }
    Ok(())
}

/// Returns the unreadable records as JSON.
pub(crate) fn json(some: &[UnreadableRecord]) -> Vec<Value> {
    some.iter().map(|bad| json!({ "digest": digest(bad), "why": bad.why })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_shown_and_all_are_counted() {
        let mut unread = Unread::default();
        assert!(unread.none(None).is_ok());
        unread
            .add(vec![UnreadableRecord { digest: vec![0xab; 32], why: "column state".to_owned() }]);
        let one = unread.to_string();
        assert!(one.starts_with("1 record cannot be read (abab"), "{one}");
        for _ in 0..2 {
            unread.add(vec![UnreadableRecord { digest: vec![1; 32], why: "other".to_owned() }]);
        }
        let message = unread.none(Some("there are more")).unwrap_err().to_string();
        assert!(message.starts_with("2 records cannot be read (the first is abab"), "{message}");
        assert!(message.ends_with("; there are more"), "{message}");
    }
}
