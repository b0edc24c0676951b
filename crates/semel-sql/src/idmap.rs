//! Bindings as rows of `semel_id_map`, the same in every dialect: the order in which many bindings
//! are written, the answer if a conflicting row exists, and how rows are read.
//!
//! The statements are in the dialects, the caches in `semel-ids`.

use std::collections::HashMap;

use semel_core::store::Result;
use semel_ids::map::{Binding, Inserted, MapKey, MapRow};
use ulid::Ulid;

use crate::error::corrupt_map;

/// A unique key of a row: the resource type, the tenant, and the public or the internal id.
type Name<'b, I> = (String, &'b str, I);

fn name<'b, I>(binding: &'b Binding, id: I) -> Name<'b, I> {
    (binding.kind().name().to_owned(), binding.tenant(), id)
}

/// The bindings of one call, split into rounds. No two bindings of a round share an id, so that one
/// statement can write the round. A round is sorted by primary key, the order in which every call
/// locks rows.
///
/// There is nearly always one round: only a call that contains one public or one internal id more
/// than once needs another.
pub(crate) struct Rounds<'b> {
    bindings: &'b [Binding],
    rounds: Vec<Vec<usize>>,
    /// The positions of bindings that equal an earlier one, each with the position of the earlier
    /// one.
    twins: Vec<(usize, usize)>,
}

/// How a call treats a binding that it contains twice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Twins {
    /// The second is not written; its answer follows from that of the first.
    Follow,
    /// The second is written too, in a later round.
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

    /// Returns the rounds in the order in which they must be written.
    pub(crate) fn each(&self) -> impl Iterator<Item = Vec<&'b Binding>> {
        self.rounds.iter().map(|round| round.iter().map(|at| &self.bindings[*at]).collect())
    }

    /// Returns the answers in the order of the call, given the answers of each round.
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

/// An existing row that has the public or the internal id of a binding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExistingRow {
    /// The position of the binding among those of the statement.
    pub(crate) place: usize,
    /// Whether the row has both ids of the binding.
    pub(crate) same: bool,
    /// The stored status of the row.
    pub(crate) status: i16,
}

/// Returns for each of `count` bindings the answer that the existing rows imply, or `None` if no
/// row has one of its ids.
pub(crate) fn judged(count: usize, existing: &[ExistingRow]) -> Vec<Option<Inserted>> {
    let mut judged = vec![None; count];
    for ExistingRow { place, same, status } in existing {
        if let Some(answer) = judged.get_mut(*place) {
            *answer = Some(match (*same, *answer) {
                // The row has both ids, so no other row can have either of them.
                (true, _) if *status == LIVE => Inserted::Already,
                (true, _) => Inserted::Revoked,
                (false, Some(found)) => found,
                (false, None) => Inserted::Conflict,
            });
        }
    }
    judged
}

/// The stored status of a row that is not revoked.
pub(crate) const LIVE: i16 = 1;

/// The columns of a row of `semel_id_map`, as a dialect read them.
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

/// The rows of one resource type that a listing returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Window<'a> {
    /// All rows of the type.
    All,
    /// The rows after this tenant and public id.
    After(&'a str, &'a str),
    /// All rows of this tenant.
    Of(&'a str),
    /// The rows of this tenant after this public id.
    OfAfter(&'a str, &'a str),
}

impl<'a> Window<'a> {
    /// Returns the window of a listing of `tenant`, or of all tenants, that continues after the key
    /// `after`; `None` if no row can match.
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

    /// Returns whether a text of the window contains NUL: no row of a database that refuses NUL can
    /// match it.
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
