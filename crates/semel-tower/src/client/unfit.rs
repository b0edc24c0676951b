//! Why a key is refused before anything is sent.

/// Why a call has no key that its dialect accepts. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnfitKey {
    /// Empty or white space only.
    #[error("the call's key is blank; give it a value that is unique to the call")]
    Blank,
    /// Longer than the dialect accepts. Keys are never cut: two could become one.
    #[error(
        "the call's key has {len} characters, {dialect} takes at most {max}; use CallKey::fitting"
    )]
    TooLong {
        /// The dialect whose rule it is.
        dialect: &'static str,
        /// Length of the key.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Shorter than the dialect accepts.
    #[error(
        "the call's key has {len} characters, {dialect} wants at least {min}; use CallKey::fitting"
    )]
    TooShort {
        /// The dialect whose rule it is.
        dialect: &'static str,
        /// Length of the key.
        len: usize,
        /// The limit.
        min: usize,
    },
    /// A character that the dialect does not accept.
    #[error(
        "the call's key has a character at byte {at} that {dialect} does not take; use \
         CallKey::fitting"
    )]
    Character {
        /// The dialect whose rule it is.
        dialect: &'static str,
        /// The position of the byte.
        at: usize,
    },
    /// The request has the header more than once.
    #[error("the request has the key's header of {dialect} more than once; send one key")]
    Repeated {
        /// The dialect whose header it is.
        dialect: &'static str,
    },
    /// The request's header and its extensions have different keys.
    #[error(
        "the request has one key in its header of {dialect} and another in its extensions; give \
         one"
    )]
    Ambiguous {
        /// The dialect whose header it is.
        dialect: &'static str,
    },
    /// The request's header cannot be read.
    #[error("the request's header of {dialect} is not one key; send a plain or well-quoted value")]
    Malformed {
        /// The dialect whose header it is.
        dialect: &'static str,
    },
}
