//! The stored results of operations: bytes with a content type and an optional reference, or the
//! text of a failure.
//!
//! Outcomes are stored whole or not at all, since a truncated outcome cannot be replayed.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Serialize;

/// The longest reference, in bytes.
pub const MAX_REFERENCE: usize = 128;
/// The longest stored text of a failure, in characters.
pub const MAX_ERROR: usize = 256;

/// The stored result of an operation, which repeats get.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    body: Bytes,
    content_type: Cow<'static, str>,
    reference: Option<Reference>,
}

impl Outcome {
    /// The content type of JSON outcomes.
    pub const JSON: &'static str = "application/json";
    /// The content type of an empty outcome.
    pub const EMPTY: &'static str = "application/octet-stream";

    /// Creates an outcome from a content type and bytes.
    pub fn new(content_type: impl Into<Cow<'static, str>>, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), content_type: content_type.into(), reference: None }
    }

    /// Creates an outcome from `value`, encoded as JSON.
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
    /// [`InvalidOutcome`] if `value` cannot be encoded as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, InvalidOutcome> {
        let body = serde_json::to_vec(value);
        let body = body.map_err(|error| InvalidOutcome { reason: error.to_string() })?;
        Ok(Self::new(Self::JSON, body))
    }

    /// Returns a copy of the outcome that does not share its buffer.
    pub(crate) fn copied(&self) -> Self {
        let (content_type, reference) = (self.content_type.clone(), self.reference.clone());
        Self { body: Bytes::copy_from_slice(&self.body), content_type, reference }
    }

    /// Creates an outcome with an empty body, for operations that return nothing.
    pub fn empty() -> Self {
        Self::new(Self::EMPTY, Bytes::new())
    }

    /// Returns the outcome with a reference to what the operation created.
    #[must_use]
    pub fn with_reference(mut self, reference: Reference) -> Self {
        self.reference = Some(reference);
        self
    }

    /// Returns the bytes of the outcome.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the content type of the bytes.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// Returns the reference to what the operation created, if the outcome has one.
    pub fn reference(&self) -> Option<&Reference> {
        self.reference.as_ref()
    }

    /// Returns the size in bytes that is compared with limits: of the body and the content type.
    pub fn size(&self) -> usize {
        self.body.len() + self.content_type.len()
    }
}

/// The error of a value that cannot be encoded as JSON, such as a map whose keys are not texts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value cannot be written as JSON: {reason}")]
pub struct InvalidOutcome {
    /// The message of the serializer.
    pub reason: String,
}

/// Writes the size, never the content, because debug output ends up in logs.
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

/// A short name of what an operation created, normally a public id. Stores index it for operators
/// to search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference(Box<str>);

impl Reference {
    /// Creates a reference of at most [`MAX_REFERENCE`] bytes, not blank, without control characters.
    ///
    /// # Errors
    /// [`InvalidReference`] if the text is not valid.
    pub fn new(text: &str) -> Result<Self, InvalidReference> {
        if text.trim().is_empty() || text.len() > MAX_REFERENCE || text.contains(char::is_control) {
            return Err(InvalidReference { len: text.len() });
        }
        Ok(Self(text.into()))
    }

    /// Returns the text of the reference.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The error of a reference that is blank, too long or contains a control character.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a reference must be 1 to {MAX_REFERENCE} bytes of visible text, got {len} bytes; put longer \
     results into the outcome's body"
)]
pub struct InvalidReference {
    /// The length of the given text, in bytes.
    pub len: usize,
}

/// An outcome as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The store has the whole outcome.
    Whole(Outcome),
    /// The store has only the size: the outcome was larger than the limit, and cannot be replayed.
    Omitted {
        /// The size of the outcome, in bytes.
        bytes: u64,
    },
}

impl Recorded {
    /// Drops the bytes and keeps the size if the outcome is larger than `max` bytes.
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

/// The text of a failure, truncated to [`MAX_ERROR`] characters.
#[derive(Clone, PartialEq, Eq)]
pub struct ErrorText(Box<str>);

impl ErrorText {
    /// Creates an error text from `text`, truncated and without NUL. It never fails, so that a
    /// failure can always be recorded.
    pub fn new(text: &str) -> Self {
        // PostgreSQL's text type refuses NUL, which is valid UTF-8. A failure text must always be
        // storable.
        Self(text.chars().filter(|c| *c != '\0').take(MAX_ERROR).collect::<String>().into())
    }

    /// Returns the text of the failure.
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
    fn a_value_is_encoded_as_json_or_refused_with_the_reason() {
        let outcome = Outcome::json(&[1, 2]).expect("numbers are JSON");
        assert_eq!((outcome.content_type(), &outcome.body()[..]), (Outcome::JSON, &b"[1,2]"[..]));
        let odd = std::collections::BTreeMap::from([([1, 2], 3)]);
        let refused = Outcome::json(&odd).expect_err("the keys of a JSON object are texts");
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
