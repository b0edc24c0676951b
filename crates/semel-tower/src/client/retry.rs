//! Decides whether a response asks for another try, and when.
//!
//! Whether another try is *safe* depends on the method and the key, and is decided in `service`.

use std::time::Duration;

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use semel_core::Clock;

use super::dialect::{Advice, Dialect};

/// Whether the result of a try asks for another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The response is final.
    Final,
    /// Another try may succeed, after at least the time `after`.
    Again { after: Option<Duration> },
}

impl Verdict {
    /// Returns the verdict on a response. Any status that is not listed here is final: the request
    /// stays the same, so that a 400 or a 422 (another request under this key) would only be
    /// repeated.
    pub(super) fn of(dialect: &Dialect, status: StatusCode, headers: &HeaderMap) -> Self {
        let after = retry_after(headers);
        let by_status = |conflict: bool| match status {
            StatusCode::CONFLICT => conflict || after.is_some(),
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_EARLY
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => true,
            _ => false,
        };
        let value_of = |header| headers.get(header).map(|value| value.as_bytes());
        let again = match dialect.advice() {
            // No header turns a success into a failure.
            _ if !status.is_client_error() && !status.is_server_error() => false,
            Advice::Status => by_status(false),
            Advice::Running => by_status(true),
            Advice::Overruled(header) => match value_of(header) {
                Some(b"true") => true,
                Some(b"false") => false,
                _ => by_status(true),
            },
            Advice::Only(header) => value_of(header) == Some(b"true"),
        };
        if again { Self::Again { after } } else { Self::Final }
    }
}

/// Returns the wait that `Retry-After` asks for, as seconds or as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(text.parse().map_or(Duration::MAX, Duration::from_secs));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    // The date is by the provider's clock, and so is the header `Date`: with both, the clock of
    // this machine does not matter.
    let now =
        headers.get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
    let now = now.unwrap_or_else(|| {
        let micros = Clock::system().now().as_micros();
        std::time::UNIX_EPOCH + Duration::from_micros(micros.unsigned_abs())
    });
    Some(until.duration_since(now).unwrap_or_default())
}

/// Exponential backoff with full jitter: callers that failed together do not retry together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) most: Duration,
}

impl Backoff {
    /// Returns the wait after the `attempt`th try: never less than `after`, if that is given.
    pub(crate) fn wait(&self, attempt: u32, after: Option<Duration>) -> Duration {
        match after {
            Some(after) => after.saturating_add(jitter(self.first)),
            None => {
                let doubled = 1_u32.checked_shl(attempt - 1).unwrap_or(u32::MAX);
                jitter(self.first.saturating_mul(doubled).min(self.most))
            }
        }
    }
}

fn jitter(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (http::HeaderName::from_static(name), value.parse().expect("a header value"))
        };
        pairs.iter().map(pair).collect()
    }

    fn again(dialect: &Dialect, status: u16, pairs: &[(&'static str, &'static str)]) -> bool {
        let status = StatusCode::from_u16(status).expect("a status");
        Verdict::of(dialect, status, &headers(pairs)) != Verdict::Final
    }

    #[test]
    fn only_responses_that_a_repeat_can_change_are_tried_again() {
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert!(again(&Dialect::standard(), status, &[]), "{status}");
        }
        for status in [200, 201, 204, 304, 400, 401, 402, 404, 409, 413, 422, 501, 505] {
            assert!(!again(&Dialect::standard(), status, &[]), "{status}");
        }
        assert!(!again(&Dialect::standard(), 422, &[("retry-after", "1")]));
    }

    #[test]
    fn a_conflict_is_tried_again_with_retry_after_or_where_it_means_running() {
        assert!(again(&Dialect::standard(), 409, &[("retry-after", "1")]));
        assert!(!again(&Dialect::mangopay(), 409, &[]));
        assert!(again(&Dialect::worldline(), 409, &[]));
        assert!(again(&Dialect::bare().conflict_means_running(), 409, &[]));
    }

    #[test]
    fn a_response_header_may_decide_whether_to_try_again() {
        let stripe = Dialect::stripe();
        assert!(again(&stripe, 409, &[]));
        assert!(!again(&stripe, 500, &[("stripe-should-retry", "false")]));
        assert!(again(&stripe, 400, &[("stripe-should-retry", "true")]));
        assert!(!again(&stripe, 200, &[("stripe-should-retry", "true")]));
        let adyen = Dialect::adyen();
        assert!(again(&adyen, 422, &[("transient-error", "true")]));
        assert!(!again(&adyen, 500, &[("transient-error", "false")]));
        assert!(!again(&adyen, 503, &[]));
    }

    #[test]
    fn retry_after_is_read_in_seconds_and_as_a_date_by_the_providers_own_clock() {
        let read = |pairs: &[_]| retry_after(&headers(pairs));
        assert_eq!(read(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(read(&[("retry-after", "99999999999999999999")]), Some(Duration::MAX));
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        let later = ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT");
        assert_eq!(read(&[date, later]), Some(Duration::from_secs(30)));
        let past = ("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT");
        assert_eq!(read(&[date, past]), Some(Duration::ZERO));
        // Without a `Date` the clock of this machine decides: 1994 is in the past.
        assert_eq!(read(&[later]), Some(Duration::ZERO));
        for nonsense in ["", "soon", "-1", "+1", "1.5", "1 2"] {
            assert_eq!(read(&[("retry-after", nonsense)]), None, "{nonsense:?}");
        }
    }

    #[test]
    fn waits_double_up_to_the_most_and_are_never_shorter_than_asked() {
        let backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(5) };
        for (attempt, most) in [(1, 1), (2, 2), (3, 4), (4, 5), (40, 5), (u32::MAX, 5)] {
            let most = Duration::from_secs(most);
            let waits: Vec<_> = (0..200).map(|_| backoff.wait(attempt, None)).collect();
            assert!(waits.iter().all(|wait| *wait <= most), "{attempt}: {waits:?}");
            assert!(waits.iter().any(|wait| *wait > most / 2), "{attempt}: {waits:?}");
            let asked = Duration::from_secs(9);
            let wait = backoff.wait(attempt, Some(asked));
            assert!(wait >= asked && wait <= asked + backoff.first, "{wait:?}");
        }
        assert_eq!(backoff.wait(1, Some(Duration::MAX)), Duration::MAX);
    }
}
