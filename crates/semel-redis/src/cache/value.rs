//! Reads and writes the value of an entry: 16 bytes in standard Base64, or `NULL`.
//!
//! BlueCone's cache writes the same format, so that both can share a server while one replaces the
//! other.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use semel_ids::shared::CacheSlot;
use ulid::Ulid;

/// The value for an id that is known not to exist.
const ABSENT: &str = "NULL";
/// The number of Base64 characters of sixteen bytes, without padding. The last one has four unused
/// bits.
const LEN: usize = 22;
const PADDING: &[u8] = b"==";

/// The value of each Base64 character; 255 for any other character.
const VALUES: [u8; 256] = {
    let mut values = [255; 256];
    let mut value = 0;
    while value < 64 {
        values[ALPHABET[value as usize] as usize] = value;
        value += 1;
    }
    values
};
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(super) fn write(internal: Option<Ulid>) -> String {
    internal.map_or_else(|| ABSENT.to_owned(), |id| STANDARD.encode(id.to_bytes()))
}

pub(super) fn read(value: &[u8]) -> CacheSlot {
    if value == ABSENT.as_bytes() {
        return CacheSlot::Absent;
    }
    match value.split_first_chunk() {
        Some((digits, PADDING)) => id(digits).map_or(CacheSlot::Damaged, CacheSlot::Known),
        _ => CacheSlot::Damaged,
    }
}

/// Decodes an id. Written by hand because a batch decodes hundreds of values of exactly this
/// length. Invalid characters and unused bits that are set are detected at the end.
fn id(text: &[u8; LEN]) -> Option<Ulid> {
    let (high, rest) = text.split_first_chunk::<10>()?;
    let (low, last) = rest.split_first_chunk::<10>()?;
    let ((high, a), (low, b), (last, c)) =
        (digits(high), digits(low), digits::<2>(last.try_into().ok()?));
    let id = u128::from(high) << 68 | u128::from(low) << 8 | u128::from(last >> 4);
    (a | b | c < 64 && last & 15 == 0).then_some(Ulid(id))
}

/// Returns the bits of `N` characters, and the OR of all their values, which is 64 or more if one
/// of them is invalid.
fn digits<const N: usize>(text: &[u8; N]) -> (u64, u64) {
    let (mut bits, mut seen) = (0, 0);
    for digit in text {
        let value = u64::from(VALUES[*digit as usize]);
        bits = bits << 6 | value;
        seen |= value;
    }
    (bits, seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_reads_back() {
        for id in [Ulid(0), Ulid(u128::MAX), Ulid(0x0156_3df3_6481_d676_4c61_efb9_9302_bd5b)] {
            assert_eq!(read(write(Some(id)).as_bytes()), CacheSlot::Known(id));
        }
        assert_eq!(read(write(None).as_bytes()), CacheSlot::Absent);
        assert_eq!(write(Some(Ulid(1))), "AAAAAAAAAAAAAAAAAAAAAQ==");
    }

    #[test]
    fn any_other_value_is_damaged() {
        let good = write(Some(Ulid(1)));
        let bits_too_many = good.replace("Q==", "R==");
        let longer = format!("{good}\n");
        let unpadded = &good[..22];
        for value in ["", "null", "NULL ", &bits_too_many, &longer, unpadded, &good[1..]] {
            assert_eq!(read(value.as_bytes()), CacheSlot::Damaged, "{value:?}");
        }
        assert_eq!(read(&[0xff; 24]), CacheSlot::Damaged);
    }
}
