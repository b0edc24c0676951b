//! `Expect: 100-continue`: who asks before it sends is told no, or is told to go on.

use super::{Early, HIDDEN, PROBE, PROBED, length};
use crate::backend::run;
use crate::raw::{keyed, post};
use crate::shop::Shop;

const EXPECT: &str = "Expect: 100-continue";

#[test]
fn who_asks_first_is_refused_without_being_asked_for_the_body() {
    run(async {
        for early in Early::OF_THE_HEAD {
            for framing in [length(HIDDEN), "Transfer-Encoding: chunked".to_owned()] {
                let (shop, _) = early.shop().await;
                let mut wire = shop.connect().await;
                wire.send(&early.head(&format!("{framing}\r\n{EXPECT}"))).await;
                // The first answer is the last one: no `100 Continue` before it.
                assert!(early.hear(&mut wire).await, "{early:?} keeps the connection");
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
fn who_asks_first_with_a_body_that_is_too_large_need_not_send_it() {
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
fn who_asks_first_is_told_to_go_on_before_it_runs_and_before_a_replay() {
    run(async {
        let shop = Shop::open().await;
        for replayed in [false, true] {
            let mut wire = shop.connect().await;
            let headers = ["Idempotency-Key: k-1", EXPECT, &length(HIDDEN)];
            wire.send(&post("/orders", &headers, b"")).await;
            assert_eq!(wire.answer().await.expect("a word").status, 100);
            wire.send(&[HIDDEN, PROBE].concat()).await;
            let answer = wire.answer().await.expect("an answer");
            assert_eq!((answer.status, answer.replayed()), (200, replayed));
            assert_eq!(wire.answer().await.expect("an answer").text(), PROBED);
        }
        assert_eq!(shop.journal.entries().len(), 2, "one order and one probe");
    });
}

#[test]
fn a_key_that_is_in_use_is_told_to_who_asked_first() {
    run(async {
        for early in [Early::KeyReused, Early::InProgress] {
            let (shop, before) = early.shop().await;
            let mut wire = shop.connect().await;
            wire.send(&early.head(&format!("{}\r\n{EXPECT}", length(HIDDEN)))).await;
            // Whether it is the same request only its body can tell.
            assert_eq!(wire.answer().await.expect("a word").status, 100, "{early:?}");
            wire.send(&[HIDDEN, PROBE].concat()).await;
            super::in_step(early, &mut wire, &shop, before).await;
        }
    });
}

#[test]
fn who_asks_first_without_a_body_is_answered() {
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
