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

/// `None` for aliases (`i`, `l`, `o`, upper case), for another length, and beyond 128 bits.
pub(super) fn decode(text: &[u8]) -> Option<u128> {
    if !is_valid(text) {
        return None;
    }
    // Sixty bits at a time fit a register.
    let bits = |part: &[u8]| {
        part.iter().fold(0_u64, |bits, byte| bits << 5 | u64::from(VALUES[*byte as usize]))
    };
    let [head, high, low] = [&text[..2], &text[2..14], &text[14..]].map(bits);
    Some(u128::from(head) << 120 | u128::from(high) << 60 | u128::from(low))
}

/// Whether [`decode`] gives something.
pub(super) fn is_valid(text: &[u8]) -> bool {
    let Ok(text) = <&[u8; LEN]>::try_from(text) else { return false };
    // Values have the top bits clear: one check for all of them.
    let all = text.iter().fold(0, |all, byte| all | VALUES[*byte as usize]);
    all < 32 && text[0] <= b'7'
}
