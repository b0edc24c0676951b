//! Tests of odd spellings: headers that resemble reserved ones, paths and methods that a lenient
//! service would treat like those of a route, patterns of other tools.

use crate::caller::{Caller, full};
use crate::fixture::Fixture;
use crate::program;
use crate::raw::Raw;
use crate::shop::Shop;

#[tokio::test(flavor = "multi_thread")]
async fn no_spelling_of_a_reserved_header_reaches_the_upstream() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--principal", "header:x-user-id"]);
    let odd = "Semel_Operation_Id: 1\r\nSemel.Operation.Id: 1\r\nsemel_fence: 9\r\nX_Tenant_Id: evil\r\n\
               X_User_Id: evil\r\nx.user.id: evil\r\nIdempotency_Key: evil\r\nX_Forwarded_For: evil\r\n\
               X_Real_IP: evil\r\nx_own: 1\r\n";
    let trailers = "Semel-Operation-Id: 1\r\nsemel_attempt: 1\r\nX-Tenant-Id: evil\r\nX_User_Id: evil\r\n\
                    X-Sum: 7\r\n";
    for (key, count) in [("", 1), ("idempotency-key: k\r\n", 2)] {
        let mut raw = Raw::connect(&gateway).await;
        raw.send(&format!(
            "POST /orders HTTP/1.1\r\nhost: a\r\nx-user-id: ann\r\n{key}{odd}te: trailers\r\n\
             trailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n{trailers}\r\n",
        ))
        .await;
        let answer = raw.read_until(&format!("\"order\":{count}}}")).await;
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        let seen = shop.seen("/orders").pop().unwrap();
        for (name, value) in &seen.headers {
            let odd = name.as_str().contains(['_', '.']) && name != "x_own";
            assert!(!odd && value != "evil", "{name}: {value:?}");
        }
        assert_eq!(seen.headers["x_own"], "1", "other headers pass");
        assert_eq!(seen.headers.contains_key("semel-operation-id"), !key.is_empty());
        let trailers = seen.trailers.unwrap_or_default();
        let names: Vec<&str> = trailers.keys().map(http::HeaderName::as_str).collect();
        assert!(names.iter().all(|name| *name == "x-sum"), "{names:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_headers_are_removed_from_trailers() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--upstream-http2"]);
    let caller = Caller::http2(&gateway);
    for key in [None, Some("k")] {
        let mut trailers = http::HeaderMap::new();
        for name in ["semel-operation-id", "semel_fence", "x-tenant-id", "authorization", "x-sum"] {
            trailers.insert(name, "7".parse().unwrap());
        }
        let frames =
            [Ok(http_body::Frame::data("{}".into())), Ok(http_body::Frame::trailers(trailers))];
        let body = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
        let body = http_body_util::BodyExt::boxed(body);
        let mut request = caller.request(http::Method::POST, "/orders").header("te", "trailers");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        assert_eq!(caller.send(request.body(body).unwrap()).await.status, 201);
        let seen = shop.seen("/orders").pop().unwrap().trailers.unwrap();
        let names: Vec<&str> = seen.keys().map(http::HeaderName::as_str).collect();
        assert_eq!(names, ["x-sum"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_or_a_method_in_another_case_does_not_bypass_a_route() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[[route]]\npath = \"/orders/{id}\"\nrequired = true";
    let gateway = fixture.configured(&shop.url(), config);
    for line in ["POST /Orders/7", "POST /oRDERS/7", "post /orders/7", "Post /orders/7", "patch /x"]
    {
        let mut raw = Raw::connect(&gateway).await;
        raw.send(&format!("{line} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")).await;
        let reply = raw.read_until("rules here\n").await;
        assert!(reply.starts_with("HTTP/1.1 400"), "{line}: {reply}");
    }
    assert_eq!(shop.all(), 0);
    let caller = Caller::new(&gateway);
    assert_eq!(
        caller.post("/orders/ABC", "k", "{}").await.status,
        201,
        "the case of an id is kept"
    );
    assert_eq!(caller.get("/Orders/7").await.status, 201, "no route has rules for GET");
    let other = caller.request("Get".parse().unwrap(), "/x").body(full("")).unwrap();
    assert_eq!(caller.send(other).await.status, 201, "nor for an unknown method");
}

#[test]
fn a_pattern_of_another_tool_is_refused_with_the_right_spelling() {
    let fixture = Fixture::new();
    for (theirs, ours) in [
        ("/orders/:id", "/orders/{id}"),
        ("/b/*", "/b/{*rest}"),
        ("/orders/<int:id>", "/orders/{id}"),
        ("/files/{path...}", "/files/{*path}"),
    ] {
        fixture.write("semel.toml", format!("[[route]]\npath = \"{theirs}\""));
        let flags = ["gateway", "--config", "semel.toml", "--upstream", "http://127.0.0.1:9"];
        let more = ["--store", "memory:", "--listen", "127.0.0.1:0", "--admin-listen", "off"];
        let output = program::run(fixture.path(), flags.iter().chain(&more)).badly(2);
        assert!(output.contains(theirs) && output.contains(ours), "{output}");
    }
}
