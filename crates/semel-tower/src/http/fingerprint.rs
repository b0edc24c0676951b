//! The fingerprint by which two requests under one key are recognised as the same request.

use std::borrow::Cow;

use http::header::CONTENT_TYPE;
use http::request::Parts;
use semel_core::Fingerprint;

use super::content::{self, Content};
use super::rules::Rules;
use super::target::target;
use crate::headers::append_matched;

/// Returns the fingerprint of method, path, query, content type, body and the headers that the
/// rules list.
///
/// Two requests are the same even if they differ in the order or the encoding of query parameters,
/// form fields or JSON members, in the parameters of the content type, in a gzip or deflate coding,
/// or in the boundary of a multipart body.
pub(super) fn of(request: &Parts, body: &[u8], rules: &Rules) -> Fingerprint {
    let content_type = essence(request);
    let Content { print, coding } = content::of(request, body, &content_type, rules);
    let target = target(request);
    let query = content::pairs(target.query().unwrap_or_default());
    let mut parts: Vec<&[u8]> = vec![
        request.method.as_str().as_bytes(),
        target.path().as_bytes(),
        &query,
        content_type.as_bytes(),
        &coding,
        print.as_bytes(),
    ];
    append_matched(&mut parts, &request.headers, &rules.options.matched_headers);
    Fingerprint::of_parts(&parts)
}

/// Returns the content type without parameters, in lower case; empty if there is none.
fn essence(request: &Parts) -> Cow<'_, str> {
    let value = request.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if essence.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(essence.to_ascii_lowercase())
    } else {
        Cow::Borrowed(essence)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    fn print(uri: &str, content_type: &str, body: &str, rules: &Rules) -> Fingerprint {
        let request = http::Request::post(uri).header("content-type", content_type);
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        of(&parts, body.as_bytes(), rules)
    }

    #[test]
    fn encoding_and_order_make_no_difference() {
        let rules = Rules::new();
        let one = print("/o?b=2&a=%41", "application/json", r#"{"x":1,"y":2}"#, &rules);
        let charset = "Application/JSON; charset=utf-8";
        assert_eq!(one, print("/o?a=A&b=2", charset, r#"{ "y": 2, "x": 1.0 }"#, &rules));
    }

    #[test]
    fn every_part_makes_a_difference() {
        let rules = Rules::new();
        let one = print("/o?a=1", "application/json", "{}", &rules);
        let others = [
            print("/p?a=1", "application/json", "{}", &rules),
            print("/o?a=2", "application/json", "{}", &rules),
            print("/o", "application/json", "{}", &rules),
            print("/o?a", "application/json", "{}", &rules),
            print("/o?a=1&a=1", "application/json", "{}", &rules),
            print("/o?a=1", "text/plain", "{}", &rules),
            print("/o?a=1", "application/json", "[]", &rules),
        ];
        for (n, other) in others.iter().enumerate() {
            assert_ne!(one, *other, "{n}");
        }
        let order = |query| print(query, "text/plain", "", &rules);
        assert_ne!(order("/o?a=1&a=2"), order("/o?a=2&a=1"));
        assert_ne!(order("/o?a="), order("/o?a"));
        assert_ne!(order("/o?a=b+c"), order("/o?a=b%2Bc"));
        assert_ne!(order("/o?a=%zz"), order("/o?a=%25zz"));
        assert_eq!(order("/o?a=%c3%a4"), order("/o?a=%C3%A4"));
    }

    #[test]
    fn a_body_that_is_not_json_is_compared_by_its_bytes() {
        let rules = Rules::new();
        let text = |body| print("/o", "text/plain", body, &rules);
        assert_ne!(text(r#"{"a":1,"b":2}"#), text(r#"{"b":2,"a":1}"#));
        let json = |body| print("/o", "application/vnd.api+json", body, &rules);
        assert_eq!(json(r#"{"a":1,"b":2}"#), json(r#"{"b":2,"a":1}"#));
        assert_ne!(json("9007199254740993"), json("9007199254740992"));
    }

    #[test]
    fn listed_headers_make_a_difference() {
        let rules = Rules::new().matched_headers([http::header::ACCEPT]);
        let with = |accept: Option<&str>| {
            let mut request = http::Request::post("/o");
            if let Some(accept) = accept {
                request = request.header("accept", accept);
            }
            of(&request.body(()).expect("a request").into_parts().0, b"", &rules)
        };
        assert_ne!(with(Some("text/html")), with(Some("text/plain")));
        assert_ne!(with(None), with(Some("")));
        assert_eq!(with(None), with(None));
    }

    #[test]
    fn a_value_is_not_mistaken_for_the_next_name() {
        let rules = Rules::new().matched_headers(["x-one", "x-two"].map(HeaderName::from_static));
        let with = |lines: [(&str, &str); 3]| {
            let request = lines.iter().fold(http::Request::post("/o"), |request, (name, value)| {
                request.header(*name, *value)
            });
            of(&request.body(()).expect("a request").into_parts().0, b"", &rules)
        };
        let one = with([("x-one", "a"), ("x-one", "x-two"), ("x-two", "b")]);
        assert_ne!(one, with([("x-one", "a"), ("x-two", "x-two"), ("x-two", "b")]));
    }
}
