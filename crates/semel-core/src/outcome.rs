//! What a settled claim leaves behind: bytes with a content type, an optional short reference, or
//! the words of a failure.
//!
//! Outcomes are kept whole or said to be omitted, never cut: a cut answer cannot be replayed.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Serialize;

/// Longest reference, in bytes: the seeds' `result_ref` column.
pub const MAX_REFERENCE: usize = 128;
/// Longest stored failure text, in characters.
pub const MAX_ERROR: usize = 256;

/// The answer of a finished operation, as it is replayed.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    body: Bytes,
    content_type: Cow<'static, str>,
    reference: Option<Reference>,
}

impl Outcome {
    /// The content type of results that `serde` wrote.
    pub const JSON: &'static str = "application/json";
    /// The content type of an empty outcome.
    pub const EMPTY: &'static str = "application/octet-stream";

    /// An outcome of these bytes.
    pub fn new(content_type: impl Into<Cow<'static, str>>, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), content_type: content_type.into(), reference: None }
    }

    /// Returns an outcome that is `value` as JSON.
    ///
    /// ```
    /// use semel_core::Outcome;
    ///
    /// let outcome = Outcome::json(&serde_json::json!({ "id": "ord_1" }))?;
    /// assert_eq!(outcome.content_type(), Outcome::JSON);
    /// assert_eq!(&outcome.body()[..], br#"{"id":"ord_1"}"#);
    /// # Ok::<(), semel_core::InvalidOutcome>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidOutcome`] if `value` cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, InvalidOutcome> {
        let body = serde_json::to_vec(value);
        let body = body.map_err(|error| InvalidOutcome { reason: error.to_string() })?;
        Ok(Self::new(Self::JSON, body))
    }

    /// The same in memory of its own.
    pub(crate) fn copied(&self) -> Self {
        let (content_type, reference) = (self.content_type.clone(), self.reference.clone());
        Self { body: Bytes::copy_from_slice(&self.body), content_type, reference }
    }

    /// Nothing but the fact that it happened.
    pub fn empty() -> Self {
        Self::new(Self::EMPTY, Bytes::new())
    }

    /// The same outcome with a short, searchable name of what it made.
    #[must_use]
    pub fn with_reference(mut self, reference: Reference) -> Self {
        self.reference = Some(reference);
        self
    }

    /// The bytes.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// What the bytes are.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The short name of what was made, if it has one.
    pub fn reference(&self) -> Option<&Reference> {
        self.reference.as_ref()
    }

    /// Bytes this outcome occupies, for limits.
    pub fn size(&self) -> usize {
        self.body.len() + self.content_type.len()
    }
}

/// A value that cannot be written as JSON, such as a map whose keys are not texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value cannot be written as JSON: {reason}")]
pub struct InvalidOutcome {
    /// The message of the serializer.
    pub reason: String,
}

/// Shows how large it is, never what it says: results end up in logs this way.
impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { body, content_type, reference } = self;
        f.debug_struct("Outcome")
            .field("bytes", &body.len())
            .field("content_type", content_type)
            .field("reference", reference)
            .finish()
    }
}

/// A short name of what an operation made, normally a public id: indexed, searchable, in logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference(Box<str>);

impl Reference {
    /// A reference of at most [`MAX_REFERENCE`] bytes, not blank, without control characters.
    ///
    /// # Errors
    /// [`InvalidReference`] says what is wrong.
    pub fn new(text: &str) -> Result<Self, InvalidReference> {
        if text.trim().is_empty() || text.len() > MAX_REFERENCE || text.contains(char::is_control) {
            return Err(InvalidReference { len: text.len() });
        }
        Ok(Self(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A reference that is blank, too long or holds a control character.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a reference must be 1 to {MAX_REFERENCE} bytes of visible text, got {len} bytes; put longer \
     results into the outcome's body"
)]
pub struct InvalidReference {
    /// Length of what was given, in bytes.
    pub len: usize,
}

/// What the ledger holds of an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// All of it.
    Whole(Outcome),
    /// It was larger than the limit: it was delivered once and cannot be replayed.
    Omitted {
        /// How large it was.
        bytes: u64,
    },
}

impl Recorded {
    /// The same, or only its size where that is above `max`.
    #[must_use]
    pub fn within(self, max: usize) -> Self {
        match self {
            Recorded::Whole(outcome) if outcome.size() > max => {
                Recorded::Omitted { bytes: outcome.size() as u64 }
            }
            kept @ (Recorded::Whole(_) | Recorded::Omitted { .. }) => kept,
        }
    }
}

/// The words of a failure, cut to [`MAX_ERROR`] characters on a character boundary.
#[derive(Clone, PartialEq, Eq)]
pub struct ErrorText(Box<str>);

impl ErrorText {
    /// Cuts and cleans `text`; never fails, so that recording a failure cannot itself fail.
    pub fn new(text: &str) -> Self {
        // NUL is legal UTF-8 that PostgreSQL's text refuses; a failure text must always be storable.
        Self(text.chars().filter(|c| *c != '\0').take(MAX_ERROR).collect::<String>().into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ErrorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ErrorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_text_is_cut_between_characters_and_never_fails() {
        let cut = ErrorText::new(&"é".repeat(400));
        assert_eq!(cut.as_str().chars().count(), MAX_ERROR);
        assert_eq!(ErrorText::new("a\0b").as_str(), "ab");
        assert_eq!(ErrorText::new("").as_str(), "");
    }

    #[test]
    fn a_value_becomes_json_or_an_error_that_says_why_not() {
        let outcome = Outcome::json(&[1, 2]).expect("numbers are JSON");
        assert_eq!((outcome.content_type(), &outcome.body()[..]), (Outcome::JSON, &b"[1,2]"[..]));
        let odd = std::collections::BTreeMap::from([([1, 2], 3)]);
        let refused = Outcome::json(&odd).expect_err("a key is a text");
        assert!(refused.reason.contains("string"), "{refused}");
    }

    #[test]
    fn a_reference_has_a_limit() {
        assert!(Reference::new(&"x".repeat(128)).is_ok());
        assert_eq!(Reference::new(&"x".repeat(129)), Err(InvalidReference { len: 129 }));
        assert!(Reference::new(" ").is_err());
        assert!(Reference::new("a\nb").is_err());
    }
}
