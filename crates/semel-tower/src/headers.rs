//! Headers that every protocol treats alike: the mark of a replay, what is never stored, and what
//! a fingerprint takes of those that rules name.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Marks a response that an earlier request made.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Headers that are never stored: they belong to one caller, connection, moment or trace, and a
/// replay belongs to another.
static NEVER_KEPT: [HeaderName; 17] = [
    header::SET_COOKIE,
    HeaderName::from_static("set-cookie2"),
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::PROXY_AUTHENTICATE,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("proxy-authentication-info"),
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::CONTENT_LENGTH,
    header::DATE,
];

/// Returns whether a header belongs to one caller, connection, moment or trace.
pub(crate) fn never_kept(name: &HeaderName) -> bool {
    let traces = ["traceparent", "tracestate", "b3", "x-b3-", "x-request-id", "x-correlation-id"];
    NEVER_KEPT.contains(name) || traces.iter().any(|trace| name.as_str().starts_with(trace))
}

/// Adds the headers that a rule names to the parts of a fingerprint.
pub(crate) fn append_matched<'p>(
    parts: &mut Vec<&'p [u8]>,
    headers: &'p HeaderMap,
    names: &'p [HeaderName],
) {
    for name in names {
        parts.push(name.as_str().as_bytes());
        parts.extend(headers.get_all(name).iter().map(HeaderValue::as_bytes));
        // No value holds a NUL, so this is where the values of one name end, also if there are none:
        // a value that reads like the next name is still a value.
        parts.push(b"\0");
    }
}
