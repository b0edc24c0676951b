//! The header `Prefer: respond-async` (RFC 7240): the caller gets a 202 with the URL of the
//! outcome.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::operations::accepted;
use crate::protocol::RespondAsync;

/// The longest `wait` that a caller can request.
const MAX_WAIT: Duration = Duration::from_secs(60);

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// Returns the preference `respond-async`, if the headers have it.
pub(super) fn respond_async(headers: &HeaderMap) -> Option<RespondAsync> {
    let mut found = None;
    let mut wait = None;
    for line in headers.get_all(PREFER) {
        for preference in line.to_str().unwrap_or_default().split(',') {
            let (name, value) = match preference.split(';').next()?.split_once('=') {
                Some((name, value)) => (name.trim(), value.trim().trim_matches('"')),
                None => (preference.split(';').next()?.trim(), ""),
            };
            if name.eq_ignore_ascii_case("respond-async") {
                found = Some(());
            } else if name.eq_ignore_ascii_case("wait") && wait.is_none() {
                wait = value.parse().ok().map(Duration::from_secs);
            }
        }
    }
    let wait = wait.unwrap_or_default().min(MAX_WAIT);
    found.map(|()| RespondAsync { wait, accepted })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefers(lines: &[&str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(PREFER, line.parse().expect("a value"));
        }
        respond_async(&headers).map(|preference| preference.wait.as_secs())
    }

    #[test]
    fn a_preference_is_found_anywhere_in_the_headers() {
        assert_eq!(prefers(&[]), None);
        assert_eq!(prefers(&["return=minimal, wait=5"]), None);
        assert_eq!(prefers(&["respond-async"]), Some(0));
        assert_eq!(prefers(&["return=minimal", "Respond-Async; x=1, wait=5"]), Some(5));
        assert_eq!(prefers(&["respond-async, wait=\"7\""]), Some(7));
        assert_eq!(prefers(&["respond-async, wait=abc"]), Some(0));
        assert_eq!(prefers(&["respond-async, wait=99999999"]), Some(60));
    }
}
