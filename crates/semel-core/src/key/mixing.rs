//! Hashing what is uniform already: digests, as keys of maps in memory.
//!
//! A digest is as good as random to everybody but its maker, who may try inputs until many digests
//! fall into one bucket. So every map mixes in a secret of its own; that, and no more, is needed.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A map's secret.
#[derive(Clone, Debug)]
pub(crate) struct Mixing([u64; 4]);

impl Default for Mixing {
    fn default() -> Self {
        let random = RandomState::new();
        Self([1, 2, 3, 4].map(|word: u64| random.hash_one(word) | 1))
    }
}

impl BuildHasher for Mixing {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer { secret: self.0, mixed: self.0[0] }
    }
}

/// Mixes one key.
#[derive(Debug)]
pub(crate) struct Mixer {
    secret: [u64; 4],
    mixed: u64,
}

impl Mixer {
    fn word(&mut self, at: usize, word: u64) {
        let product = u128::from(word ^ self.mixed) * u128::from(self.secret[at % 4]);
        // Both halves: the low one alone depends on low bits only.
        self.mixed = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for (at, word) in words.by_ref().enumerate() {
            self.word(at, u64::from_le_bytes(word.try_into().expect("eight bytes")));
        }
        for byte in words.remainder() {
            self.word(0, u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.word(0, word);
    }

    fn write_usize(&mut self, _: usize) {
        // The length of what follows, which is the same for all keys of a map.
    }

    fn finish(&self) -> u64 {
        self.mixed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::key::Key;

    #[test]
    fn what_falls_into_one_bucket_under_one_secret_does_not_under_another() {
        let digest = |n: u32| Key::command("t", "s", &n.to_string()).expect("a key").digest();
        let (one, two) = (Mixing::default(), Mixing::default());
        let low = |mixing: &Mixing, n| mixing.hash_one(digest(n)) & 0xff;
        let together: Vec<u32> = (0..20_000).filter(|n| low(&one, *n) == 0).collect();
        assert!((20..300).contains(&together.len()), "{}", together.len());
        let apart: HashSet<u64> = together.iter().map(|n| low(&two, *n)).collect();
        assert!(apart.len() > together.len() / 3, "{} of {}", apart.len(), together.len());
    }

    #[test]
    fn every_byte_counts() {
        let mixing = Mixing::default();
        let of = |at: usize| {
            let mut bytes = [7_u8; 32];
            bytes[at] ^= 1;
            mixing.hash_one(bytes)
        };
        let different: HashSet<u64> = (0..32).map(of).collect();
        assert_eq!(different.len(), 32);
        assert_eq!(mixing.hash_one([7_u8; 32]), mixing.hash_one([7_u8; 32]));
    }
}
