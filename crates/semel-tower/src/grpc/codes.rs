//! The choice of responses that are stored, by their gRPC code.

use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, LazyLock};

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use super::frame;
use crate::settle_as::SettleAs;

/// Chooses which responses are stored, by their gRPC code.
///
/// Responses that are not stored are settled by this table, except under `by` and `doubt_errors`:
///
/// | code | settled as |
/// |---|---|
/// | `INVALID_ARGUMENT`, `UNIMPLEMENTED` | [`SettleAs::Release`]: the call was refused before it had an effect |
/// | any other | [`SettleAs::Fail`]: the call may have had an effect |
///
/// `NOT_FOUND`, `PERMISSION_DENIED`, `UNAUTHENTICATED`, `FAILED_PRECONDITION`, `ALREADY_EXISTS`,
/// `OUT_OF_RANGE` and `RESOURCE_EXHAUSTED` are settled as failures because a handler may pass such
/// a code on from a service behind it, after an effect: a repeat must run under the same operation
/// id. It runs at once, unless the failure policy sets a delay. A handler that refused the call
/// before it had an effect returns the status with [`released`].
#[derive(Clone)]
pub struct Codes {
    kind: Kind,
    doubts_errors: bool,
}

#[derive(Clone)]
enum Kind {
    OkOnly,
    Terminal,
    Everything,
    By(Arc<dyn Fn(&HandlerResponse<'_>) -> SettleAs + Send + Sync>),
}

impl Codes {
    const fn of(kind: Kind) -> Self {
        Self { kind, doubts_errors: false }
    }

    /// Stores `OK`. The default.
    pub fn ok_only() -> Self {
        Self::of(Kind::OkOnly)
    }

    /// Stores `OK`, and the refusals that no retry can change: `INVALID_ARGUMENT`,
    /// `ALREADY_EXISTS`, `FAILED_PRECONDITION`, `OUT_OF_RANGE`, `UNIMPLEMENTED`. A repeat of a
    /// refused call needs a new key.
    pub fn terminal() -> Self {
        Self::of(Kind::Terminal)
    }

    /// Stores every code: a failed call stays failed, and its repeat needs a new key.
    pub fn everything() -> Self {
        Self::of(Kind::Everything)
    }

    /// Decides for each response with the function `settle_as`.
    ///
    /// ```
    /// use semel_tower::grpc::{Codes, SettleAs};
    /// use tonic::Code;
    ///
    /// let codes = Codes::by(|answer| match answer.code() {
    ///     Code::Ok | Code::FailedPrecondition => SettleAs::Keep,
    ///     Code::InvalidArgument => SettleAs::Release,
    ///     _ => SettleAs::Fail,
    /// });
    /// ```
    pub fn by(
        settle_as: impl Fn(&HandlerResponse<'_>) -> SettleAs + Send + Sync + 'static,
    ) -> Self {
        Self::of(Kind::By(Arc::new(settle_as)))
    }

    /// Settles codes of a failing server (`CANCELLED`, `UNKNOWN`, `DEADLINE_EXCEEDED`, `INTERNAL`,
    /// `UNAVAILABLE`, `DATA_LOSS`) that are not stored as [`SettleAs::Doubt`]: such a code leaves
    /// it open whether the call had its effect. Under [`OnCrash::Hold`](semel_core::OnCrash::Hold)
    /// the operation is then not run again before an operator has decided. Default: such a code is
    /// a failure. Has no effect on [`by`](Self::by).
    #[must_use]
    pub fn doubt_errors(mut self) -> Self {
        self.doubts_errors = true;
        self
    }

    pub(super) fn settle_as(&self, answer: &HandlerResponse<'_>) -> SettleAs {
        if let Some(mark) = answer.metadata(&RELEASED) {
            // A mark of another process concerns a claim of that process.
            return if mark.as_bytes() == token().as_bytes() {
                SettleAs::Release
            } else {
                SettleAs::Fail
            };
        }
        let kept = match &self.kind {
            Kind::By(settle_as) => return settle_as(answer),
            Kind::Everything => true,
            Kind::OkOnly => answer.code == Code::Ok,
            Kind::Terminal => answer.code == Code::Ok || is_terminal(answer.code),
        };
        match kept {
            true => SettleAs::Keep,
            false if is_refusal(answer.code) => SettleAs::Release,
            false if self.doubts_errors && is_error(answer.code) => SettleAs::Doubt,
            false => SettleAs::Fail,
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

/// Returns whether a code means that the call was refused before it had an effect.
fn is_refusal(code: Code) -> bool {
    matches!(code, Code::InvalidArgument | Code::Unimplemented)
}

/// Returns whether a code means that a server failed, possibly after an effect.
fn is_error(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// The metadata that marks a status whose claim is to be released. The layer removes it from the
/// response.
pub(super) const RELEASED: HeaderName = HeaderName::from_static(NAME);
const NAME: &str = "semel-released";

/// Returns the value of the mark, which is random for each process: a marked status that a handler
/// passes on from another process must not release a claim whose work has had its effect here.
fn token() -> &'static str {
    static TOKEN: LazyLock<String> = LazyLock::new(|| {
        let draw = || RandomState::new().build_hasher().finish();
        format!("{:016x}{:016x}", draw(), draw())
    });
    &TOKEN
}

/// Marks the status of a call that was refused before it had an effect: the layer releases the
/// claim, and the key can be used again, also for a corrected call. Without the mark only
/// `INVALID_ARGUMENT` and `UNIMPLEMENTED` release a claim.
///
/// ```
/// use semel_tower::grpc;
/// use tonic::Status;
///
/// fn find(account: Option<u64>) -> Result<u64, Status> {
///     account.ok_or_else(|| grpc::released(Status::not_found("no such account; nothing was done")))
/// }
/// assert!(find(None).is_err());
/// ```
#[must_use]
pub fn released(mut status: Status) -> Status {
    let value = MetadataValue::try_from(token()).expect("digits are ASCII");
    status.metadata_mut().insert(NAME, value);
    status
}

impl fmt::Debug for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::OkOnly => "ok_only",
            Kind::Terminal => "terminal",
            Kind::Everything => "everything",
            Kind::By(_) => "by",
        })
    }
}

/// The parts of a handler's response that the function given to [`Codes::by`] sees.
#[derive(Clone, Copy, Debug)]
pub struct HandlerResponse<'a> {
    pub(super) code: Code,
    pub(super) headers: &'a HeaderMap,
    pub(super) trailers: &'a HeaderMap,
    pub(super) data: &'a [u8],
}

impl<'a> HandlerResponse<'a> {
    /// Returns the gRPC code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the value of `name` in the trailing metadata or, if it is not there, in the initial
    /// metadata.
    pub fn metadata(&self, name: &HeaderName) -> Option<&'a HeaderValue> {
        self.trailers.get(name).or_else(|| self.headers.get(name))
    }

    /// Returns the encoded message; `None` if there is none, or if it is compressed.
    pub fn message(&self) -> Option<&'a [u8]> {
        frame::message(self.data).ok().filter(|message| !message.compressed).map(|it| it.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settlements(codes: &Codes) -> Vec<(Code, SettleAs)> {
        let none = HeaderMap::new();
        let settlement = |n| {
            let code = Code::from_i32(n);
            let answer = HandlerResponse { code, headers: &none, trailers: &none, data: b"" };
            (code, codes.settle_as(&answer))
        };
        (0..=16).map(settlement).collect()
    }

    fn with(codes: &Codes, settled: SettleAs) -> Vec<i32> {
        let all = settlements(codes).into_iter().filter(|(_, found)| *found == settled);
        all.map(|(code, _)| code as i32).collect()
    }

    #[test]
    fn each_choice_keeps_the_documented_codes() {
        assert_eq!(with(&Codes::ok_only(), SettleAs::Keep), [0]);
        assert_eq!(with(&Codes::terminal(), SettleAs::Keep), [0, 3, 6, 9, 11, 12]);
        assert_eq!(with(&Codes::everything(), SettleAs::Keep), (0..=16).collect::<Vec<_>>());
    }

    #[test]
    fn only_calls_refused_before_an_effect_are_released() {
        assert_eq!(with(&Codes::ok_only(), SettleAs::Release), [3, 12]);
        let failed = [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16];
        assert_eq!(with(&Codes::ok_only(), SettleAs::Fail), failed);
        assert_eq!(with(&Codes::terminal(), SettleAs::Release), [0_i32; 0]);
    }

    #[test]
    fn codes_of_a_failing_server_may_be_settled_as_doubt() {
        let doubting = Codes::ok_only().doubt_errors();
        assert_eq!(with(&doubting, SettleAs::Doubt), [1, 2, 4, 13, 14, 15]);
        assert_eq!(with(&doubting, SettleAs::Release), [3, 12]);
        assert_eq!(with(&Codes::everything().doubt_errors(), SettleAs::Doubt), [0_i32; 0]);
    }

    #[test]
    fn a_marked_status_releases_the_claim() {
        let status = released(Status::not_found("no such account"));
        let headers = status.metadata().clone().into_headers();
        let none = HeaderMap::new();
        let answer =
            HandlerResponse { code: Code::NotFound, headers: &headers, trailers: &none, data: b"" };
        assert_eq!(Codes::ok_only().settle_as(&answer), SettleAs::Release);
    }

    #[test]
    fn a_strategy_sees_code_metadata_and_message() {
        let (mut headers, mut trailers) = (HeaderMap::new(), HeaderMap::new());
        headers.insert("kind", HeaderValue::from_static("initial"));
        trailers.insert("kind", HeaderValue::from_static("trailing"));
        let data = b"\0\0\0\0\x02hi";
        let answer =
            HandlerResponse { code: Code::Ok, headers: &headers, trailers: &trailers, data };
        let name = HeaderName::from_static("kind");
        assert_eq!(answer.metadata(&name), Some(&HeaderValue::from_static("trailing")));
        assert_eq!(answer.message(), Some(&b"hi"[..]));
        let compressed = HandlerResponse { data: b"\x01\0\0\0\x02hi", ..answer };
        assert_eq!(compressed.message(), None);
    }
}
