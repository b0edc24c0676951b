//! 128 bits in lower-case Crockford base32: 26 characters, the first at most `7`.

pub(super) const LEN: usize = 26;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// The value of each character; 255 for those that this form does not have.
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

/// Returns `None` for aliases (`i`, `l`, `o`, upper case), for another length, and beyond 128 bits.
pub(super) fn decode(text: &[u8]) -> Option<u128> {
    validate(text).map(value)
}

/// Returns the digits if they can be decoded. A pass of its own: together with [`value`] it runs out of
/// registers.
#[inline(never)]
pub(super) fn validate(text: &[u8]) -> Option<&[u8; LEN]> {
    let text: &[u8; LEN] = text.try_into().ok()?;
    let seen = text.iter().fold(0, |seen, byte| seen | VALUES[*byte as usize]);
    (all_digits(seen) && fits(text)).then_some(text)
}

/// Returns the bits of validated digits. Sixty bits at a time fit a register.
pub(super) fn value(text: &[u8; LEN]) -> u128 {
    let bits = |part: &[u8]| {
        part.iter().fold(0_u64, |bits, byte| bits << 5 | u64::from(VALUES[*byte as usize]))
    };
    let [head, high, low] = [bits(&text[..2]), bits(&text[2..14]), bits(&text[14..])];
    u128::from(head) << 120 | u128::from(high) << 60 | u128::from(low)
}

/// Digits have the top bits clear: one check for all that were seen.
const fn all_digits(seen: u8) -> bool {
    seen < 32
}

/// Twenty-six digits hold two bits more than an id.
const fn fits(text: &[u8; LEN]) -> bool {
    text[0] <= b'7'
}
