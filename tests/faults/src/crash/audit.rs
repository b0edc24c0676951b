//! Compares the effects with the results and the records.

use std::collections::HashMap;

use semel_core::store::{Filter, Inspect as _};
use semel_core::{Recorded, State};

use super::clients::{CallLog, KeyHistory, id};
use crate::BoxError;
use crate::child::{Mode, Settings};
use crate::effects::{self, Effect};
use crate::report::Line;
use semel_stores::PrivateStore;

/// Adds to `line` what was counted, and the promises that were broken.
pub(super) async fn audit(
    line: Line,
    private: &PrivateStore,
    child: &Settings,
    log: &CallLog,
) -> Result<Line, BoxError> {
    let histories = log.histories();
    let effects = match child.mode {
        Mode::Run | Mode::Hold => child.journal.read()?,
        Mode::Transact | Mode::ClaimFirst => effects::read(private.backend()).await?,
    };
    let total = effects.len();
    let mut by_key: HashMap<String, Vec<Effect>> = HashMap::new();
    for effect in effects {
        by_key.entry(effect.key.clone()).or_default().push(effect);
    }
    let of = |at: usize| by_key.get(&id(at)).map_or(&[][..], Vec::as_slice);
    let count = |broken: &dyn Fn(usize, &KeyHistory) -> bool| {
        histories.iter().enumerate().filter(|(at, history)| broken(*at, history)).count()
    };
    let doubled = count(&|at, _| of(at).len() > 1);
    let lost = count(&|at, history| history.answer.is_some() && of(at).is_empty());
    let foreign = count(&|at, history| {
        history.answer.as_ref().is_some_and(|value| !of(at).iter().any(|e| e.value == *value))
    });
    let differing = count(&|_, history| !history.others.is_empty());
    let twice = count(&|_, history| history.recorded.len() > 1);
    let disordered = count(&|at, _| !in_order(of(at)));
    let (unsettled, contradicted) = records(private, child.mode, &histories).await?;
    let line = line.column("effects", total);
    let uncertain = count(&|_, history| history.uncertain);
    // A key with a result cannot be uncertain as well.
    let wavering = count(&|_, history| history.uncertain && history.answer.is_some());
    let line = match child.mode {
        Mode::Transact | Mode::ClaimFirst => line.zero("doubled", doubled),
        // At most once: an attempt that ended after its effect is not repeated but `Uncertain`.
        Mode::Hold => line
            .zero("doubled", doubled)
            .column("uncertain", uncertain)
            .promise(uncertain > 0, "nothing was held")
            .zero("answered and uncertain", wavering),
        // Outside the store's transactions a second effect is possible; it is counted.
        Mode::Run => line.column("doubled", doubled).zero("outcomes > 1", twice),
    };
    Ok(line
        .zero("lost", lost)
        .zero("answers differ", differing)
        .zero("answer without effect", foreign)
        .zero("fences not growing", disordered)
        .zero("records differ", contradicted)
        .zero("records open", unsettled))
}

/// Returns whether every later attempt of the operation has a larger fence.
fn in_order(effects: &[Effect]) -> bool {
    let mut sorted: Vec<&Effect> = effects.iter().collect();
    sorted.sort_by_key(|effect| effect.attempt);
    sorted.windows(2).all(|pair| {
        let [a, b] = pair else { return true };
        a.operation == b.operation && a.attempt < b.attempt && a.fence < b.fence
    })
}

/// Counts records that are not settled, and records that differ from the clients' results.
async fn records(
    private: &PrivateStore,
    mode: Mode,
    histories: &[KeyHistory],
) -> Result<(usize, usize), BoxError> {
    let ended = |state| match state {
        State::Succeeded => true,
        State::Uncertain => mode == Mode::Hold,
        State::Running | State::Failed | State::Dead | State::Discarded => false,
    };
    let answers: HashMap<String, &KeyHistory> =
        histories.iter().enumerate().map(|(at, history)| (id(at), history)).collect();
    let store = private.backend().open().await?;
    let (mut open, mut contradicted, mut after) = (0, 0, None);
    loop {
        let page = store.list(&Filter::default(), after.as_ref(), 500).await?;
        // A record that cannot be read counts as open.
        open += page.unreadable.len();
        for entry in &page.entries {
            open += usize::from(!ended(entry.record.state));
            let Some(Recorded::Whole(outcome)) = &entry.record.outcome else { continue };
            let value: String = serde_json::from_slice(outcome.body())?;
            let told = answers.get(entry.key.id()).and_then(|history| history.answer.as_ref());
            contradicted += usize::from(told != Some(&value));
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok((open, contradicted)),
        }
    }
}
