//! Records that a listing met and could not read: told to the operator, whatever the command was for.
//!
//! No command changes such a record. What is wrong with one is the store's to say.

use std::collections::HashSet;
use std::fmt;

use semel_core::store::UnreadableRecord;
use serde_json::{Value, json};

use super::{shown, words};
use crate::exit::ExitError;

/// As many as are told apart.
const MOST: usize = 10_000;

/// Those that were met, each once, however often it was met.
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

    /// All were read; else the command ends with findings, and `more` besides.
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
        f.write_str("; each keeps its key, and has to be mended or removed in the store itself")
    }
}

/// Its digest, whole: nothing else names it.
pub(crate) fn digest(unreadable: &UnreadableRecord) -> String {
    words::hex(&unreadable.digest)
}

/// The end of a list: where it goes on, and whether all that was listed could be read.
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

/// For machines.
pub(crate) fn json(some: &[UnreadableRecord]) -> Vec<Value> {
    some.iter().map(|bad| json!({ "digest": digest(bad), "why": bad.why })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_named_and_all_are_counted() {
        let mut unread = Unread::default();
        assert!(unread.none(None).is_ok());
        unread
            .add(vec![UnreadableRecord { digest: vec![0xab; 32], why: "column state".to_owned() }]);
        let one = unread.to_string();
        assert!(one.starts_with("1 record cannot be read (abab"), "{one}");
        for _ in 0..2 {
            unread.add(vec![UnreadableRecord { digest: vec![1; 32], why: "other".to_owned() }]);
        }
        let said = unread.none(Some("there are more")).unwrap_err().to_string();
        assert!(said.starts_with("2 records cannot be read (the first is abab"), "{said}");
        assert!(said.ends_with("; there are more"), "{said}");
    }
}
