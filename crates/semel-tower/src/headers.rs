//! Headers that every protocol treats alike: the mark of a replay, headers that are never stored,
//! and headers that are part of a fingerprint.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// The header of a replayed response: an earlier request produced it.
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

/// Adds the headers `names`, which a rule lists, to the parts of a fingerprint.
pub(crate) fn append_matched<'p>(
    parts: &mut Vec<&'p [u8]>,
    headers: &'p HeaderMap,
    names: &'p [HeaderName],
) {
    for name in names {
        parts.push(name.as_str().as_bytes());
        parts.extend(headers.get_all(name).iter().map(HeaderValue::as_bytes));
        // A header value cannot contain NUL, so this part ends the values of one name, even if
        // there are none. Otherwise a value could be mistaken for the next name.
        parts.push(b"\0");
    }
}
