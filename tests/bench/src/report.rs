//! The results: rows, as JSON and as a table.

use std::fmt::{self, Write as _};

use serde::{Serialize, Serializer};

use super::BoxError;
use semel_bench::turns::{Series, median};

/// The target of a ratio or a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn met(self, value: f64) -> bool {
        match self {
            Target::AtLeast(least) => value >= least,
            Target::AtMost(most) => value <= most,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::AtLeast(least) => write!(f, ">= {least}"),
            Target::AtMost(most) => write!(f, "<= {most}"),
        }
    }
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One comparison. `ratio` is `ours / reference`; without a reference the target applies to `ours`
/// itself.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    bench: String,
    store: &'static str,
    concurrency: usize,
    ours: f64,
    reference: Option<f64>,
    reference_name: Option<String>,
    unit: &'static str,
    ratio: Option<f64>,
    /// The smallest and the largest ratio of two turns of one round.
    ratio_min: Option<f64>,
    ratio_max: Option<f64>,
    target: Option<Target>,
    met: Option<bool>,
}

/// The label of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowLabel {
    pub(crate) bench: &'static str,
    pub(crate) store: &'static str,
    pub(crate) concurrency: usize,
}

/// All rows.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Adds a comparison with a reference, in `unit`, with one value per round and side.
    pub(crate) fn compare(
        &mut self,
        label: RowLabel,
        unit: &'static str,
        ours: &[f64],
        (name, reference): (&str, &[f64]),
        target: Option<Target>,
    ) {
        let (middle, beside) = (median(ours), median(reference));
        let ratio = middle / beside;
        let paired: Vec<f64> =
            ours.iter().zip(reference).map(|(ours, theirs)| ours / theirs).collect();
        self.push(Row {
            bench: label.bench.to_owned(),
            store: label.store,
            concurrency: label.concurrency,
            ours: rounded(middle),
            reference: Some(rounded(beside)),
            reference_name: Some(name.to_owned()),
            unit,
            ratio: Some(rounded(ratio)),
            ratio_min: paired.iter().copied().reduce(f64::min).map(rounded),
            ratio_max: paired.iter().copied().reduce(f64::max).map(rounded),
            target,
            met: target.map(|target| target.met(ratio)),
        });
    }

    /// Adds a comparison of rates with those of a reference.
    pub(crate) fn rates(
        &mut self,
        label: RowLabel,
        ours: &Series,
        (name, reference): (&str, &Series),
        target: Option<Target>,
    ) {
        self.compare(label, "ops/s", &ours.rates, (name, &reference.rates), target);
    }

    /// Adds a figure without a reference.
    pub(crate) fn figure(
        &mut self,
        label: RowLabel,
        unit: &'static str,
        ours: f64,
        target: Option<Target>,
    ) {
        self.push(Row {
            bench: label.bench.to_owned(),
            store: label.store,
            concurrency: label.concurrency,
            ours: rounded(ours),
            reference: None,
            reference_name: None,
            unit,
            ratio: None,
            ratio_min: None,
            ratio_max: None,
            target,
            met: target.map(|target| target.met(ours)),
        });
    }

    fn push(&mut self, row: Row) {
        eprintln!("  {}", line(&row).trim_end());
        self.rows.push(row);
    }

    pub(crate) fn json(&self) -> Result<String, BoxError> {
        Ok(serde_json::to_string_pretty(&self.rows)? + "\n")
    }

    pub(crate) fn table(&self) -> String {
        let mut table = String::new();
        let _ = writeln!(
            table,
            "{:<26} {:<9} {:>4} {:>10} {:>10} {:<6} {:>6} {:>13}  {:<9} {:<4} reference",
            "bench",
            "store",
            "at",
            "ours",
            "reference",
            "unit",
            "ratio",
            "[min–max]",
            "target",
            "met"
        );
        for row in &self.rows {
            table.push_str(&line(row));
        }
        let judged = self.rows.iter().filter_map(|row| row.met);
        let (met, all) = (judged.clone().filter(|met| *met).count(), judged.count());
        let _ = writeln!(table, "{met} of {all} targets met");
        table
    }
}

fn line(row: &Row) -> String {
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
    let spread = match (row.ratio_min, row.ratio_max) {
        (Some(min), Some(max)) => format!("[{min:.2}–{max:.2}]"),
        _ => String::new(),
    };
    let met = row.met.map_or("", |met| if met { "yes" } else { "NO" });
    format!(
        "{:<26} {:<9} {:>4} {:>10} {:>10} {:<6} {:>6} {:>13}  {:<9} {:<4} {}\n",
        row.bench,
        row.store,
        row.concurrency,
        whole(row.ours),
        row.reference.map_or_else(String::new, whole),
        row.unit,
        number(row.ratio),
        spread,
        row.target.map_or_else(String::new, |target| target.to_string()),
        met,
        row.reference_name.as_deref().unwrap_or_default()
    )
}

fn whole(value: f64) -> String {
    if value >= 1_000.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// Rounds to three digits after the point: the machine is not more precise.
fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}
