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
pub(super) fn decode(text: &str) -> Option<u128> {
    let text: &[u8; LEN] = text.as_bytes().try_into().ok()?;
    if VALUES[text[0] as usize] > 7 {
        return None;
    }
    let mut id = 0;
    let mut all = 0;
    for byte in text {
        let value = VALUES[*byte as usize];
        // Valid values have the top bits clear: one check after the loop.
        all |= value;
        id = id << 5 | u128::from(value & 31);
    }
    (all < 32).then_some(id)
}
