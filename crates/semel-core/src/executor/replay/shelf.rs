//! A bounded shelf of answers: the oldest goes first, unless somebody has asked for it meanwhile.
//!
//! Answers here live a minute and most are never asked for again, so the order in which they came is
//! nearly the order in which they end. A cache that learns what is popular costs every first call
//! more than it could save.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::Replay;
use crate::key::{Digest, Mixing};

/// Boards at most; a power of two.
const BOARDS: u64 = 16;
/// A shelf is not divided into boards of fewer answers.
const PER_BOARD: u64 = 512;
/// Revoked keys that a board can tell apart.
const REVOKED: usize = 512;

/// The shelf.
#[derive(Debug)]
pub(super) struct Shelf {
    boards: Vec<Mutex<Board>>,
    /// What one board holds.
    capacity: u64,
    /// What an answer weighs at least, so that one limit bounds both bytes and answers.
    least: u64,
}

#[derive(Debug, Default)]
struct Board {
    places: HashMap<Digest, Place, Mixing>,
    /// In the order in which they came.
    order: VecDeque<Digest>,
    weight: u64,
    /// Until when what was read of a key is not to be believed.
    revoked: HashMap<Digest, Instant, Mixing>,
    /// The same for every key.
    all_revoked: Option<Instant>,
}

#[derive(Debug)]
struct Place {
    replay: Replay,
    weight: u64,
    used: bool,
}

impl Shelf {
    /// A shelf for so many answers of so many bytes in all, both at least 1.
    pub(super) fn new(answers: u64, bytes: u64) -> Self {
        let boards = (answers / PER_BOARD).clamp(1, BOARDS);
        // The largest power of two in it.
        let boards = 1 << boards.ilog2();
        let capacity = (bytes / boards).max(1);
        let least = (bytes / answers).max(1);
        Self { boards: (0..boards).map(|_| Mutex::default()).collect(), capacity, least }
    }

    fn board(&self, digest: &Digest) -> MutexGuard<'_, Board> {
        let at = usize::from(digest.as_bytes()[0]) % self.boards.len();
        self.boards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, digest: &Digest) -> Option<Replay> {
        let mut board = self.board(digest);
        let place = board.places.get_mut(digest)?;
        place.used = true;
        Some(place.replay.clone())
    }

    /// Puts an answer there, and makes room for it. One that was read before its key was revoked, or
    /// that would need more than a board, is not kept.
    pub(super) fn put(&self, digest: Digest, replay: Replay, now: Instant) {
        let weight = (replay.size() as u64).max(self.least);
        if weight > self.capacity {
            return;
        }
        let place = Place { replay, weight, used: false };
        let gone = self.board(&digest).put(digest, place, self.capacity, now);
        // Not under the lock: an answer may be large.
        drop(gone);
    }

    /// Removes an answer, and refuses what was read of it until `now` and is still on its way.
    pub(super) fn revoke(&self, digest: Digest, now: Instant) {
        let gone = self.board(&digest).revoke(digest, now);
        drop(gone);
    }
}

impl Board {
    /// Gives back what had to go.
    fn put(&mut self, digest: Digest, place: Place, capacity: u64, now: Instant) -> Vec<Place> {
        let mut gone = Vec::new();
        let revoked = self.revoked.get(&digest).max(self.all_revoked.as_ref());
        if revoked.is_some_and(|until| place.replay.as_of <= *until) {
            return vec![place];
        }
        self.weight += place.weight;
        match self.places.insert(digest, place) {
            Some(before) => {
                self.weight -= before.weight;
                gone.push(before);
            }
            None => self.order.push_back(digest),
        }
        while let Some(oldest) = self.order.front() {
            let place = self.places.get_mut(oldest).expect("the order names what is there");
            let ended = place.replay.until <= now;
            if !ended && self.weight <= capacity {
                break;
            }
            if place.used && !ended {
                // Asked for since it was last looked at: it may stay for another round.
                place.used = false;
                self.order.rotate_left(1);
            } else {
                let oldest = self.order.pop_front().expect("just looked");
                gone.extend(self.take(&oldest));
            }
        }
        gone
    }

    fn take(&mut self, digest: &Digest) -> Option<Place> {
        let place = self.places.remove(digest)?;
        self.weight -= place.weight;
        Some(place)
    }

    fn revoke(&mut self, digest: Digest, now: Instant) -> Option<Place> {
        if self.revoked.len() == REVOKED {
            // Which they were is forgotten, so nothing is believed that is on its way.
            self.revoked.clear();
            self.all_revoked = Some(now);
        }
        self.revoked.insert(digest, now);
        let place = self.take(&digest)?;
        self.order.retain(|other| *other != digest);
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::claim::{Fence, OperationId};
    use crate::executor::Receipt;
    use crate::fingerprint::Fingerprint;
    use crate::key::Key;
    use crate::outcome::Outcome;

    fn digest(n: usize) -> Digest {
        Key::command("t", "s", &n.to_string()).expect("a key").digest()
    }

    fn answer(bytes: usize, as_of: Instant, lives: u64) -> Replay {
        let receipt = Receipt {
            operation_id: OperationId::generate(),
            attempt: 1,
            fence: Fence(1),
            recorded: true,
        };
        let (fingerprint, outcome) = (Fingerprint::none(), Outcome::new("x", vec![0; bytes]));
        let until = as_of + Duration::from_secs(lives);
        Replay { fingerprint, outcome, receipt, as_of, until }
    }

    fn kept(shelf: &Shelf, range: std::ops::Range<usize>) -> Vec<usize> {
        range.filter(|n| shelf.board(&digest(*n)).places.contains_key(&digest(*n))).collect()
    }

    fn is_sound(shelf: &Shelf) {
        for board in &shelf.boards {
            let board = board.lock().expect("no panic");
            assert_eq!(board.weight, board.places.values().map(|place| place.weight).sum::<u64>());
            assert!(board.weight <= shelf.capacity);
            assert_eq!(board.places.len(), board.order.len());
            assert!(board.places.keys().all(|digest| board.order.contains(digest)));
        }
    }

    #[test]
    fn the_oldest_goes_first_unless_it_was_asked_for() {
        let (shelf, now) = (Shelf::new(3, 30_000), crate::clock::monotonic());
        for n in 0..3 {
            shelf.put(digest(n), answer(10, now, 60), now);
        }
        assert!(shelf.get(&digest(0)).is_some());
        for n in 3..5 {
            shelf.put(digest(n), answer(10, now, 60), now);
            is_sound(&shelf);
        }
        assert_eq!(kept(&shelf, 0..5), [0, 3, 4]);
    }

    #[test]
    fn what_has_ended_goes_before_anything_else() {
        let (shelf, now) = (Shelf::new(8, 80_000), crate::clock::monotonic());
        shelf.put(digest(0), answer(10, now, 1), now);
        shelf.put(digest(1), answer(10, now, 60), now);
        assert!(shelf.get(&digest(0)).is_some());
        shelf.put(digest(2), answer(10, now, 60), now + Duration::from_secs(2));
        assert_eq!(kept(&shelf, 0..3), [1, 2]);
    }

    #[test]
    fn bytes_are_a_limit_too() {
        let (shelf, now) = (Shelf::new(100, 10_000), crate::clock::monotonic());
        for n in 0..9 {
            shelf.put(digest(n), answer(3_000, now, 60), now);
            is_sound(&shelf);
        }
        assert_eq!(kept(&shelf, 0..9), [6, 7, 8]);
        shelf.put(digest(9), answer(20_000, now, 60), now);
        assert_eq!(kept(&shelf, 0..10), [6, 7, 8]);
    }

    #[test]
    fn what_was_read_before_its_key_was_revoked_does_not_come_back() {
        let (shelf, now) = (Shelf::new(8, 80_000), crate::clock::monotonic());
        let later = now + Duration::from_secs(1);
        for n in 0..3 {
            shelf.put(digest(n), answer(10, now, 60), now);
        }
        shelf.revoke(digest(1), later);
        is_sound(&shelf);
        assert_eq!(kept(&shelf, 0..3), [0, 2]);
        shelf.put(digest(1), answer(10, later, 60), later);
        assert_eq!(kept(&shelf, 0..3), [0, 2]);
        let afterwards = later + Duration::from_nanos(1);
        shelf.put(digest(1), answer(10, afterwards, 60), afterwards);
        is_sound(&shelf);
        assert_eq!(kept(&shelf, 0..3), [0, 1, 2]);
    }

    #[test]
    fn however_many_are_revoked_none_comes_back_and_the_room_is_bounded() {
        let (shelf, now) = (Shelf::new(8, 80_000), crate::clock::monotonic());
        shelf.put(digest(0), answer(10, now, 60), now);
        let later = now + Duration::from_secs(1);
        for n in 1..2_000 {
            shelf.revoke(digest(n), later);
            assert!(shelf.boards[0].lock().expect("no panic").revoked.len() <= REVOKED);
        }
        for n in 1..2_000 {
            shelf.put(digest(n), answer(10, now, 60), later);
        }
        is_sound(&shelf);
        assert_eq!(kept(&shelf, 0..2_000), [0]);
    }

    #[test]
    fn a_place_that_is_taken_again_and_again_does_not_fill_the_shelf() {
        let (shelf, start) = (Shelf::new(10_000, 64 << 20), crate::clock::monotonic());
        for round in 0..50 {
            let now = start + Duration::from_millis(round);
            for n in 0..100 {
                shelf.put(digest(n), answer(10, now, 60), now);
                if round % 2 == 0 {
                    shelf.revoke(digest(n), now);
                }
            }
            is_sound(&shelf);
        }
        assert_eq!(kept(&shelf, 0..100).len(), 100);
    }
}
