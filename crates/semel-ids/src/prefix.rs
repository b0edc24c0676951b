//! The prefix of a public id: the short name of its resource type.

use std::fmt;

/// The longest prefix, in bytes.
pub(crate) const MAX_PREFIX: usize = 10;

/// The prefix of public ids: a lower-case letter, then 1 to 9 lower-case letters or digits, such as
/// `ord` or `usr`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    text: [u8; MAX_PREFIX],
    len: u8,
}

impl Prefix {
    /// Creates a prefix. In a constant, the result can be checked at compile time.
    ///
    /// # Errors
    /// [`InvalidPrefix`] if `text` is not a prefix.
    pub const fn new(text: &str) -> Result<Self, InvalidPrefix> {
        Self::from_bytes(text.as_bytes())
    }

    pub(crate) const fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidPrefix> {
        if bytes.len() < 2 || bytes.len() > MAX_PREFIX || !bytes[0].is_ascii_lowercase() {
            return Err(InvalidPrefix);
        }
        let mut stored = [0; MAX_PREFIX];
        let mut at = 0;
        while at < bytes.len() {
            if !bytes[at].is_ascii_lowercase() && !bytes[at].is_ascii_digit() {
                return Err(InvalidPrefix);
            }
            stored[at] = bytes[at];
            at += 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_PREFIX")]
        let len = bytes.len() as u8;
        Ok(Self { text: stored, len })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text[..self.len as usize]
    }

    /// Returns the text of the prefix.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("a prefix is ASCII")
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prefix({self})")
    }
}

/// The error of a text that is not a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a prefix is a lower-case letter and 1 to {} more lower-case letters or digits", MAX_PREFIX - 1)]
pub struct InvalidPrefix;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_short_lower_case_and_begins_with_a_letter() {
        for good in ["or", "ord", "a1", "abcdefghij"] {
            assert_eq!(Prefix::new(good).map(|prefix| prefix.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "a", "1a", "Ord", "o_d", "ord ", "abcdefghijk", "örd"] {
            assert_eq!(Prefix::new(bad), Err(InvalidPrefix), "{bad:?}");
        }
    }
}
