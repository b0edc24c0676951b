//! What the effects say about the answers.

use std::collections::HashMap;

use semel_core::store::{Filter, Inspect as _};
use semel_core::{Recorded, State};

use super::Trouble;
use super::clients::{Book, Story, id};
use crate::child::{Mode, Settings};
use crate::effects::{self, Effect};
use crate::place::Place;
use crate::report::Line;

/// Adds to `line` what was promised and what was found.
pub(super) async fn audit(
    line: Line,
    place: &Place,
    child: &Settings,
    book: &Book,
) -> Result<Line, Trouble> {
    let stories = book.stories();
    let effects = match child.mode {
        Mode::Run | Mode::Hold => child.journal.read()?,
        Mode::Transact | Mode::ClaimFirst => effects::read(place.backend()).await?,
    };
    let total = effects.len();
    let mut by_key: HashMap<String, Vec<Effect>> = HashMap::new();
    for effect in effects {
        by_key.entry(effect.key.clone()).or_default().push(effect);
    }
    let of = |at: usize| by_key.get(&id(at)).map_or(&[][..], Vec::as_slice);
    let count = |broken: &dyn Fn(usize, &Story) -> bool| {
        stories.iter().enumerate().filter(|(at, story)| broken(*at, story)).count()
    };
    let doubled = count(&|at, _| of(at).len() > 1);
    let lost = count(&|at, story| story.answer.is_some() && of(at).is_empty());
    let foreign = count(&|at, story| {
        story.answer.as_ref().is_some_and(|value| !of(at).iter().any(|e| e.value == *value))
    });
    let differing = count(&|_, story| !story.others.is_empty());
    let twice = count(&|_, story| story.recorded.len() > 1);
    let disordered = count(&|at, _| !in_order(of(at)));
    let (unsettled, contradicted) = records(place, child.mode, &stories).await?;
    let line = line.column("effects", total);
    let uncertain = count(&|_, story| story.uncertain);
    // What was answered cannot be in doubt afterwards, nor the other way round.
    let wavering = count(&|_, story| story.uncertain && story.answer.is_some());
    let line = match child.mode {
        Mode::Transact | Mode::ClaimFirst => line.zero("doubled", doubled),
        // At most once: what broke off after its effect is not done again, and says so.
        Mode::Hold => line
            .zero("doubled", doubled)
            .column("uncertain", uncertain)
            .promise(uncertain > 0, "nothing was held")
            .zero("answered and uncertain", wavering),
        // Outside the store's transactions this is the documented window, shown and not hidden.
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

/// A later attempt of the same operation has a larger fence, and no attempt has two.
fn in_order(effects: &[Effect]) -> bool {
    let mut sorted: Vec<&Effect> = effects.iter().collect();
    sorted.sort_by_key(|effect| effect.attempt);
    sorted.windows(2).all(|pair| {
        let [a, b] = pair else { return true };
        a.operation == b.operation && a.attempt < b.attempt && a.fence < b.fence
    })
}

/// Records that are not settled, and those that say something else than the clients were told.
async fn records(place: &Place, mode: Mode, stories: &[Story]) -> Result<(usize, usize), Trouble> {
    let ended = |state| match state {
        State::Succeeded => true,
        State::Uncertain => mode == Mode::Hold,
        State::Running | State::Failed | State::Dead | State::Discarded => false,
    };
    let answers: HashMap<String, &Story> =
        stories.iter().enumerate().map(|(at, story)| (id(at), story)).collect();
    let store = place.backend().open().await?;
    let (mut open, mut contradicted, mut after) = (0, 0, None);
    loop {
        let page = store.list(&Filter::default(), after.as_ref(), 500).await?;
        // What cannot be read is settled for nobody.
        open += page.unreadable.len();
        for entry in &page.entries {
            open += usize::from(!ended(entry.record.state));
            let Some(Recorded::Whole(outcome)) = &entry.record.outcome else { continue };
            let value: String = serde_json::from_slice(outcome.body())?;
            let told = answers.get(entry.key.id()).and_then(|story| story.answer.as_ref());
            contradicted += usize::from(told != Some(&value));
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok((open, contradicted)),
        }
    }
}
