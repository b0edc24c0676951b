//! 128 bits in base 62, `0-9A-Za-z`: 22 characters, padded with `0`.

pub(super) const LEN: usize = 22;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

const VALUES: [u8; 256] = values(ALPHABET);

/// 62^10: the most characters that a `u64` holds at once.
const CHUNK: u128 = 839_299_365_868_340_224;

pub(super) fn encode(id: u128) -> [u8; LEN] {
    let mut text = [0; LEN];
    let mut rest = id;
    let mut end = LEN;
    // By tens: dividing 128 bits is slow, dividing 64 is not.
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

/// Returns `None` for another alphabet or length, and beyond 128 bits.
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

/// Returns the value of each byte in an alphabet, or 255.
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
