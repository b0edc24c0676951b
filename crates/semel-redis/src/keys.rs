//! The names of records in Redis, and the channel on which settlements are announced.
//!
//! A record's name is the prefix and its key's digest in hex. It contains no byte that a caller
//! chose, so no `{…}` of a caller determines the slot, and the eight digits in the logs find the
//! record.

use semel_core::Digest;

const HEX: &[u8; 16] = b"0123456789abcdef";
/// The number of hex digits of a digest.
const DIGITS: usize = 64;

/// The names under one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: Box<str>,
    channel: Box<str>,
}

impl Keys {
    pub(crate) fn new(prefix: &str, group: &str) -> Self {
        Self { prefix: prefix.into(), channel: format!("{prefix}wake:{group}").into() }
    }

    /// Returns the name of the record with this digest.
    pub(crate) fn name(&self, digest: &Digest) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + DIGITS);
        name.extend(self.prefix.as_bytes());
        for byte in digest.as_bytes() {
            name.push(HEX[usize::from(byte >> 4)]);
            name.push(HEX[usize::from(byte & 15)]);
        }
        name
    }

    /// Returns the digest of the record with this name; `None` if it is not the name of a record.
    pub(crate) fn digest(&self, name: &[u8]) -> Option<Digest> {
        let digits = name.strip_prefix(self.prefix.as_bytes())?;
        if digits.len() != DIGITS {
            return None;
        }
        let mut bytes = [0; DIGITS / 2];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Digest::from_bytes(&bytes)
    }

    /// Returns the pattern that matches the name of every record.
    pub(crate) fn pattern(&self) -> String {
        let mut pattern = String::with_capacity(self.prefix.len() + 1);
        for char in self.prefix.chars() {
            if matches!(char, '*' | '?' | '[' | ']' | '\\' | '^') {
                pattern.push('\\');
            }
            pattern.push(char);
        }
        pattern.push('*');
        pattern
    }

    /// Returns the channel on which settlements are announced.
    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }
}

fn digit(hex: u8) -> Option<u8> {
    match hex {
        b'0'..=b'9' => Some(hex - b'0'),
        b'a'..=b'f' => Some(hex - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Key;

    use super::*;

    #[test]
    fn a_name_leads_back_to_its_digest_and_shows_nothing_of_the_key() {
        let keys = Keys::new("idem:", "g");
        let key = Key::command("acme", "PAY", "{}{user}*").unwrap();
        let name = keys.name(&key.digest());
        assert_eq!(keys.digest(&name), Some(key.digest()));
        assert!(name[5..].iter().all(u8::is_ascii_hexdigit));
        assert!(name.starts_with(format!("idem:{}", key.digest()).as_bytes()));
    }

    #[test]
    fn other_names_are_not_names_of_records() {
        let keys = Keys::new("idem:", "g");
        let own = keys.name(&Key::command("t", "s", "i").unwrap().digest());
        let upper = own.to_ascii_uppercase();
        let longer = [&own[..], b"0"].concat();
        for name in [&b"idem:wake"[..], b"", b"other", &own[1..], &upper, &longer] {
            assert_eq!(keys.digest(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_prefix_with_glob_characters_matches_only_itself() {
        assert_eq!(Keys::new("a*[x]?:", "g").pattern(), "a\\*\\[x\\]\\?:*");
    }
}
