//! Measures a contender beside its references and adds rows to a report.

use std::sync::Arc;

use semel_bench::BoxError;
use semel_bench::turns::{AnyContender, Pace, compete};

use super::report::{Report, RowLabel, Target};

/// A reference that a contender is measured beside.
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) contender: Arc<dyn AnyContender>,
    pub(crate) target: Option<Target>,
}

/// Measures a contender beside its references, one row per reference; returns the number of
/// operations of all.
pub(crate) async fn contest(
    report: &mut Report,
    label: RowLabel,
    ours: Arc<dyn AnyContender>,
    references: Vec<Reference>,
    pace: Pace,
) -> Result<u64, BoxError> {
    let mut contenders = vec![ours];
    contenders.extend(references.iter().map(|reference| Arc::clone(&reference.contender)));
    let series = compete(&contenders, label.concurrency, pace).await?;
    for (reference, theirs) in references.iter().zip(&series[1..]) {
        report.rates(label, &series[0], (&reference.name, theirs), reference.target);
    }
    Ok(series.iter().map(|series| series.done).sum())
}
