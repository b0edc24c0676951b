//! Which answers are kept, by their code.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::Code;

use super::frame;
use crate::fate::Fate;

/// Which answers are kept, by their code.
///
/// What becomes of an answer that is not kept does not depend on the choice:
///
/// | code | fate |
/// |---|---|
/// | `INVALID_ARGUMENT`, `NOT_FOUND`, `PERMISSION_DENIED`, `UNAUTHENTICATED`, `UNIMPLEMENTED` | [`Fate::Release`]: the call was refused before it did anything |
/// | every other | [`Fate::Fail`]: it may have done something |
///
/// `FAILED_PRECONDITION`, `ALREADY_EXISTS`, `OUT_OF_RANGE` and `RESOURCE_EXHAUSTED` are among the
/// others because a handler passes on what the services behind it say, and those codes also mean
/// "it happened, and there is no answer": a repeat must come under the same operation id. It runs at
/// once all the same, unless the failure policy says when.
#[derive(Clone)]
pub struct Codes(Kind);

#[derive(Clone)]
enum Kind {
    OkOnly,
    Terminal,
    Everything,
    By(Arc<dyn Fn(&Answered<'_>) -> Fate + Send + Sync>),
}

impl Codes {
    /// `OK`. The default.
    pub fn ok_only() -> Self {
        Self(Kind::OkOnly)
    }

    /// `OK`, and the refusals that a caller is meant to live with: `INVALID_ARGUMENT`,
    /// `ALREADY_EXISTS`, `FAILED_PRECONDITION`, `OUT_OF_RANGE`, `UNIMPLEMENTED`. A repeat of a
    /// refused call needs a new key.
    pub fn terminal() -> Self {
        Self(Kind::Terminal)
    }

    /// Every code: a failed call stays failed, and its repeat needs a new key.
    pub fn everything() -> Self {
        Self(Kind::Everything)
    }

    /// Whatever `fate` says.
    ///
    /// ```
    /// use semel_tower::grpc::{Codes, Fate};
    /// use tonic::Code;
    ///
    /// let codes = Codes::by(|answer| match answer.code() {
    ///     Code::Ok | Code::FailedPrecondition => Fate::Keep,
    ///     Code::InvalidArgument => Fate::Release,
    ///     _ => Fate::Fail,
    /// });
    /// ```
    pub fn by(fate: impl Fn(&Answered<'_>) -> Fate + Send + Sync + 'static) -> Self {
        Self(Kind::By(Arc::new(fate)))
    }

    pub(super) fn fate(&self, answer: &Answered<'_>) -> Fate {
        let kept = match &self.0 {
            Kind::By(fate) => return fate(answer),
            Kind::Everything => true,
            Kind::OkOnly => answer.code == Code::Ok,
            Kind::Terminal => answer.code == Code::Ok || is_terminal(answer.code),
        };
        match kept {
            true => Fate::Keep,
            false if is_refusal(answer.code) => Fate::Release,
            false => Fate::Fail,
        }
    }
}

fn is_terminal(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
    )
}

/// Said before anything was done.
fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::Unimplemented
    )
}

impl fmt::Debug for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::OkOnly => "ok_only",
            Kind::Terminal => "terminal",
            Kind::Everything => "everything",
            Kind::By(_) => "by",
        })
    }
}

/// A handler's answer, as [`Codes::by`] sees it.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    pub(super) code: Code,
    pub(super) headers: &'a HeaderMap,
    pub(super) trailers: &'a HeaderMap,
    pub(super) data: &'a [u8],
}

impl<'a> Answered<'a> {
    /// Its code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// A value of its trailing or, failing that, of its initial metadata.
    pub fn metadata(&self, name: &HeaderName) -> Option<&'a HeaderValue> {
        self.trailers.get(name).or_else(|| self.headers.get(name))
    }

    /// Its message, encoded; `None` if there is none, or if it is compressed.
    pub fn message(&self) -> Option<&'a [u8]> {
        frame::message(self.data).ok().filter(|message| !message.compressed).map(|it| it.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(codes: &Codes) -> Vec<(Code, Fate)> {
        let none = HeaderMap::new();
        let fate = |n| {
            let code = Code::from_i32(n);
            let answer = Answered { code, headers: &none, trailers: &none, data: b"" };
            (code, codes.fate(&answer))
        };
        (0..=16).map(fate).collect()
    }

    fn with(codes: &Codes, fate: Fate) -> Vec<i32> {
        let all = fates(codes).into_iter().filter(|(_, its)| *its == fate);
        all.map(|(code, _)| code as i32).collect()
    }

    #[test]
    fn each_choice_keeps_what_it_says() {
        assert_eq!(with(&Codes::ok_only(), Fate::Keep), [0]);
        assert_eq!(with(&Codes::terminal(), Fate::Keep), [0, 3, 6, 9, 11, 12]);
        assert_eq!(with(&Codes::everything(), Fate::Keep), (0..=16).collect::<Vec<_>>());
    }

    #[test]
    fn only_what_was_refused_before_it_did_anything_is_released() {
        assert_eq!(with(&Codes::ok_only(), Fate::Release), [3, 5, 7, 12, 16]);
        assert_eq!(with(&Codes::ok_only(), Fate::Fail), [1, 2, 4, 6, 8, 9, 10, 11, 13, 14, 15]);
        assert_eq!(with(&Codes::terminal(), Fate::Release), [5, 7, 16]);
    }

    #[test]
    fn a_strategy_sees_code_metadata_and_message() {
        let (mut headers, mut trailers) = (HeaderMap::new(), HeaderMap::new());
        headers.insert("kind", HeaderValue::from_static("initial"));
        trailers.insert("kind", HeaderValue::from_static("trailing"));
        let data = b"\0\0\0\0\x02hi";
        let answer = Answered { code: Code::Ok, headers: &headers, trailers: &trailers, data };
        let name = HeaderName::from_static("kind");
        assert_eq!(answer.metadata(&name), Some(&HeaderValue::from_static("trailing")));
        assert_eq!(answer.message(), Some(&b"hi"[..]));
        let compressed = Answered { data: b"\x01\0\0\0\x02hi", ..answer };
        assert_eq!(compressed.message(), None);
    }
}
