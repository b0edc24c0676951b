//! The error for a key that does not fit its dialect.

/// The reason why the key of a call was refused. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCallKey {
    /// The key is empty or only white space.
    #[error("the call's key is blank; give it a value that is unique to the call")]
    Blank,
    /// The key is longer than the dialect accepts. Keys are never cut: two keys could become one.
    #[error(
        "the call's key has {len} characters, {dialect} takes at most {max}; use CallKey::fitting"
    )]
    TooLong {
        /// The name of the dialect.
        dialect: &'static str,
        /// The length of the key, in characters.
        len: usize,
        /// The greatest length that the dialect accepts.
        max: usize,
    },
    /// The key is shorter than the dialect accepts.
    #[error(
        "the call's key has {len} characters, {dialect} wants at least {min}; use CallKey::fitting"
    )]
    TooShort {
        /// The name of the dialect.
        dialect: &'static str,
        /// The length of the key, in characters.
        len: usize,
        /// The smallest length that the dialect accepts.
        min: usize,
    },
    /// The key has a character that the dialect does not accept.
    #[error(
        "the call's key has a character at byte {at} that {dialect} does not take; use \
         CallKey::fitting"
    )]
    Character {
        /// The name of the dialect.
        dialect: &'static str,
        /// The position of the character, in bytes from the start.
        at: usize,
    },
    /// The request has the header more than once.
    #[error("the request has the key's header of {dialect} more than once; send one key")]
    Repeated {
        /// The name of the dialect.
        dialect: &'static str,
    },
    /// The request's header and its extensions have different keys.
    #[error(
        "the request has one key in its header of {dialect} and another in its extensions; give \
         one"
    )]
    Ambiguous {
        /// The name of the dialect.
        dialect: &'static str,
    },
    /// The value of the request's header is not a key.
    #[error("the request's header of {dialect} is not one key; send a plain or well-quoted value")]
    Malformed {
        /// The name of the dialect.
        dialect: &'static str,
    },
}
