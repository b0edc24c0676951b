//! What this process remembers (L1), and when it must not.
//!
//! Known ids and absences have a space each, so that a scan for ids that are not there cannot push
//! out those that are. Every write goes through its part of the names: what was looked up before a
//! change was told is not remembered after it, and is not waited for by those who ask after it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use moka::sync::Cache;
use tokio::time::Instant;
use ulid::Ulid;

use super::flight::{Flight, Found, Missed, Own};
use super::name::{Asked, ByHash, Name, Names};
use super::part::{Kept, Part};
use crate::settings::CacheSettings;

/// Parts of the names that are watched together. A change costs those that share its part a look into
/// the map; a revocation, as many as come in the time of an absence.
const PARTS: usize = 1 << 10;

/// Changes at most that the shared cache is yet to be told of. Beyond that the oldest are given up, and
/// what the cache says of their part of the names is not believed.
const UNTOLD: usize = 1 << 14;

/// When a registration began, and how many revocations there had been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opened {
    at: Instant,
    revocations: u64,
}

/// When a lookup began, as its part of the names saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn(u64);

impl Turn {
    pub(super) fn pass(&mut self) {
        self.0 += 1;
    }
}

/// How many loads of a part of the names had ended at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended(u64);

/// How a name gets its answer that needs no load of its own.
#[derive(Debug)]
pub(super) enum Seat {
    /// By a flight under way, as its answer at this place.
    Aboard(Arc<Flight>, usize),
    /// It is here by now: an id, or that it is not there.
    Arrived(Option<Ulid>),
}

#[derive(Debug)]
pub(super) struct Near {
    known: Cache<Name, Kept<Ulid>, ByHash>,
    /// Whether known ids have any room at all.
    roomy: bool,
    parts: Box<[Mutex<Part>]>,
    /// Loads of each part that have ended. Beside the parts: a hit looks at no lock.
    ended: Box<[AtomicU64]>,
    pub(super) names: Names,
    l1_ttl: Duration,
    negative_ttl: Duration,
    /// How long nothing is remembered of what was revoked.
    revoking: Duration,
    /// How long an entry from before a revocation may be in the shared cache.
    revoked: Duration,
    /// How long an absence may be told that was learned before a registration.
    doubt: Duration,
    /// Changes of which no more is told, and which nobody has counted.
    given_up: AtomicU64,
    /// How often something was distrusted, and how often when last nothing was: while both are the same,
    /// what the shared cache says is believed without a look into its part.
    distrusted: AtomicU64,
    trusted: AtomicU64,
    /// Until when some id that another node has changed is distrusted, in milliseconds since `began`.
    heard_until: AtomicU64,
    began: Instant,
    /// Absences, and fresh ids, in a part at most.
    absences: usize,
    freshes: usize,
}

impl Near {
    pub(super) fn new(settings: &CacheSettings) -> Self {
        let size = usize::try_from(settings.l1_max_size).unwrap_or(usize::MAX);
        Self {
            known: Cache::builder()
                .max_capacity(settings.l1_max_size)
                .time_to_live(settings.l1_ttl)
                .build_with_hasher(ByHash::default()),
            roomy: settings.l1_max_size > 0,
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            ended: (0..PARTS).map(|_| AtomicU64::new(0)).collect(),
            names: Names::default(),
            l1_ttl: settings.l1_ttl,
            negative_ttl: settings.negative_ttl,
            revoking: settings.revoking(),
            revoked: settings.revoked(),
            doubt: settings.absence_bound(),
            given_up: AtomicU64::new(0),
            distrusted: AtomicU64::new(0),
            trusted: AtomicU64::new(0),
            heard_until: AtomicU64::new(0),
            began: Instant::now(),
            absences: most_in_a_part((size / 10).max(1_000)),
            freshes: most_in_a_part(size.max(10_000)),
        }
    }

    /// The id, if it is known; else when it was looked for.
    #[inline]
    pub(super) fn get(&self, asked: &Asked<'_>, limit: Option<Duration>) -> Result<Ulid, Missed> {
        // Before the look: what lands after it is noticed by whoever boards.
        let ended = self.ended(asked);
        self.known(asked, limit).ok_or(Missed { hash: asked.hash, ended })
    }

    #[inline]
    fn known(&self, asked: &Asked<'_>, limit: Option<Duration>) -> Option<Ulid> {
        if !self.roomy {
            return None;
        }
        let kept = self.known.get(asked)?;
        kept.counts(Instant::now(), limit).then_some(kept.value)
    }

    #[inline]
    fn ended(&self, asked: &Asked<'_>) -> Ended {
        Ended(self.ended[place(asked)].load(Ordering::Acquire))
    }

    /// The turn at which a flight begins to look an id of its up, if nobody else has the answer. Now
    /// that nobody can finish in between, it is looked for here once more, unless nobody has finished
    /// since it was looked for.
    pub(super) fn board(
        &self,
        flight: &Arc<Flight>,
        at: usize,
        limit: Option<Duration>,
    ) -> Result<Turn, Seat> {
        let asked = flight.asked(at);
        let mut part = self.part(&asked);
        if part.absent.holds(&asked, flight.began, limit) {
            return Err(Seat::Arrived(None));
        }
        if let Some((flight, at)) = part.under_way(&asked) {
            return Err(Seat::Aboard(flight, at));
        }
        if self.ended(&asked) != flight.wanted[at].missed.ended
            && let Some(id) = self.known(&asked, limit)
        {
            return Err(Seat::Arrived(Some(id)));
        }
        part.take_off(flight, at);
        Ok(part.turn)
    }

    /// Remembers what a flight found, unless something was told since it began; nobody joins it any
    /// more. Gives the places of what others may be told.
    pub(super) fn land(
        &self,
        flight: &Arc<Flight>,
        own: &[Own],
        found: &[Option<Found>],
    ) -> Vec<usize> {
        let now = Instant::now();
        let mut told = Vec::new();
        for Own { at, turn } in own {
            let mut part = self.part(&flight.asked(*at));
            if let Some(Ok((found, _))) = &found[*at]
                && part.turn == *turn
                && part.nothing.is_none_or(|until| until <= now)
                && self.keep(&mut part, flight, *at, *found, now)
            {
                told.push(*at);
            }
            self.end(&mut part, flight, *at);
        }
        told
    }

    /// A flight ends without answers.
    pub(super) fn cut_off(&self, flight: &Arc<Flight>, own: &[Own]) {
        for Own { at, .. } in own {
            let mut part = self.part(&flight.asked(*at));
            self.end(&mut part, flight, *at);
        }
    }

    fn end(&self, part: &mut Part, flight: &Arc<Flight>, at: usize) {
        part.end(flight, at);
        // Whoever writes it holds the part.
        let ended = &self.ended[place(&flight.asked(at))];
        ended.store(ended.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Whether an answer may be believed; if so, it is remembered.
    fn keep(
        &self,
        part: &mut Part,
        flight: &Flight,
        at: usize,
        found: Option<Ulid>,
        now: Instant,
    ) -> bool {
        let asked = flight.asked(at);
        match found {
            Some(id) => {
                part.absent.take(&asked);
                self.know(|| flight.name(at), id, flight.began);
            }
            None if part.doubts(&asked, now) => return false,
            None => {
                let since = flight.began;
                let kept = Kept { value: (), since, until: since + jittered(self.negative_ttl) };
                self.known.invalidate(&asked);
                part.absent.put(flight.name(at), kept, self.absences);
            }
        }
        true
    }

    /// Whether an absence of this id is not to be believed, whoever tells of it.
    pub(super) fn doubts(&self, asked: &Asked<'_>) -> bool {
        self.part(asked).doubts(asked, Instant::now())
    }

    /// A registration has begun: its id may be there at any moment.
    pub(super) fn open(&self, name: &Name) -> Opened {
        let mut part = self.part(&name.asked());
        part.open += 1;
        part.changed(&name.asked());
        part.absent.take(&name.asked());
        Opened { at: Instant::now(), revocations: part.revocations }
    }

    /// It has committed.
    pub(super) fn registered(&self, name: Name, id: Ulid, opened: Opened) {
        let part = self.close(&name);
        let now = Instant::now();
        // What was revoked meanwhile stays revoked; so may its neighbours be, for all that is known
        // here, and the map is asked.
        if part.revocations == opened.revocations && part.nothing.is_none_or(|until| until <= now) {
            self.know(|| name, id, opened.at);
        }
    }

    /// It was rolled back.
    pub(super) fn dropped(&self, name: &Name) {
        let mut part = self.part(&name.asked());
        part.open = part.open.saturating_sub(1);
    }

    /// Nobody knows whether it has committed, or will.
    pub(super) fn unclear(&self, name: &Name) {
        drop(self.close(name));
    }

    /// Another node has registered it.
    pub(super) fn appeared(&self, name: &Name) {
        self.refresh(&mut self.part(&name.asked()), name);
    }

    fn close(&self, name: &Name) -> MutexGuard<'_, Part> {
        let mut part = self.part(&name.asked());
        part.open = part.open.saturating_sub(1);
        self.refresh(&mut part, name);
        part
    }

    fn refresh(&self, part: &mut Part, name: &Name) {
        let since = Instant::now();
        let kept = Kept { value: (), since, until: since + self.doubt };
        part.appeared(name, kept, self.freshes);
    }

    /// It was revoked, or is about to be. For a while nothing is remembered of it: a lookup that
    /// begins now may still be answered by the row as it was.
    pub(super) fn revoked(&self, name: &Name) {
        let mut part = self.part(&name.asked());
        part.changed(&name.asked());
        part.revocations += 1;
        part.nothing = Some(Instant::now() + self.revoking);
        self.known.invalidate(&name.asked());
        part.fresh.take(&name.asked());
    }

    /// It was changed, and the shared cache is yet to be told: until it is, what that says of the id is not
    /// believed. Gives when that began.
    pub(super) fn distrust(&self, name: &Name) -> Instant {
        let since = Instant::now();
        let kept = Kept { value: (), since, until: since + self.revoked };
        let mut part = self.part(&name.asked());
        let given_up = part.untold.put(name.clone(), kept, most_in_a_part(UNTOLD));
        self.given_up.fetch_add(given_up as u64, Ordering::Relaxed);
        // After it is there: whoever counts before that, and finds it, does not trust; whoever counts
        // before that, and has passed its part, has counted one too few.
        self.distrusted.fetch_add(1, Ordering::SeqCst);
        since
    }

    /// The shared cache was told of what is distrusted since then.
    pub(super) fn told(&self, name: &Name, since: Instant) {
        self.part(&name.asked()).untold.told(&name.asked(), since);
    }

    /// What the shared cache is yet to be told of, and since when.
    pub(super) fn untold(&self) -> Vec<(Name, Instant)> {
        let distrusted = self.distrusted.load(Ordering::SeqCst);
        let (now, mut untold, mut crowded) = (Instant::now(), Vec::new(), false);
        for part in &self.parts {
            let mut part = lock(part);
            self.given_up.fetch_add(part.untold.expire(now) as u64, Ordering::Relaxed);
            untold.extend(part.untold.list());
            crowded |= part.untold.is_crowded(now);
        }
        if untold.is_empty() && !crowded {
            self.trusted.fetch_max(distrusted, Ordering::SeqCst);
        }
        untold
    }

    /// How many changes were given up since this was last asked: no more is told of them.
    pub(super) fn given_up(&self) -> u64 {
        self.given_up.swap(0, Ordering::Relaxed)
    }

    /// Another node says that it was revoked.
    pub(super) fn revoked_elsewhere(&self, name: &Name) {
        self.revoked(name);
        self.heard(name);
    }

    /// Another node says that a repair has changed it.
    pub(super) fn corrected_elsewhere(&self, name: &Name) {
        self.repaired(name);
        self.heard(name);
    }

    /// The word of another node is heard also where the shared cache refused it (full, without its
    /// replicas or its disk), and an entry from before is still there: it is not believed here either,
    /// for as long as it may live.
    fn heard(&self, name: &Name) {
        let since = Instant::now();
        let until = since + self.revoked;
        let mut part = self.part(&name.asked());
        part.heard.put(name.clone(), Kept { value: (), since, until }, self.freshes);
        // Rounded up, and after the part has it: a reader that sees the time finds the name.
        let millis = until.duration_since(self.began).as_millis() + 1;
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        self.heard_until.fetch_max(millis, Ordering::SeqCst);
    }

    /// Whether what the shared cache says of this id is not to be believed.
    pub(super) fn distrusts(&self, asked: &Asked<'_>) -> bool {
        let now = Instant::now();
        let untold = self.distrusted.load(Ordering::SeqCst) != self.trusted.load(Ordering::SeqCst);
        let millis = now.duration_since(self.began).as_millis();
        let heard = millis < u128::from(self.heard_until.load(Ordering::SeqCst));
        if !untold && !heard {
            return false;
        }
        let part = self.part(asked);
        (untold && part.untold.doubts(asked, now)) || (heard && part.heard.doubts(asked, now))
    }

    /// A repair has changed what the map says of it: whatever was known is not.
    pub(super) fn repaired(&self, name: &Name) {
        let mut part = self.part(&name.asked());
        // A registration that is open may be of what the repair has replaced: the map is asked.
        part.revocations += 1;
        self.refresh(&mut part, name);
        self.known.invalidate(&name.asked());
    }

    /// Forgets everything: something may have been told while nobody listened.
    pub(super) fn clear(&self) {
        for part in &self.parts {
            lock(part).unheard();
        }
        self.known.invalidate_all();
    }

    fn know(&self, name: impl FnOnce() -> Name, id: Ulid, since: Instant) {
        if !self.roomy {
            return;
        }
        let until = since + jittered(self.l1_ttl);
        self.known.insert(name(), Kept { value: id, since, until });
    }

    fn part(&self, asked: &Asked<'_>) -> MutexGuard<'_, Part> {
        lock(&self.parts[place(asked)])
    }
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a name's part.
#[inline]
fn place(asked: &Asked<'_>) -> usize {
    // The low bits choose places inside the cache; these are from the other end.
    #[expect(clippy::cast_possible_truncation, reason = "only the low bits count")]
    let part = asked.hash.rotate_left(20) as usize;
    part % PARTS
}

/// Room in a part where there is to be room for so many in all: chance gives some parts more than
/// others.
const fn most_in_a_part(all: usize) -> usize {
    (all / PARTS).saturating_mul(2) + 8
}

/// Up to a tenth less, by chance.
pub(super) fn jittered(ttl: Duration) -> Duration {
    ttl.mul_f64(1.0 - fastrand::f64() / 10.0)
}
