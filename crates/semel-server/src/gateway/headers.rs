//! Headers of forwarded requests and responses (RFC 9110, 7.6): hop-by-hop headers are removed, forwarding
//! headers are added.

use std::net::IpAddr;

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, Entry, HOST, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};
use http_body::Body;
use semel_core::Context;

/// Headers that are always hop-by-hop, even if `Connection` does not list them.
static HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("http2-settings"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
];

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Headers about the origin of a request, which callers can forge.
static FROM: [HeaderName; 6] = [
    FORWARDED_FOR,
    HeaderName::from_static("forwarded"),
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-prefix"),
    HeaderName::from_static("x-forwarded-server"),
];

/// The header with the operation id of the claim, for the upstream. The id is the same in all
/// attempts.
const OPERATION_ID: HeaderName = HeaderName::from_static("semel-operation-id");
/// The header with the number of the attempt, for the upstream.
const ATTEMPT: HeaderName = HeaderName::from_static("semel-attempt");
/// The header with the fence of the claim, for the upstream. It never decreases.
const FENCE: HeaderName = HeaderName::from_static("semel-fence");

/// The headers that the gateway sets or trusts. Other spellings of their names are not forwarded,
/// because many services treat `X-Tenant-Id`, `X_Tenant_Id` and `X.Tenant.Id` as the same name.
#[derive(Clone, Debug)]
pub(super) struct ReservedHeaders {
    names: Vec<HeaderName>,
}

impl ReservedHeaders {
    /// Reserves the gateway's own headers and the headers in `named`, which come from the settings.
    pub(super) fn new(named: impl IntoIterator<Item = HeaderName>) -> Self {
        let more = [OPERATION_ID, ATTEMPT, FENCE, FORWARDED_PROTO, FORWARDED_HOST];
        let framing = [CONTENT_LENGTH, HOST, EXPECT, VIA, TRAILER, AUTHORIZATION, COOKIE];
        let names = named.into_iter().chain(more).chain(framing);
        Self { names: names.chain(FROM.iter().chain(&HOP_BY_HOP).cloned()).collect() }
    }

    /// Removes other spellings of the reserved names.
    fn strip_spellings(&self, headers: &mut HeaderMap) {
        let spelled = |name: &&HeaderName| {
            !self.names.contains(*name) && self.names.iter().any(|ours| same(ours, name))
        };
        let found: Vec<HeaderName> = headers.keys().filter(spelled).cloned().collect();
        for name in found {
            headers.remove(name);
        }
    }

    /// Removes the reserved names in any spelling, because none of them is valid in trailers.
    pub(super) fn strip_trailers(&self, trailers: &mut HeaderMap) {
        let ours = |name: &&HeaderName| self.names.iter().any(|ours| same(ours, name));
        let found: Vec<HeaderName> = trailers.keys().filter(ours).cloned().collect();
        for name in found {
            trailers.remove(name);
        }
    }
}

/// Folds a character of a header name as services do that turn headers into variables.
fn folded(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte } else { b'-' }
}

fn same(ours: &HeaderName, theirs: &HeaderName) -> bool {
    let letters = |name: &HeaderName| name.as_str().bytes().map(folded).collect::<Vec<_>>();
    ours.as_str().len() == theirs.as_str().len() && letters(ours) == letters(theirs)
}

/// Returns the address that a request comes from: the one that a trusted proxy reports, else the
/// address of the peer.
pub(super) fn caller(headers: &HeaderMap, peer: IpAddr, trusted: bool) -> IpAddr {
    let lines = headers.get_all(FORWARDED_FOR);
    let last = lines.iter().next_back().filter(|_| trusted).and_then(|line| line.to_str().ok());
    // The proxy in front appends the last entry; earlier entries may be forged.
    let reported = last.and_then(|line| line.rsplit(',').next()).map(str::trim);
    reported.and_then(|text| text.parse().ok()).unwrap_or(peer).to_canonical()
}

/// The origin of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) peer: Option<IpAddr>,
    pub(super) secure: bool,
    /// Whether the forwarding headers of the request are trusted.
    pub(super) trusted: bool,
}

/// Returns the options of `Connection`: hop-by-hop headers, and `close` or `upgrade`.
pub(super) fn options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// Removes hop-by-hop headers.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> =
        options(headers).filter_map(|option| option.parse().ok()).collect();
    let trailers = accepts_trailers(headers);
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Returns whether `TE` contains `trailers`, which is forwarded.
fn accepts_trailers(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(TE).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|word| word.trim().eq_ignore_ascii_case("trailers"))
}

/// Rewrites a request's headers for the upstream.
pub(super) fn forward(
    headers: &mut HeaderMap,
    target: &Uri,
    version: Version,
    from: Arrival,
    owned: &ReservedHeaders,
) {
    strip(headers);
    owned.strip_spellings(headers);
    // The gateway's own server answers `Expect` when the body is read.
    headers.remove(EXPECT);
    one_cookie_line(headers);
    let host = match target.authority() {
        // An absolute target overrides the header (RFC 9112, 3.2.2).
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None => headers.get(HOST).cloned(),
    };
    // The client sets `Host` to the upstream's authority.
    headers.remove(HOST);
    if !from.trusted {
        for name in &FROM {
            headers.remove(name);
        }
    }
    if let Some(peer) = from.peer {
        append(headers, FORWARDED_FOR, &peer.to_canonical().to_string());
    }
    let scheme = if from.secure { "https" } else { "http" };
    set(headers, FORWARDED_PROTO, Some(HeaderValue::from_static(scheme)), from.trusted);
    set(headers, FORWARDED_HOST, host, from.trusted);
    let via = match version {
        Version::HTTP_10 => "1.0 semel",
        Version::HTTP_2 => "2 semel",
        _ => "1.1 semel",
    };
    append(headers, VIA, via);
    for name in [OPERATION_ID, ATTEMPT, FENCE] {
        headers.remove(name);
    }
}

/// Joins the lines of `Cookie`. HTTP/2 may send several; HTTP/1.1 allows one (RFC 9113, 8.2.3).
fn one_cookie_line(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else { return };
    let crumbs: Vec<&[u8]> = [first, second].into_iter().chain(lines).collect();
    if let Ok(line) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])) {
        headers.insert(COOKIE, line);
    }
}

/// Adds `Transfer-Encoding` for a body of unknown length on GET, HEAD and CONNECT: without it the
/// HTTP/1.1 client would drop the body. HTTP/2 neither needs nor allows the header.
pub(super) fn announce<B: Body>(request: &mut Request<B>) {
    let bodiless = [Method::GET, Method::HEAD, Method::CONNECT].contains(request.method());
    let body = request.body();
    let unknown = !body.is_end_stream() && body.size_hint().exact().is_none();
    if bodiless && unknown && !request.headers().contains_key(CONTENT_LENGTH) {
        request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Adds the headers that describe the claim.
pub(super) fn claimed(headers: &mut HeaderMap, claim: &Context) {
    if let Ok(operation) = HeaderValue::try_from(claim.operation_id().to_string()) {
        headers.insert(OPERATION_ID, operation);
    }
    headers.insert(ATTEMPT, claim.attempt().into());
    headers.insert(FENCE, claim.fence().0.into());
}

/// Appends to a list header, and joins its lines.
fn append(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    let mut list = Vec::new();
    for line in headers.get_all(&name) {
        list.extend_from_slice(line.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(value.as_bytes());
    if let Ok(list) = HeaderValue::from_bytes(&list) {
        headers.insert(name, list);
    }
}

/// Sets a header. If the request's own headers are trusted, an existing value is kept.
fn set(headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>, trusted: bool) {
    match (headers.entry(name), value) {
        (Entry::Occupied(_), _) if trusted => {}
        (Entry::Occupied(mut there), Some(value)) => {
            there.insert(value);
        }
        (Entry::Occupied(there), None) => {
            there.remove_entry_mult();
        }
        (Entry::Vacant(room), Some(value)) => {
            room.insert(value);
        }
        (Entry::Vacant(_), None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    fn through(lines: &[(&'static str, &'static str)], trusted: bool) -> HeaderMap {
        let mut headers = map(lines);
        let peer = Some(IpAddr::from([10, 0, 0, 7]));
        let from = Arrival { peer, secure: true, trusted };
        let owned = ReservedHeaders::new([HeaderName::from_static("x-tenant-id")]);
        forward(&mut headers, &Uri::from_static("/a"), Version::HTTP_11, from, &owned);
        headers
    }

    #[test]
    fn no_spelling_of_a_reserved_name_is_forwarded() {
        for trusted in [false, true] {
            let headers = through(
                &[
                    ("semel_operation_id", "1"),
                    ("semel.operation.id", "1"),
                    ("semel-operation_id", "1"),
                    ("x_tenant_id", "1"),
                    ("x_forwarded_for", "1"),
                    ("x.real.ip", "1"),
                    ("x_forwarded-proto", "1"),
                    ("content_length", "1"),
                    ("transfer_encoding", "chunked"),
                    ("x-tenant-id", "acme"),
                    ("x_own_name", "1"),
                ],
                trusted,
            );
            let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
            names.sort_unstable();
            let expected =
                ["via", "x-forwarded-for", "x-forwarded-proto", "x-tenant-id", "x_own_name"];
            assert_eq!(names, expected);
        }
        let owned = ReservedHeaders::new([HeaderName::from_static("x-tenant-id")]);
        let mut trailers = map(&[
            ("semel-fence", "1"),
            ("x-tenant-id", "1"),
            ("x_tenant_id", "1"),
            ("x-sum", "1"),
        ]);
        owned.strip_trailers(&mut trailers);
        assert_eq!(trailers, map(&[("x-sum", "1")]));
    }

    #[test]
    fn a_request_comes_from_the_address_that_a_trusted_proxy_reports() {
        let peer = IpAddr::from([10, 0, 0, 7]);
        let headers =
            map(&[("x-forwarded-for", "192.0.2.1"), ("x-forwarded-for", "192.0.2.2, 192.0.2.3")]);
        assert_eq!(caller(&headers, peer, false), peer);
        assert_eq!(caller(&headers, peer, true), IpAddr::from([192, 0, 2, 3]));
        assert_eq!(caller(&map(&[("x-forwarded-for", "unknown")]), peer, true), peer);
        assert_eq!(caller(&map(&[]), peer, true), peer);
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut headers = map(&[
            ("connection", "close, X-Mine"),
            ("connection", "x-other"),
            ("x-mine", "1"),
            ("x-other", "1"),
            ("keep-alive", "5"),
            ("proxy-connection", "close"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAA"),
            ("te", "gzip"),
            ("proxy-authorization", "x"),
            ("x-end-to-end", "1"),
        ]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("x-end-to-end", "1")]));
    }

    #[test]
    fn trailers_are_still_accepted() {
        let mut headers = map(&[("te", "gzip;q=1, trailers"), ("connection", "te")]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("te", "trailers")]));
    }

    #[test]
    fn forwarding_headers_are_set() {
        let headers = through(
            &[
                ("host", "shop.example"),
                ("x-forwarded-for", "192.0.2.1"),
                ("x-forwarded-for", "192.0.2.2"),
                ("x-forwarded-proto", "gopher"),
                ("x-forwarded-host", "evil"),
                ("via", "1.0 fred"),
                ("expect", "100-continue"),
                ("semel-operation-id", "mine"),
            ],
            false,
        );
        let expected = map(&[
            ("x-forwarded-for", "10.0.0.7"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "shop.example"),
            ("via", "1.0 fred, 1.1 semel"),
        ]);
        assert_eq!(headers, expected);
    }

    #[test]
    fn forwarding_headers_of_a_trusted_proxy_are_kept() {
        let lines = [
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-for", "192.0.2.2"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "shop"),
            ("host", "lb"),
        ];
        let headers = through(&lines, true);
        assert_eq!(headers["x-forwarded-for"], "192.0.2.1, 192.0.2.2, 10.0.0.7");
        assert_eq!(
            (&headers["x-forwarded-proto"], &headers["x-forwarded-host"]),
            (&HeaderValue::from_static("http"), &HeaderValue::from_static("shop"),)
        );
    }

    #[test]
    fn cookies_are_one_line_in_their_order() {
        let headers =
            through(&[("cookie", "a=1"), ("cookie", "b=2; c=3"), ("cookie", "d=4")], false);
        let lines: Vec<_> = headers.get_all(COOKIE).iter().collect();
        assert_eq!(lines, ["a=1; b=2; c=3; d=4"]);
        assert_eq!(through(&[("cookie", "a=1")], false)[COOKIE], "a=1");
    }

    #[test]
    fn a_header_listed_in_connection_is_still_added() {
        let headers = through(&[("connection", "x-forwarded-for, via"), ("host", "a")], false);
        assert_eq!(headers["x-forwarded-for"], "10.0.0.7");
        assert_eq!(headers["via"], "1.1 semel");
    }
}
