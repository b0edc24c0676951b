//! Tests of unneeded bodies that are too long or too slow to be read.

use std::time::Duration;

use super::{Early, HIDDEN, PROBE, PROBED, length};
use crate::backend::run;
use crate::raw::{Answer, post};
use crate::shop::Shop;

/// The number of bytes of an unneeded body that are read.
const DRAINED: usize = 64 << 10;

fn chunked(body: &[u8]) -> Vec<u8> {
    let size = format!("{:x}\r\n", body.len());
    [size.as_bytes(), body, b"\r\n0\r\n\r\n"].concat()
}

#[test]
fn a_body_that_is_too_large_ends_its_connection() {
    run(async {
        let sized = post("/small", &["Idempotency-Key: k-1", &length(HIDDEN)], HIDDEN);
        let framing = ["Idempotency-Key: k-1", "Transfer-Encoding: chunked"];
        let chunked = post("/small", &framing, &chunked(HIDDEN));
        let two_chunks =
            [b"10\r\n0123456789abcdef\r\n", &super::bodies::chunked(HIDDEN)[..]].concat();
        let later = post("/small", &framing, &two_chunks);
        for request in [sized, chunked, later] {
            let shop = Shop::open().await;
            let mut wire = shop.connect().await;
            wire.send(&[&request, PROBE].concat()).await;
            let answer = wire.answer().await.expect("an answer");
            assert_eq!((answer.status, answer.problem().as_str()), (413, "body-too-large"));
            assert!(answer.closes());
            assert!(wire.answer().await.is_none(), "the connection goes on");
            assert_eq!(shop.journal.lines(), Vec::<String>::new());
        }
    });
}

#[test]
fn a_body_at_the_limit_is_not_too_large() {
    run(async {
        let shop = Shop::open().await;
        let mut wire = shop.connect().await;
        let body = b"0123456789abcdef";
        let request = post("/small", &["Idempotency-Key: k-1", &length(body)], body);
        wire.send(&[&request, PROBE].concat()).await;
        assert_eq!(wire.answer().await.expect("an answer").text(), "POST /small 0123456789abcdef");
        assert_eq!(wire.answer().await.expect("an answer").text(), PROBED);
    });
}

/// Returns the response to a request with an invalid key and this body, and whether the next
/// request was answered.
async fn dismissed(body: &[u8], in_chunks: bool) -> (Answer, bool) {
    let shop = Shop::open().await;
    let mut wire = shop.connect().await;
    let request = if in_chunks {
        [Early::KeyInvalid.head("Transfer-Encoding: chunked"), chunked(body)].concat()
    } else {
        [&Early::KeyInvalid.head(&length(body)), body].concat()
    };
    let answer = wire.converse(&request).await.expect("an answer");
    if answer.closes() {
        assert!(wire.answer().await.is_none(), "the connection goes on");
        return (answer, false);
    }
    wire.send(PROBE).await;
    let probed = wire.answer().await.expect("a second answer");
    assert_eq!(probed.text(), PROBED);
    assert_eq!(shop.journal.lines(), [PROBED]);
    (answer, true)
}

#[test]
fn an_unneeded_body_is_read_up_to_the_limit() {
    run(async {
        for in_chunks in [false, true] {
            for (length, kept) in [(DRAINED, true), (DRAINED + 1, false)] {
                let (answer, was_kept) = dismissed(&vec![b'x'; length], in_chunks).await;
                assert_eq!((answer.status, answer.problem().as_str()), (400, "key-invalid"));
                assert_eq!(was_kept, kept, "{length} bytes, in chunks: {in_chunks}");
            }
        }
    });
}

#[test]
fn a_client_that_keeps_writing_gets_the_refusal() {
    run(async {
        // More than the buffers of both sockets hold.
        let body = vec![b'x'; 24 << 20];
        for in_chunks in [false, true] {
            let (answer, kept) = dismissed(&body, in_chunks).await;
            assert_eq!((answer.status, kept), (400, false));
            assert_eq!(answer.problem(), "key-invalid");
        }
        let shop = Shop::open().await;
        for framing in [length(&body), "Transfer-Encoding: chunked".to_owned()] {
            let rest = if framing.starts_with('T') { chunked(&body) } else { body.clone() };
            let request = post("/small", &["Idempotency-Key: k-1", &framing], &rest);
            let mut wire = shop.connect().await;
            let answer = wire.converse(&request).await.expect("an answer");
            assert_eq!((answer.status, answer.problem().as_str()), (413, "body-too-large"));
            assert!(answer.closes());
        }
        assert_eq!(shop.journal.lines(), Vec::<String>::new());
    });
}

#[test]
fn a_client_that_reads_after_it_has_written_is_not_reset_before() {
    run(async {
        // More than the buffers of both sockets hold, so that the client cannot write unless the
        // server reads.
        let body = vec![b'x'; 24 << 20];
        let shop = Shop::open().await;
        for (framing, body) in [
            (length(&body), body.clone()),
            ("Transfer-Encoding: chunked".to_owned(), chunked(&body)),
        ] {
            let too_large = post("/small", &["Idempotency-Key: k-1", &framing], &body);
            let key_invalid = [Early::KeyInvalid.head(&framing), body].concat();
            for (request, status) in [(too_large, 413), (key_invalid, 400)] {
                let mut wire = shop.connect().await;
                wire.send_whole(&request).await;
                let answer = wire.answer().await.expect("an answer");
                assert_eq!((answer.status, answer.closes()), (status, true), "{framing}");
                assert!(wire.answer().await.is_none(), "the connection goes on");
            }
        }
        assert_eq!(shop.journal.lines(), Vec::<String>::new());
    });
}

#[test]
fn a_slow_body_is_not_waited_for() {
    run(async {
        let shop = Shop::open().await;
        let mut tries = 0;
        let mut wire = loop {
            tries += 1;
            assert!(tries < 20, "answered before the body had a chance, again and again");
            let mut wire = shop.connect().await;
            // At this rate the body would take an hour.
            wire.send(&Early::KeyInvalid.head("Content-Length: 60000")).await;
            let mut drops = 0;
            while !wire.answers_within(Duration::from_millis(60)).await {
                wire.send(b"x").await;
                drops += 1;
                assert!(drops < 1_000, "a minute of drops, and no answer");
            }
            // The response came before any byte of the body, which may happen on a busy machine.
            if drops > 0 {
                break wire;
            }
        };
        assert!(
            Early::KeyInvalid.read_answer(&mut wire).await,
            "the response does not announce that it closes"
        );
        wire.send(PROBE).await;
        assert!(wire.answer().await.is_none(), "the connection goes on");
        assert_eq!(shop.journal.lines(), Vec::<String>::new());
    });
}
