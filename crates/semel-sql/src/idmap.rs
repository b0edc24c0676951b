//! Bindings as rows of `semel_id_map`: in which order many are written, what a row that stands in the
//! way means, and how rows are read. The same in every dialect.
//!
//! No statement is here, and no cache: see `semel-ids`.

use std::collections::HashMap;

use semel_core::store::Result;
use semel_ids::map::{Binding, Inserted, MapKey, MapRow};
use ulid::Ulid;

use crate::error::corrupt_map;

/// What names a row: its type, its tenant, and one of its ids.
type Name<'b, I> = (String, &'b str, I);

fn name<'b, I>(binding: &'b Binding, id: I) -> Name<'b, I> {
    (binding.kind().name().to_owned(), binding.tenant(), id)
}

/// Bindings of one call, parted so that those of a round have nothing in common and can be written by
/// one statement. A round is in the order of the primary key, in which every call locks rows.
///
/// Nearly always there is one round: two ids of one thing take two codecs.
pub(crate) struct Rounds<'b> {
    bindings: &'b [Binding],
    rounds: Vec<Vec<usize>>,
    /// Those that are the same as an earlier one, and which.
    twins: Vec<(usize, usize)>,
}

/// What to do with a binding that is in one call twice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Twins {
    /// The second learns what the first did.
    Follow,
    /// It is written again, after what came between.
    Repeat,
}

impl<'b> Rounds<'b> {
    pub(crate) fn of(bindings: &'b [Binding], twins: Twins) -> Self {
        let mut publics: HashMap<Name<'_, &str>, (usize, usize)> = HashMap::new();
        let mut internals: HashMap<Name<'_, Ulid>, usize> = HashMap::new();
        let mut parted = Self { bindings, rounds: Vec::new(), twins: Vec::new() };
        for (at, binding) in bindings.iter().enumerate() {
            let public = name(binding, binding.public().as_str());
            let internal = name(binding, binding.internal());
            let earlier = publics.get(&public).copied();
            if let Some((_, first)) = earlier
                && twins == Twins::Follow
                && bindings[first] == *binding
            {
                parted.twins.push((at, first));
                continue;
            }
            let after = |round: usize| round + 1;
            let round = earlier.map_or(0, |(round, _)| after(round));
            let round = round.max(internals.get(&internal).copied().map_or(0, after));
            publics.insert(public, (round, at));
            internals.insert(internal, round);
            if parted.rounds.len() <= round {
                parted.rounds.resize_with(round + 1, Vec::new);
            }
            parted.rounds[round].push(at);
        }
        for round in &mut parted.rounds {
            round.sort_by_cached_key(|at| {
                let binding = &bindings[*at];
                name(binding, binding.public().as_str())
            });
        }
        parted
    }

    /// The rounds, one after the other.
    pub(crate) fn each(&self) -> impl Iterator<Item = Vec<&'b Binding>> {
        self.rounds.iter().map(|round| round.iter().map(|at| &self.bindings[*at]).collect())
    }

    /// The answers in the order of the call, from those of the rounds.
    pub(crate) fn answers(&self, inserted: Vec<Vec<Inserted>>) -> Vec<Inserted> {
        let mut answers = vec![Inserted::Conflict; self.bindings.len()];
        for (round, inserted) in self.rounds.iter().zip(inserted) {
            for (at, answer) in round.iter().zip(inserted) {
                answers[*at] = answer;
            }
        }
        for (at, first) in &self.twins {
            answers[*at] = match answers[*first] {
                Inserted::New => Inserted::Already,
                other @ (Inserted::Already | Inserted::Revoked | Inserted::Conflict) => other,
            };
        }
        answers
    }
}

/// A row that has the public or the internal id of a binding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// The place of the binding among those that were asked for.
    pub(crate) place: usize,
    /// Whether it has both.
    pub(crate) same: bool,
    /// Its status.
    pub(crate) status: i16,
}

/// What the rows that stand in the way of `count` bindings mean; `None` where there is none.
pub(crate) fn judged(count: usize, standing: &[Standing]) -> Vec<Option<Inserted>> {
    let mut judged = vec![None; count];
    for Standing { place, same, status } in standing {
        if let Some(answer) = judged.get_mut(*place) {
            *answer = Some(match (*same, *answer) {
                // The row itself; another one cannot have either of its ids.
                (true, _) if *status == LIVE => Inserted::Already,
                (true, _) => Inserted::Revoked,
                (false, Some(found)) => found,
                (false, None) => Inserted::Conflict,
            });
        }
    }
    judged
}

/// The status of a row that counts.
pub(crate) const LIVE: i16 = 1;

/// A row as a dialect found it.
pub(crate) struct Raw {
    pub(crate) tenant: String,
    pub(crate) public: String,
    pub(crate) internal: Vec<u8>,
    pub(crate) status: i16,
}

impl Raw {
    pub(crate) fn row(self, operation: &'static str) -> Result<MapRow> {
        let Self { tenant, public, internal, status } = self;
        let internal: [u8; 16] =
            internal.try_into().map_err(|_| corrupt_map(operation, "internal_id"))?;
        Ok(MapRow { tenant, public, internal: Ulid::from_bytes(internal), live: status == LIVE })
    }
}

/// Which rows of a type a listing wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window<'a> {
    /// All of them.
    All,
    /// Those after this tenant's public id.
    After(&'a str, &'a str),
    /// A tenant's.
    Of(&'a str),
    /// A tenant's after this public id.
    OfAfter(&'a str, &'a str),
}

impl<'a> Window<'a> {
    /// `None` if no row can match.
    pub(crate) fn of(tenant: Option<&'a str>, after: Option<&'a MapKey>) -> Option<Self> {
        let Some(tenant) = tenant else {
            return Some(after.map_or(Window::All, |at| Window::After(&at.tenant, &at.public)));
        };
        Some(match after {
            Some(at) if at.tenant.as_str() > tenant => return None,
            Some(at) if at.tenant == tenant => Window::OfAfter(tenant, &at.public),
            Some(_) | None => Window::Of(tenant),
        })
    }

    /// Whether no text of a database that refuses NUL can match.
    pub(crate) fn holds_nul(&self) -> bool {
        match self {
            Window::All => false,
            Window::Of(text) => text.contains('\0'),
            Window::After(one, two) | Window::OfAfter(one, two) => {
                one.contains('\0') || two.contains('\0')
            }
        }
    }
}
