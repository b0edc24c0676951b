//! Headers that the gateway adds to its own responses: problems and 202s.
//!
//! Responses of the upstream and their replays are not changed: the upstream decides which origins
//! may read them, and its cross-origin headers are stored with the response.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, LOCATION, ORIGIN, VARY,
    WWW_AUTHENTICATE,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use semel_core::Receipt;
use semel_tower::http::{OPERATIONS, Slug};

use crate::settings::{GatewaySettings, PrincipalSource, is_prefix};

const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
/// Headers of the gateway that a page of another origin may read.
const EXPOSED: HeaderValue = HeaderValue::from_static("Retry-After, Location, Preference-Applied");
/// The time for which a browser may cache a preflight, in seconds.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// Marks a response of the upstream, in the response's extensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct FromUpstream;

/// Adds the final headers to the gateway's own responses.
#[derive(Clone, Debug)]
pub(super) struct LocalResponses {
    origins: Vec<HeaderValue>,
    public_path: String,
    /// Whether `X-Forwarded-Prefix` is trusted.
    trusted: bool,
    principal: HeaderValue,
    tenant: HeaderValue,
}

/// The parts of a request on which the headers of its response depend.
#[derive(Clone, Debug)]
pub(super) struct RequestContext {
    origin: Option<HeaderValue>,
    prefix: String,
}

impl LocalResponses {
    pub(super) fn new(settings: &GatewaySettings) -> Self {
        let origins = settings.cors.iter().filter_map(|text| text.parse().ok()).collect();
        let by = |kind: &str, name: &str| {
            // Names of headers and cookies need no quoting.
            HeaderValue::try_from(format!("Semel {kind}=\"{name}\""))
                .unwrap_or(HeaderValue::from_static("Semel"))
        };
        let principal = match &settings.principal {
            PrincipalSource::Header(name) if *name != http::header::AUTHORIZATION => {
                by("header", name.as_str())
            }
            PrincipalSource::Cookie(name) => by("cookie", name),
            PrincipalSource::Header(_) | PrincipalSource::Claim(_) | PrincipalSource::Global => {
                HeaderValue::from_static("Bearer")
            }
        };
        Self {
            origins,
            public_path: settings.public_path.clone(),
            trusted: settings.trust_forwarded,
            principal,
            tenant: by("header", settings.tenant_header.as_str()),
        }
    }

    pub(super) fn context(&self, headers: &HeaderMap) -> RequestContext {
        let given = headers.get(FORWARDED_PREFIX).filter(|_| self.trusted);
        let given = given.and_then(|value| value.to_str().ok()).filter(|text| is_prefix(text));
        let prefix = given.unwrap_or(&self.public_path).to_owned();
        RequestContext { origin: headers.get(ORIGIN).cloned(), prefix }
    }

    /// Returns the target without the public path, if it is the URL of an operation below that
    /// path.
    pub(super) fn below_public_path(&self, target: &Uri) -> Option<Uri> {
        if self.public_path.is_empty() {
            return None;
        }
        let below = target.path().strip_prefix(&self.public_path)?;
        below.starts_with(OPERATIONS).then(|| PathAndQuery::try_from(below).ok())?.map(Uri::from)
    }

    /// Returns the response to a preflight request for the URL of an operation; `None` if the
    /// request is not one.
    pub(super) fn preflight<B>(&self, request: &Request<B>) -> Option<Response<bytes::Bytes>> {
        let headers = request.headers();
        let is_preflight = request.method() == Method::OPTIONS
            && request.uri().path().starts_with(OPERATIONS)
            && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        let origin = headers.get(ORIGIN).filter(|origin| is_preflight && self.allows(origin))?;
        let mut response = Response::new(bytes::Bytes::new());
        *response.status_mut() = StatusCode::NO_CONTENT;
        self.allow(origin, response.headers_mut());
        let allowed = response.headers_mut();
        allowed.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD"));
        allowed.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        if let Some(wanted) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            allowed.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        Some(response)
    }

    /// Adds the final headers to a response, unless it comes from the upstream or is a replay. The
    /// setting `cors` does not apply to a replay, because an origin that the upstream refused must
    /// not get to read the response.
    pub(super) fn finish<B>(&self, context: &RequestContext, answer: &mut Response<B>) {
        // A receipt without the upstream's mark means that the response is a replay.
        let (passed, receipt) =
            (answer.extensions().get::<FromUpstream>(), answer.extensions().get::<Receipt>());
        if passed.is_some() || receipt.is_some() {
            return;
        }
        let challenge = match answer.extensions().get::<Slug>() {
            Some(Slug::PrincipalUnknown) => Some(self.principal.clone()),
            Some(Slug::TenantUnknown) => Some(self.tenant.clone()),
            Some(_) | None => None,
        };
        let accepted = answer.status() == StatusCode::ACCEPTED;
        let headers = answer.headers_mut();
        if let Some(challenge) = challenge {
            headers.insert(WWW_AUTHENTICATE, challenge);
        }
        if let Some(place) =
            headers.get(LOCATION).filter(|_| accepted && !context.prefix.is_empty())
            && place.as_bytes().starts_with(OPERATIONS.as_bytes())
            && let Ok(place) =
                HeaderValue::from_bytes(&[context.prefix.as_bytes(), place.as_bytes()].concat())
        {
            headers.insert(LOCATION, place);
        }
        if let Some(origin) = context.origin.as_ref().filter(|origin| self.allows(origin)) {
            self.allow(origin, headers);
        }
        if !self.origins.is_empty() && !self.any_origin() {
            // Added for other origins too: a shared cache must not give this response to an allowed
            // origin.
            headers.append(VARY, HeaderValue::from_static("Origin"));
        }
    }

    fn any_origin(&self) -> bool {
        self.origins.iter().any(|origin| origin == "*")
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        self.any_origin() || self.origins.contains(origin)
    }

    /// Lets pages of `origin` read a response. Credentials are only allowed if the origin is
    /// listed.
    fn allow(&self, origin: &HeaderValue, headers: &mut HeaderMap) {
        if self.any_origin() {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        } else {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            let yes = HeaderValue::from_static("true");
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
        }
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(text: &str) -> LocalResponses {
        LocalResponses::new(&toml::from_str(text).unwrap())
    }

    fn finished(
        own: &LocalResponses,
        lines: &[(&'static str, &'static str)],
        answer: Response<()>,
    ) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let mut answer = answer;
        own.finish(&own.context(&headers), &mut answer);
        answer.into_parts().0.headers
    }

    #[test]
    fn only_listed_origins_may_read_the_gateways_responses() {
        let named = own("cors = [\"https://a\"]");
        let headers = finished(&named, &[("origin", "https://a")], Response::new(()));
        assert_eq!(headers["access-control-allow-origin"], "https://a");
        assert_eq!(headers["access-control-allow-credentials"], "true");
        assert_eq!(headers["vary"], "Origin");
        for other in ["https://b", "https://a.b", "null", "https://A"] {
            let other: &'static str = other;
            let headers = finished(&named, &[("origin", other)], Response::new(()));
            assert_eq!(
                (headers.len(), &headers["vary"]),
                (1, &"Origin".parse().unwrap()),
                "{other}"
            );
        }
        let headers = finished(&named, &[], Response::new(()));
        assert_eq!((headers.len(), &headers["vary"]), (1, &"Origin".parse().unwrap()));
        assert!(finished(&own(""), &[("origin", "https://a")], Response::new(())).is_empty());
        let any = own("cors = \"*\"");
        let headers = finished(&any, &[("origin", "https://a")], Response::new(()));
        assert_eq!(headers["access-control-allow-origin"], "*");
        assert!(!headers.contains_key("access-control-allow-credentials"));
    }

    #[test]
    fn responses_of_the_upstream_are_not_changed() {
        for origins in ["cors = \"https://a\"", "cors = \"*\""] {
            let mut passed = Response::new(());
            passed.extensions_mut().insert(FromUpstream);
            assert!(finished(&own(origins), &[("origin", "https://a")], passed).is_empty());
            let mut replay = Response::new(());
            let (operation_id, fence) = (semel_core::OperationId::generate(), semel_core::Fence(1));
            let receipt = Receipt { operation_id, attempt: 1, fence, recorded: true };
            replay.extensions_mut().insert(receipt);
            let headers = finished(&own(origins), &[("origin", "https://a")], replay);
            assert!(headers.is_empty(), "{headers:?}");
        }
    }

    #[test]
    fn the_location_of_a_202_has_the_public_prefix() {
        let accepted = || {
            let place = format!("{OPERATIONS}01");
            Response::builder().status(202).header(LOCATION, place).body(()).unwrap()
        };
        let place = |own: &LocalResponses, lines: &[(&'static str, &'static str)]| {
            finished(own, lines, accepted())[LOCATION].to_str().unwrap().to_owned()
        };
        let prefix = [("x-forwarded-prefix", "/shop")];
        let (plain, fixed) = (own(""), own("public_path = \"/api\""));
        let trusting = own("public_path = \"/api\"\ntrust_forwarded = true");
        assert_eq!(place(&plain, &prefix), format!("{OPERATIONS}01"));
        assert_eq!(place(&fixed, &prefix), format!("/api{OPERATIONS}01"));
        assert_eq!(place(&trusting, &prefix), format!("/shop{OPERATIONS}01"));
        for bad in ["//evil", "http://evil", "/a/../b", "/", "/a?b"] {
            let bad: &'static str = bad;
            let location = place(&trusting, &[("x-forwarded-prefix", bad)]);
            assert_eq!(location, format!("/api{OPERATIONS}01"), "{bad}");
        }
        let target = format!("/api{OPERATIONS}01").parse().unwrap();
        assert_eq!(fixed.below_public_path(&target).unwrap().path(), format!("{OPERATIONS}01"));
        assert_eq!(fixed.below_public_path(&"/api/orders".parse().unwrap()), None);
    }
}
