//! Encodes 128 bits in lower-case Crockford base32: 26 characters, of which the first is at most
//! `7`.

pub(super) const LEN: usize = 26;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The value of each character; 255 for characters that are not in the alphabet.
const VALUES: [u8; 256] = super::base62::values(ALPHABET);

pub(super) fn encode(id: u128) -> [u8; LEN] {
    let mut text = [0; LEN];
    let mut rest = id;
    for place in text.iter_mut().rev() {
        *place = ALPHABET[(rest & 31) as usize];
        rest >>= 5;
    }
    text
}

/// Decodes 26 digits. Returns `None` for aliases (`i`, `l`, `o`, upper case), for another length,
/// and for more than 128 bits.
pub(super) fn decode(text: &[u8]) -> Option<u128> {
    validate(text).map(value)
}

/// Returns the digits if they can be decoded. Validation is a separate pass, because one loop that
/// also computes [`value`] would run out of registers.
#[inline(never)]
pub(super) fn validate(text: &[u8]) -> Option<&[u8; LEN]> {
    let text: &[u8; LEN] = text.try_into().ok()?;
    let seen = text.iter().fold(0, |seen, byte| seen | VALUES[*byte as usize]);
    (all_digits(seen) && fits(text)).then_some(text)
}

/// Returns the bits of validated digits, computed in parts of at most 60 bits, which fit into a
/// register.
pub(super) fn value(text: &[u8; LEN]) -> u128 {
    let bits = |part: &[u8]| {
        part.iter().fold(0_u64, |bits, byte| bits << 5 | u64::from(VALUES[*byte as usize]))
    };
    let [head, high, low] = [bits(&text[..2]), bits(&text[2..14]), bits(&text[14..])];
    u128::from(head) << 120 | u128::from(high) << 60 | u128::from(low)
}

/// Returns whether all characters are digits, from the bitwise OR of their values: values of digits
/// are below 32.
const fn all_digits(seen: u8) -> bool {
    seen < 32
}

/// Returns whether the digits fit into 128 bits: 26 digits have two bits more.
const fn fits(text: &[u8; LEN]) -> bool {
    text[0] <= b'7'
}
