//! The URL of an endpoint, and the addresses that a request may go to.
//!
//! The author of a subscription must not reach what only this machine can reach. A name is judged by the
//! address that is connected to, so that it cannot resolve to another one between check and use.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use http::Uri;
use http::uri::Scheme;

/// The URL of an endpoint. Displayed without its path, which may contain a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint(Uri);

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "is not an endpoint; write it as https://shop.example.com/events".to_owned();
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(wrong());
        };
        if ![Scheme::HTTP, Scheme::HTTPS].contains(scheme) || authority.host().is_empty() {
            return Err(wrong());
        }
        if authority.as_str().contains('@') {
            return Err("has a user or a password in it, which would not be sent".to_owned());
        }
        if text.contains('#') {
            return Err("has a fragment, which would not be sent".to_owned());
        }
        Ok(Self(uri))
    }
}

impl Endpoint {
    /// Returns the whole URL, for requests.
    pub(crate) fn uri(&self) -> Uri {
        self.0.clone()
    }

    /// Returns whether the endpoint uses TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.0.scheme() == Some(&Scheme::HTTPS)
    }

    /// Returns which addresses requests may go to.
    pub(crate) fn reach(&self, allow_private: bool, allow_http: bool) -> Reach {
        Reach { private: allow_private, public: self.is_secure() || allow_http }
    }

    /// Returns the reason why nothing may be sent to this URL, as far as the URL shows.
    pub(crate) fn refusal(&self, allow_private: bool, allow_http: bool) -> Option<String> {
        let reach = self.reach(allow_private, allow_http);
        let host = self.0.host().unwrap_or_default().trim_matches(['[', ']']);
        match host.parse::<IpAddr>() {
            Ok(address) => reach.refusal(address),
            Err(_) if !reach.public && !reach.private => Some(PLAIN.to_owned()),
            Err(_) => None,
        }
    }
}

/// Why a public endpoint without TLS is refused.
const PLAIN: &str = "would be sent without TLS; use https, or set allow_http = true";

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.0.authority().map_or("", |authority| authority.as_str());
        write!(f, "{}://{host}", self.0.scheme_str().unwrap_or_default())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

/// The addresses that requests of a subscription may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    private: bool,
    public: bool,
}

impl Reach {
    /// Returns the reason why nothing may be sent to this address.
    pub(crate) fn refusal(self, address: IpAddr) -> Option<String> {
        match is_public(address) {
            true if self.public => None,
            true => Some(PLAIN.to_owned()),
            false if self.private => None,
            false => Some(format!(
                "leads to {address}, which is not a public address; set allow_private = true if that is meant"
            )),
        }
    }
}

/// Returns whether an address belongs to the internet: not to this machine, a private network, a link, a group,
/// or a range that is reserved.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let benchmarks = a == 198 && (18..20).contains(&b);
    let protocols = [a, b, c] == [192, 0, 0];
    !(a == 0
        || a >= 224
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || shared
        || benchmarks
        || protocols)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(inner) = embedded(address) {
        return is_public_v4(inner);
    }
    let [first, second, ..] = address.segments();
    // Global unicast, without what is reserved in it: documentation, benchmarks, Teredo.
    let reserved = first == 0x2001 && (second < 0x0200 || second == 0x0db8);
    (first & 0xe000) == 0x2000 && !reserved && first != 0x3fff
}

/// Returns the IPv4 address that an IPv6 address leads to: mapped, compatible, translated or 6to4.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Some(Ipv4Addr::new(a, b, c, d))
    };
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0xffff] | [0, 0, 0, 0, 0xffff, 0] | [0, 0, 0, 0, 0, 0] => v4(g, h),
        // Other prefixes of translation are of local use.
        [0x64, 0xff9b, 0, 0, 0, 0] => v4(g, h),
        [0x2002, ..] => v4(b, c),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_no_public_network_is_recognised_in_every_form() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "192.0.0.1",
            "198.18.0.1",
            "192.0.2.1",
            "::",
            "::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1:a00:0:100:808:808",
            "2002:a00:1::1",
            "2001:db8::1",
            "2001::1",
            "::ffff:0:10.0.0.1",
            "100::1",
            "5f00::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "2a00::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn a_url_that_leads_nowhere_public_is_refused_at_start() {
        let refusal =
            |url: &str, private, plain| url.parse::<Endpoint>().unwrap().refusal(private, plain);
        for url in ["https://127.0.0.1/x", "https://[::1]:8443", "https://[::ffff:10.0.0.1]/"] {
            assert!(
                refusal(url, false, true).is_some_and(|why| why.contains("allow_private")),
                "{url}"
            );
            assert_eq!(refusal(url, true, false), None, "{url}");
        }
        for url in ["http://shop.example.com", "http://8.8.8.8/"] {
            assert!(
                refusal(url, false, false).is_some_and(|why| why.contains("allow_http")),
                "{url}"
            );
            assert_eq!(refusal(url, false, true), None, "{url}");
        }
        assert_eq!(refusal("http://10.0.0.1/x", true, false), None);
        // Whether it is private is known when it is resolved.
        assert_eq!(refusal("http://billing.internal/x", true, false), None);
    }

    #[test]
    fn an_invalid_url_is_refused() {
        for wrong in ["", "x.example", "/a", "ftp://x", "http://", "https://a:b@x/", "https://x/#a"]
        {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
        let endpoint: Endpoint = "https://hooks.example/T0/secret?token=abc".parse().unwrap();
        assert_eq!(format!("{endpoint} {endpoint:?}").matches("secret").count(), 0);
    }
}
