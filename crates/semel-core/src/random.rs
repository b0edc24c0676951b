//! Randomness of the operating system, drawn a block at a time.
//!
//! A call to the operating system costs more than the ids of a claim do. A process that forks and goes
//! on without `exec` would share the rest of a block with its parent; an executor does not survive that
//! anyway, because its threads do not.

use std::cell::RefCell;

/// The bytes of a block: the ids of about forty claims.
const BLOCK: usize = 1_024;

struct Block {
    bytes: [u8; BLOCK],
    /// How many bytes at the beginning were given out.
    used: usize,
}

thread_local! {
    static DRAWN: RefCell<Block> = const { RefCell::new(Block { bytes: [0; BLOCK], used: BLOCK }) };
}

/// Fills `bytes` with random bytes. No byte is given out twice.
pub(crate) fn fill(bytes: &mut [u8]) {
    // A thread that ends has no block any more.
    if DRAWN.try_with(|block| block.borrow_mut().fill(bytes)).is_err() {
        draw(bytes);
    }
}

impl Block {
    fn fill(&mut self, bytes: &mut [u8]) {
        if bytes.len() > BLOCK {
            return draw(bytes);
        }
        if BLOCK - self.used < bytes.len() {
            draw(&mut self.bytes);
            self.used = 0;
        }
        let taken = &mut self.bytes[self.used..self.used + bytes.len()];
        bytes.copy_from_slice(taken);
        taken.fill(0);
        self.used += bytes.len();
    }
}

fn draw(bytes: &mut [u8]) {
    // Without randomness two attempts could share an id and each believe the other's write is its
    // own; there is no safe way on, and no operating system we run on ever fails here.
    getrandom::fill(bytes).expect("the operating system provides randomness");
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn sixteen() -> [u8; 16] {
        let mut bytes = [0; 16];
        fill(&mut bytes);
        bytes
    }

    #[test]
    fn no_bytes_are_given_out_twice_on_any_thread() {
        let many = || (0..1_000).map(|_| sixteen()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(many)).collect();
        let drawn = threads.into_iter().flat_map(|thread| thread.join().expect("no panic"));
        assert_eq!(drawn.collect::<HashSet<_>>().len(), 4_000);
    }

    #[test]
    fn any_length_is_filled() {
        for length in [0, 1, 26, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK] {
            let mut bytes = vec![0; length];
            fill(&mut bytes);
            let zeros = bytes.iter().filter(|byte| **byte == 0).count();
            assert!(length < 64 || zeros * 16 < length, "{zeros} of {length} bytes are zero");
        }
    }
}
