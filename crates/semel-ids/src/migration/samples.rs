//! Counts findings and keeps a few samples of them.

use std::collections::BTreeMap;
use std::fmt;

use super::business::{BusinessRow, Field};
use super::reading::RefusalReason;
use crate::map::{Binding, MapRow};

/// The longest text of a sample, in characters. The texts of rows may have any length.
const MAX_TEXT: usize = 80;

/// A sample of a counted finding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The key of the row in the business table, if there is one.
    pub key: Option<String>,
    /// The tenant; empty if it is unknown.
    pub tenant: String,
    /// The public id; empty if it is unknown.
    pub public: String,
    /// A remark about the finding; empty if there is none.
    pub note: String,
}

impl Sample {
    pub(super) fn of_row(row: &BusinessRow) -> Self {
        let text = |field: &Field<String>| match field {
            Field::Value(text) => truncated(text),
            Field::Null | Field::Unreadable => String::new(),
        };
        Self {
            key: Some(truncated(&row.key)),
            tenant: text(&row.tenant),
            public: text(&row.public),
            note: String::new(),
        }
    }

    pub(super) fn of_binding(key: &str, binding: &Binding) -> Self {
        Self {
            key: Some(truncated(key)),
            tenant: binding.tenant().to_owned(),
            public: binding.public().to_string(),
            note: String::new(),
        }
    }

    pub(super) fn of_mapping(row: &MapRow) -> Self {
        Self {
            key: None,
            tenant: truncated(&row.tenant),
            public: truncated(&row.public),
            note: String::new(),
        }
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

fn truncated(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
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

/// The number of findings of one kind, with a few samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledCount {
    /// The number of findings.
    pub count: u64,
    /// The first findings, up to the number of samples that is set.
    pub samples: Vec<Sample>,
}

impl SampledCount {
    /// Counts one more finding, and adds a sample if there are fewer than `max_samples`.
    pub(super) fn add(&mut self, max_samples: usize, sample: impl FnOnce() -> Sample) {
        self.count += 1;
        if self.samples.len() < max_samples {
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

/// The rows that could not be used, counted by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(BTreeMap<RefusalReason, SampledCount>);

impl Refusals {
    /// Returns the number of rows that could not be used.
    pub fn count(&self) -> u64 {
        self.0.values().map(|tally| tally.count).sum()
    }

    /// Returns the number of rows that could not be used for this reason.
    pub fn of(&self, reason: RefusalReason) -> u64 {
        self.0.get(&reason).map_or(0, |tally| tally.count)
    }

    /// Returns the reasons that occurred, with their counts and samples.
    pub fn iter(&self) -> impl Iterator<Item = (RefusalReason, &SampledCount)> {
        self.0.iter().map(|(reason, tally)| (*reason, tally))
    }

    pub(super) fn add(
        &mut self,
        reason: RefusalReason,
        max_samples: usize,
        sample: impl FnOnce() -> Sample,
    ) {
        self.0.entry(reason).or_default().add(max_samples, sample);
    }

    /// Adds `count` rows with this reason, without samples.
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
