//! Counts with samples.

use std::collections::BTreeMap;
use std::fmt;

use super::business::{BusinessRow, Field};
use super::reading::RefusalReason;
use crate::map::{Binding, MapRow};

/// Longest text of a sample, in characters; texts of rows may be of any length.
const SHOWN: usize = 80;

/// A sample of what was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The key of the business table's row, if there is one.
    pub key: Option<String>,
    /// The tenant; empty if it is unknown.
    pub tenant: String,
    /// The public id; empty if it is unknown.
    pub public: String,
    /// A remark; may be empty.
    pub note: String,
}

impl Sample {
    pub(super) fn of_row(row: &BusinessRow) -> Self {
        let text = |field: &Field<String>| match field {
            Field::Value(text) => cut(text),
            Field::Null | Field::Unreadable => String::new(),
        };
        Self {
            key: Some(cut(&row.key)),
            tenant: text(&row.tenant),
            public: text(&row.public),
            note: String::new(),
        }
    }

    pub(super) fn of_binding(key: &str, binding: &Binding) -> Self {
        Self {
            key: Some(cut(key)),
            tenant: binding.tenant().to_owned(),
            public: binding.public().to_string(),
            note: String::new(),
        }
    }

    pub(super) fn of_mapping(row: &MapRow) -> Self {
        Self { key: None, tenant: cut(&row.tenant), public: cut(&row.public), note: String::new() }
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = &self.key {
            write!(f, "row {key:?}, ")?;
        }
        write!(f, "tenant {:?}, {:?}", self.tenant, self.public)?;
        match self.note.as_str() {
            "" => Ok(()),
            note => write!(f, ": {note}"),
        }
    }
}

/// A count with a few samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledCount {
    /// The count.
    pub count: u64,
    /// The first samples.
    pub samples: Vec<Sample>,
}

impl SampledCount {
    /// Counts one more, and adds a sample if there are fewer than `room`.
    pub(super) fn add(&mut self, room: usize, sample: impl FnOnce() -> Sample) {
        self.count += 1;
        if self.samples.len() < room {
            self.samples.push(sample());
        }
    }
}

impl fmt::Display for SampledCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count)?;
        self.samples.iter().try_for_each(|sample| write!(f, "\n    {sample}"))
    }
}

/// Rows that could not be used, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(BTreeMap<RefusalReason, SampledCount>);

impl Refusals {
    /// Returns the number of rows.
    pub fn count(&self) -> u64 {
        self.0.values().map(|tally| tally.count).sum()
    }

    /// Returns the number of rows with this reason.
    pub fn of(&self, reason: RefusalReason) -> u64 {
        self.0.get(&reason).map_or(0, |tally| tally.count)
    }

    /// Returns the reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (RefusalReason, &SampledCount)> {
        self.0.iter().map(|(reason, tally)| (*reason, tally))
    }

    pub(super) fn add(
        &mut self,
        reason: RefusalReason,
        room: usize,
        sample: impl FnOnce() -> Sample,
    ) {
        self.0.entry(reason).or_default().add(room, sample);
    }

    /// Counts `count` more, without samples.
    pub(super) fn add_many(&mut self, reason: RefusalReason, count: u64) {
        if count > 0 {
            self.0.entry(reason).or_default().count += count;
        }
    }

    pub(super) fn counts(&self) -> BTreeMap<RefusalReason, u64> {
        self.iter().map(|(reason, tally)| (reason, tally.count)).collect()
    }
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count())?;
        self.iter().try_for_each(|(reason, tally)| write!(f, "\n  {reason}: {tally}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_of_a_long_text_is_cut() {
        let mut tally = SampledCount::default();
        let row = BusinessRow {
            key: "1".into(),
            tenant: Field::Null,
            public: Field::Value("é".repeat(100_000)),
            internal: Field::Null,
        };
        for _ in 0..5 {
            tally.add(2, || Sample::of_row(&row).note("too long"));
        }
        assert_eq!((tally.count, tally.samples.len()), (5, 2));
        assert!(tally.to_string().len() < 1_000);
        assert!(tally.samples[0].public.ends_with('…'));
    }
}
