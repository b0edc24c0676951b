//! Computes the checksum of a public id: CRC-8 (polynomial 0x07, start 0) as two characters of
//! Crockford base32.

pub(super) const LEN: usize = 2;

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

const TABLE: [u8; 256] = table();

/// Returns the checksum of `text` as two base32 characters.
pub(super) fn of(text: &[u8]) -> [u8; LEN] {
    let crc = text.iter().fold(0u8, |crc, byte| TABLE[(crc ^ byte) as usize]);
    [ALPHABET[(crc >> 5) as usize], ALPHABET[(crc & 31) as usize]]
}

const fn table() -> [u8; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let mut crc = at as u8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x80 == 0 { crc << 1 } else { crc << 1 ^ 0x07 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_polynomial_is_the_documented_one() {
        let crc = b"123456789".iter().fold(0u8, |crc, byte| super::TABLE[(crc ^ byte) as usize]);
        assert_eq!(crc, 0xF4);
    }
}
