//! Tests of `Expect: 100-continue`: the client is refused, or gets `100 Continue`.

use super::{Early, HIDDEN, PROBE, PROBED, length};
use crate::backend::run;
use crate::raw::{keyed, post};
use crate::shop::Shop;

const EXPECT: &str = "Expect: 100-continue";

#[test]
fn an_expecting_client_is_refused_without_100_continue() {
    run(async {
        for early in Early::OF_THE_HEAD {
            for framing in [length(HIDDEN), "Transfer-Encoding: chunked".to_owned()] {
                let (shop, _) = early.shop().await;
                let mut wire = shop.connect().await;
                wire.send(&early.head(&format!("{framing}\r\n{EXPECT}"))).await;
                // The refusal is the first response, without a `100 Continue` before it.
                assert!(early.read_answer(&mut wire).await, "{early:?} keeps the connection");
                // A client may have sent its body in the meantime.
                wire.send(HIDDEN).await;
                wire.send(PROBE).await;
                assert!(wire.answer().await.is_none(), "{early:?}: the connection goes on");
                assert_eq!(shop.journal.lines(), Vec::<String>::new(), "{early:?}");
            }
        }
    });
}

#[test]
fn an_expecting_client_with_too_large_a_body_need_not_send_it() {
    run(async {
        let shop = Shop::open().await;
        let mut wire = shop.connect().await;
        let headers = ["Idempotency-Key: k-1", EXPECT, "Content-Length: 1000000"];
        wire.send(&post("/small", &headers, b"")).await;
        let answer = wire.answer().await.expect("an answer");
        assert_eq!((answer.status, answer.closes()), (413, true));
        assert!(wire.answer().await.is_none(), "the connection goes on");
    });
}

#[test]
fn an_expecting_client_gets_100_continue_before_it_runs_and_before_a_replay() {
    run(async {
        let shop = Shop::open().await;
        for replayed in [false, true] {
            let mut wire = shop.connect().await;
            let headers = ["Idempotency-Key: k-1", EXPECT, &length(HIDDEN)];
            wire.send(&post("/orders", &headers, b"")).await;
            assert_eq!(wire.answer().await.expect("a response").status, 100);
            wire.send(&[HIDDEN, PROBE].concat()).await;
            let answer = wire.answer().await.expect("an answer");
            assert_eq!((answer.status, answer.replayed()), (200, replayed));
            assert_eq!(wire.answer().await.expect("an answer").text(), PROBED);
        }
        assert_eq!(shop.journal.entries().len(), 2, "one order and one probe");
    });
}

#[test]
fn an_expecting_client_gets_100_continue_before_a_conflict() {
    run(async {
        for early in [Early::KeyReused, Early::InProgress] {
            let (shop, before) = early.shop().await;
            let mut wire = shop.connect().await;
            wire.send(&early.head(&format!("{}\r\n{EXPECT}", length(HIDDEN)))).await;
            // Only the body shows whether it is the same request.
            assert_eq!(wire.answer().await.expect("a response").status, 100, "{early:?}");
            wire.send(&[HIDDEN, PROBE].concat()).await;
            super::in_step(early, &mut wire, &shop, before).await;
        }
    });
}

#[test]
fn an_expecting_client_without_a_body_is_answered() {
    run(async {
        let shop = Shop::open().await;
        let mut wire = shop.connect().await;
        let request = keyed("/orders", "k-1", b"");
        let text = String::from_utf8(request).expect("text");
        let request = text.replace("\r\n\r\n", &format!("\r\n{EXPECT}\r\n\r\n"));
        wire.send(&[request.as_bytes(), PROBE].concat()).await;
        assert_eq!(wire.answer().await.expect("an answer").text(), "POST /orders ");
        assert_eq!(wire.answer().await.expect("an answer").text(), PROBED);
    });
}
