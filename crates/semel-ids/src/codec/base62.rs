//! Encodes 128 bits in base 62, `0-9A-Za-z`: 22 characters, padded with `0`.

pub(super) const LEN: usize = 22;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

const VALUES: [u8; 256] = values(ALPHABET);

/// 62^10: ten characters are the most that a `u64` can represent.
const CHUNK: u128 = 839_299_365_868_340_224;

pub(super) fn encode(id: u128) -> [u8; LEN] {
    let mut text = [0; LEN];
    let mut rest = id;
    let mut end = LEN;
    // Ten characters at a time, because dividing 128 bits is slow and dividing 64 bits is not.
    while end > 0 {
        let start = end.saturating_sub(10);
        let mut chunk = u64::try_from(rest % CHUNK).expect("below 62^10");
        rest /= CHUNK;
        for place in text[start..end].iter_mut().rev() {
            *place = ALPHABET[(chunk % 62) as usize];
            chunk /= 62;
        }
        end = start;
    }
    text
}

/// Decodes 22 characters. Returns `None` for another alphabet or length, and for more than 128
/// bits.
pub(super) fn decode(text: &[u8]) -> Option<u128> {
    let text: &[u8; LEN] = text.try_into().ok()?;
    let (first, rest) = text.split_at(2);
    let mut id = u128::from(digits(first)?);
    for chunk in rest.chunks(10) {
        id = id.checked_mul(CHUNK)?.checked_add(u128::from(digits(chunk)?))?;
    }
    Some(id)
}

/// Decodes at most ten characters.
fn digits(text: &[u8]) -> Option<u64> {
    text.iter().try_fold(0u64, |sum, byte| match VALUES[*byte as usize] {
        255 => None,
        value => Some(sum * 62 + u64::from(value)),
    })
}

/// Returns a table with the value of each byte in the alphabet, and 255 for all other bytes.
pub(super) const fn values(alphabet: &[u8]) -> [u8; 256] {
    let mut values = [255; 256];
    let mut at = 0;
    while at < alphabet.len() {
        #[expect(clippy::cast_possible_truncation, reason = "alphabets are short")]
        let value = at as u8;
        values[alphabet[at] as usize] = value;
        at += 1;
    }
    values
}
