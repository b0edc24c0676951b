//! Compares the effects with the results and the records.

use semel_core::store::{Filter, Inspect as _};
use semel_core::{Recorded, State};
use semel_stores::PrivateStore;
use semel_testkit::effects::{HistoryEntry, HistoryEvent, check};

use super::clients::{CallLog, entry};
use crate::BoxError;
use crate::child::{Mode, Settings};
use crate::report::Line;

/// Adds to `line` what was counted, and the promises that were broken.
pub(super) async fn audit(
    line: Line,
    private: &PrivateStore,
    child: &Settings,
    log: &CallLog,
) -> Result<Line, BoxError> {
    let effects = child.effects().await?;
    let mut history = log.results();
    history.extend(effects.iter().map(|effect| {
        let (attempt, fence) = (effect.attempt, effect.fence);
        entry(effect.key.clone(), HistoryEvent::Granted { attempt, fence })
    }));
    let unsettled = records(private, child.mode, &mut history).await?;
    let found = check(&history, &effects);
    let line = line.column("effects", effects.len());
    let line = match child.mode {
        Mode::Transact | Mode::ClaimFirst => line.zero("doubled", found.doubled),
        // At most once: an attempt that ended after its effect is not repeated but `Uncertain`.
        Mode::Hold => {
            let uncertain = log.count(|key| key.uncertain);
            // A key with a result cannot be uncertain as well.
            let wavering = log.count(|key| key.uncertain && key.is_done());
            line.zero("doubled", found.doubled)
                .column("uncertain", uncertain)
                .promise(uncertain > 0, "nothing was held")
                .zero("answered and uncertain", wavering)
        }
        // Outside the store's transactions a second effect is possible; it is counted.
        Mode::Run => line.column("doubled", found.doubled),
    };
    Ok(line
        .zero("outcomes > 1", found.completed_twice)
        .zero("lost", found.lost)
        .zero("answers differ", found.answers_differ)
        .zero("answer without effect", found.answer_without_effect)
        .zero("fences not growing", found.fence_did_not_grow)
        .zero("operations differ", found.operation_changed)
        .zero("records open", unsettled))
}

/// Adds the outcomes of all records to `history`; returns the number of records that are not settled.
async fn records(
    private: &PrivateStore,
    mode: Mode,
    history: &mut Vec<HistoryEntry>,
) -> Result<usize, BoxError> {
    let ended = |state| match state {
        State::Succeeded => true,
        State::Uncertain => mode == Mode::Hold,
        State::Running | State::Failed | State::Dead | State::Discarded => false,
    };
    let store = private.backend().open().await?;
    let (mut open, mut after) = (0, None);
    loop {
        let page = store.list(&Filter::default(), after.as_ref(), 500).await?;
        // A record that cannot be read counts as open.
        open += page.unreadable.len();
        for listed in &page.entries {
            open += usize::from(!ended(listed.record.state));
            if let Some(Recorded::Whole(outcome)) = &listed.record.outcome {
                let outcome = serde_json::from_slice(outcome.body())?;
                history.push(entry(listed.key.id().to_owned(), HistoryEvent::Recorded { outcome }));
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(open),
        }
    }
}
