//! Cross-origin headers of a stored response (the CORS protocol of the Fetch standard).
//!
//! The handler sets these headers. The layer never allows an origin that the handler did not allow.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::headers::REPLAYED;

/// The headers with which a handler allows pages of other origins to read its response.
pub(super) static CORS: [HeaderName; 3] =
    [ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_EXPOSE_HEADERS];

/// Adapts the cross-origin headers of a replay to the origin of the request.
///
/// A response that was stored for another origin loses them. Otherwise the page may also read the
/// header that marks a replay.
pub(super) fn fit(headers: &mut HeaderMap, origin: Option<&HeaderValue>) {
    let Some(allowed) = headers.get(ACCESS_CONTROL_ALLOW_ORIGIN) else { return };
    if allowed == "*" {
        return expose(headers);
    }
    if origin.is_some_and(|origin| allowed != origin) {
        for name in &CORS {
            headers.remove(name);
        }
    } else {
        expose(headers);
    }
    // Either way the response depends on the origin, even if the handler did not set `Vary`.
    if !lists(headers, &VARY, "origin") {
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
}

fn expose(headers: &mut HeaderMap) {
    if !lists(headers, &ACCESS_CONTROL_EXPOSE_HEADERS, REPLAYED.as_str()) {
        let name = HeaderValue::from_name(REPLAYED);
        headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, name);
    }
}

/// Returns whether the comma-separated list in the header `name` contains `word`.
fn lists(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|item| item.trim().eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(lines: &[(&'static str, &'static str)], origin: Option<&'static str>) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        fit(&mut headers, origin.map(HeaderValue::from_static).as_ref());
        let shown = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}", value.to_str().expect("text"))
        };
        headers.iter().map(shown).collect()
    }

    #[test]
    fn a_replay_is_readable_for_the_origin_that_the_handler_allowed() {
        let lines = [
            ("access-control-allow-origin", "https://a"),
            ("access-control-allow-credentials", "true"),
            ("access-control-expose-headers", "etag"),
        ];
        let kept = fitted(&lines, Some("https://a"));
        assert_eq!(kept.len(), 5, "{kept:?}");
        assert_eq!(kept[3], "access-control-expose-headers: idempotent-replayed");
        assert_eq!(kept[4], "vary: origin");
        assert_eq!(fitted(&lines, Some("https://b")), ["vary: origin"]);
        assert_eq!(fitted(&lines, None).len(), 5);
        let varied = [lines[0], ("vary", "Accept, Origin")];
        assert_eq!(fitted(&varied, Some("https://b")), ["vary: Accept, Origin"], "listed once");
    }

    #[test]
    fn replays_keep_a_wildcard_origin_and_add_none() {
        let any = [("access-control-allow-origin", "*")];
        assert_eq!(fitted(&any, Some("https://b")).len(), 2);
        assert!(fitted(&[], Some("https://b")).is_empty());
        let named = [any[0], ("access-control-expose-headers", "ETag, Idempotent-Replayed")];
        assert_eq!(fitted(&named, Some("https://b")).len(), 2, "listed once");
    }
}
