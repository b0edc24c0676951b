//! What an entry holds: 16 bytes in standard Base64, or `NULL`.
//!
//! The seeds' cache writes the same, so that the two can share a server while one replaces the
//! other.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use semel_ids::shared::Slot;
use ulid::Ulid;

/// Known not to be there.
const ABSENT: &str = "NULL";
/// Sixteen bytes in Base64, padded.
const LEN: usize = 24;

pub(super) fn write(internal: Option<Ulid>) -> String {
    internal.map_or_else(|| ABSENT.to_owned(), |id| STANDARD.encode(id.to_bytes()))
}

pub(super) fn read(value: &[u8]) -> Slot {
    if value == ABSENT.as_bytes() {
        return Slot::Absent;
    }
    if value.len() != LEN {
        return Slot::Damaged;
    }
    let bytes = STANDARD.decode(value).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(Slot::Damaged, |bytes| Slot::Known(Ulid::from_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for id in [Ulid(0), Ulid(u128::MAX), Ulid(0x0156_3df3_6481_d676_4c61_efb9_9302_bd5b)] {
            assert_eq!(read(write(Some(id)).as_bytes()), Slot::Known(id));
        }
        assert_eq!(read(write(None).as_bytes()), Slot::Absent);
        assert_eq!(write(Some(Ulid(1))), "AAAAAAAAAAAAAAAAAAAAAQ==");
    }

    #[test]
    fn whatever_else_is_there_is_damaged() {
        let good = write(Some(Ulid(1)));
        let bits_too_many = good.replace("Q==", "R==");
        let longer = format!("{good}\n");
        let unpadded = &good[..22];
        for value in ["", "null", "NULL ", &bits_too_many, &longer, unpadded, &good[1..]] {
            assert_eq!(read(value.as_bytes()), Slot::Damaged, "{value:?}");
        }
        assert_eq!(read(&[0xff; 24]), Slot::Damaged);
    }
}
