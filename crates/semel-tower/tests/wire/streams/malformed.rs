//! Tests of headers and lengths that HTTP/2 forbids, mostly because an HTTP/1.1 server behind it
//! would interpret them differently.

use super::read_by_now;
use crate::backend::run;
use crate::frames::{
    self, DATA, END_STREAM, Frame, Frames, GOAWAY, HEADERS, PROTOCOL_ERROR, RST_STREAM, frame,
};
use crate::shop::Shop;

/// The fields of a valid request.
const PROPER: [(&str, &[u8]); 6] = [
    (":method", b"POST"),
    (":scheme", b"http"),
    (":authority", b"shop"),
    (":path", b"/orders"),
    ("x-user", b"ann"),
    ("idempotency-key", b"k-1"),
];

/// Sends a request with these fields and this body, and returns the server's first frame about it.
async fn first_frame(shop: &Shop, fields: &[(&str, &[u8])], body: &[u8]) -> Option<Frame> {
    let mut connection = Frames::connect(shop.server.address()).await;
    let head = frames::headers(1, 0, fields);
    connection.send(&[head, frame(DATA, END_STREAM, 1, body)].concat()).await;
    loop {
        let frame = connection.next().await?;
        if matches!(frame.kind, HEADERS | RST_STREAM | GOAWAY) {
            if frame.kind != GOAWAY {
                read_by_now(&mut connection).await;
            }
            return Some(frame);
        }
    }
}

#[test]
fn requests_that_http_2_forbids_reach_no_handler() {
    run(async {
        let more: [(&str, &[u8]); 17] = [
            ("transfer-encoding", b"chunked"),
            ("connection", b"close"),
            ("connection", b"idempotency-key"),
            ("keep-alive", b"timeout=5"),
            ("proxy-connection", b"close"),
            ("upgrade", b"h2c"),
            ("te", b"gzip"),
            ("Idempotency-Key", b"k-2"),
            ("x-a", b"1\r\nidempotency-key: k-2"),
            ("x-a", b"1\n2"),
            ("x-a", b"1\0"),
            ("x a", b"1"),
            ("x:a", b"1"),
            ("", b"1"),
            (":path", b"/admin"),
            (":unknown", b"1"),
            ("content-length", b"+2"),
        ];
        for field in more {
            let shop = Shop::open().await;
            let frame = first_frame(&shop, &[&PROPER[..], &[field]].concat(), b"{}").await;
            let shown = format!("{}: {}", field.0, field.1.escape_ascii());
            let frame = frame.unwrap_or_else(|| panic!("{shown}: no word"));
            assert!(matches!(frame.kind, RST_STREAM | GOAWAY), "{shown}: {frame:?}");
            assert_eq!(frame.code(), PROTOCOL_ERROR, "{shown}");
            assert_eq!(shop.journal.entries(), [], "{shown}");
        }
    });
}

#[test]
fn a_request_without_required_fields_reaches_no_handler() {
    run(async {
        for missing in [":method", ":scheme", ":path"] {
            let shop = Shop::open().await;
            let left: Vec<_> =
                PROPER.iter().copied().filter(|(name, _)| *name != missing).collect();
            let frame = first_frame(&shop, &left, b"{}").await;
            let frame = frame.unwrap_or_else(|| panic!("{missing}: no word"));
            assert!(matches!(frame.kind, RST_STREAM | GOAWAY), "{missing}: {frame:?}");
            assert_eq!(shop.journal.entries(), [], "{missing}");
        }
    });
}

#[test]
fn a_body_with_another_length_than_announced_runs_nothing() {
    run(async {
        for length in ["0", "1", "3", "1000"] {
            let shop = Shop::open().await;
            let field: (&str, &[u8]) = ("content-length", length.as_bytes());
            let frame = first_frame(&shop, &[&PROPER[..], &[field]].concat(), b"{}").await;
            let frame = frame.unwrap_or_else(|| panic!("{length}: no word"));
            assert!(matches!(frame.kind, RST_STREAM | GOAWAY), "{length}: {frame:?}");
            assert_eq!(shop.journal.entries(), [], "{length}");
        }
        let shop = Shop::open().await;
        let field: (&str, &[u8]) = ("content-length", b"2");
        let frame = first_frame(&shop, &[&PROPER[..], &[field]].concat(), b"{}").await;
        assert_eq!(frame.map(|frame| frame.kind), Some(HEADERS));
        assert_eq!(shop.journal.lines(), ["POST /orders {}"]);
    });
}

#[test]
fn two_keys_in_one_header_block_run_nothing() {
    run(async {
        let shop = Shop::open().await;
        let again: (&str, &[u8]) = ("idempotency-key", b"k-1");
        let frame = first_frame(&shop, &[&PROPER[..], &[again]].concat(), b"{}").await;
        assert_eq!(frame.map(|frame| frame.kind), Some(HEADERS));
        assert_eq!(shop.journal.entries(), []);
    });
}
