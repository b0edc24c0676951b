//! Answers that come before their request's body was read.
//!
//! The body that nobody wanted is read all the same, or the connection ends: what is left of it
//! would be taken for the next request.

mod bodies;
mod expectations;

use std::time::Duration;

use futures_util::future::join_all;

use crate::backend::run;
use crate::raw::{Wire, keyed, post};
use crate::shop::Shop;

/// A body that is a request.
const HIDDEN: &[u8] = b"POST /admin HTTP/1.1\r\nHost: shop\r\nX-User: ann\r\n\
    Idempotency-Key: stolen\r\nContent-Length: 4\r\n\r\nevil";
/// A request to see whether the connection is in step.
const PROBE: &[u8] = b"POST /probe HTTP/1.1\r\nHost: shop\r\nX-User: ann\r\n\
    Idempotency-Key: probe\r\nContent-Length: 7\r\n\r\nprobing";
const PROBED: &str = "POST /probe probing";

/// An answer that no handler makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Early {
    KeyInvalid,
    KeyRepeated,
    KeyMissing,
    PrincipalUnknown,
    KeyReused,
    InProgress,
    Replay,
}

impl Early {
    /// Those that are made of the head alone.
    const OF_THE_HEAD: [Early; 4] =
        [Early::KeyInvalid, Early::KeyRepeated, Early::KeyMissing, Early::PrincipalUnknown];
    /// Those that need the body.
    const OF_THE_BODY: [Early; 3] = [Early::KeyReused, Early::InProgress, Early::Replay];

    fn all() -> impl Iterator<Item = Early> {
        Self::OF_THE_HEAD.into_iter().chain(Self::OF_THE_BODY)
    }

    /// The head of a request with a body of `length` bytes that is answered so.
    fn head(self, framing: &str) -> Vec<u8> {
        let key = "Idempotency-Key: k-1";
        match self {
            Early::KeyInvalid => post("/orders", &["Idempotency-Key: \"open", framing], b""),
            Early::KeyRepeated => post("/orders", &[key, framing, key], b""),
            Early::KeyMissing => post("/required", &[framing], b""),
            Early::PrincipalUnknown => {
                let head = format!("POST /orders HTTP/1.1\r\nHost: shop\r\n{key}\r\n{framing}");
                format!("{head}\r\n\r\n").into_bytes()
            }
            Early::InProgress => post("/held", &[key, framing], b""),
            Early::KeyReused | Early::Replay => post("/orders", &[key, framing], b""),
        }
    }

    /// Status and problem.
    fn answer(self) -> (u16, &'static str) {
        match self {
            Early::KeyInvalid | Early::KeyRepeated => (400, "key-invalid"),
            Early::KeyMissing => (400, "key-missing"),
            Early::PrincipalUnknown => (401, "principal-unknown"),
            Early::KeyReused => (422, "key-reused"),
            Early::InProgress => (409, "in-progress"),
            Early::Replay => (200, ""),
        }
    }

    /// A shop where the request will be answered so, and how many requests reached it by now.
    async fn shop(self) -> (Shop, usize) {
        let shop = Shop::open().await;
        let first = match self {
            Early::KeyReused => Some(keyed("/orders", "k-1", b"something else")),
            Early::Replay => Some(keyed("/orders", "k-1", HIDDEN)),
            Early::InProgress => Some(keyed("/held", "k-1", HIDDEN)),
            Early::KeyInvalid
            | Early::KeyRepeated
            | Early::KeyMissing
            | Early::PrincipalUnknown => None,
        };
        let Some(first) = first else { return (shop, 0) };
        let mut wire = shop.connect().await;
        wire.send(&first).await;
        shop.reached(1).await;
        if self == Early::InProgress {
            // It stays there until the shop closes.
            tokio::spawn(async move { wire.answer().await });
        } else {
            assert_eq!(wire.answer().await.expect("an answer").status, 200);
        }
        (shop, 1)
    }

    async fn hear(self, wire: &mut Wire) -> bool {
        let answer = wire.answer().await.unwrap_or_else(|| panic!("{self:?}: no answer"));
        assert_eq!((answer.status, answer.problem().as_str()), self.answer(), "{self:?}");
        assert_eq!(answer.replayed(), self == Early::Replay, "{self:?}");
        answer.closes()
    }
}

fn length(body: &[u8]) -> String {
    format!("Content-Length: {}", body.len())
}

/// After an early answer the next request on the connection is answered as itself.
async fn in_step(early: Early, wire: &mut Wire, shop: &Shop, before: usize) {
    assert!(!early.hear(wire).await, "{early:?} closes, though its body was there");
    let probed = wire.answer().await.unwrap_or_else(|| panic!("{early:?}: no second answer"));
    assert_eq!(probed.text(), PROBED, "{early:?}");
    let reached = shop.journal.lines();
    assert_eq!(reached[before..], [PROBED.to_owned()], "{early:?}");
}

#[test]
fn an_early_answer_takes_a_sized_body_with_it() {
    run(async {
        for early in Early::all() {
            let (shop, before) = early.shop().await;
            let mut wire = shop.connect().await;
            wire.send(&[&early.head(&length(HIDDEN)), HIDDEN, PROBE].concat()).await;
            in_step(early, &mut wire, &shop, before).await;
        }
    });
}

#[test]
fn an_early_answer_takes_a_chunked_body_with_it() {
    run(async {
        let size = format!("{:x}\r\n", HIDDEN.len());
        let chunked = [size.as_bytes(), HIDDEN, b"\r\n0\r\n\r\n"].concat();
        for early in Early::all() {
            let (shop, before) = early.shop().await;
            let mut wire = shop.connect().await;
            let head = early.head("Transfer-Encoding: chunked");
            wire.send(&[&head, &chunked[..], PROBE].concat()).await;
            in_step(early, &mut wire, &shop, before).await;
        }
    });
}

#[test]
fn an_early_answer_takes_a_body_with_it_that_comes_in_pieces() {
    run(async {
        for early in Early::all() {
            let (shop, before) = early.shop().await;
            let mut wire = shop.connect().await;
            wire.send(&early.head(&length(HIDDEN))).await;
            // Few, so that they come within the two seconds for which a server reads on.
            for piece in HIDDEN.chunks(HIDDEN.len().div_ceil(4)) {
                tokio::time::sleep(Duration::from_millis(1)).await;
                wire.send(piece).await;
            }
            wire.send(PROBE).await;
            in_step(early, &mut wire, &shop, before).await;
        }
    });
}

#[test]
fn an_early_answer_to_half_a_body_ends_its_connection() {
    run(async {
        let halves = Early::OF_THE_HEAD.map(async |early| {
            let (shop, _) = early.shop().await;
            let mut wire = shop.connect().await;
            // Announces more than it sends, and goes on with what looks like a request.
            let announced = format!("Content-Length: {}", HIDDEN.len() + 10);
            wire.send(&[&early.head(&announced), &b"0123456789"[..]].concat()).await;
            assert!(early.hear(&mut wire).await, "{early:?} does not say that it closes");
            wire.send(HIDDEN).await;
            wire.send(PROBE).await;
            assert!(wire.answer().await.is_none(), "{early:?}: the connection goes on");
            assert_eq!(shop.journal.lines(), Vec::<String>::new(), "{early:?}");
        });
        join_all(halves).await;
    });
}

#[test]
fn an_answer_that_needs_the_body_waits_for_it() {
    run(async {
        for early in Early::OF_THE_BODY {
            let (shop, before) = early.shop().await;
            let mut wire = shop.connect().await;
            let (one, two) = HIDDEN.split_at(HIDDEN.len() / 2);
            wire.send(&[&early.head(&length(HIDDEN)), one].concat()).await;
            assert!(!wire.answers_within(Duration::from_millis(200)).await, "{early:?}");
            wire.send(&[two, PROBE].concat()).await;
            in_step(early, &mut wire, &shop, before).await;
        }
    });
}

#[test]
fn who_asks_after_an_operation_cannot_hide_a_request_in_the_question() {
    run(async {
        let shop = Shop::open().await;
        let mut wire = shop.connect().await;
        let head = format!(
            "GET {}01ARZ3NDEKTSV4RRFFQ69G5FAV HTTP/1.1\r\nHost: shop\r\nX-User: ann\r\n{}\r\n\r\n",
            semel_tower::http::OPERATIONS,
            length(HIDDEN),
        );
        wire.send(&[head.as_bytes(), HIDDEN, PROBE].concat()).await;
        let answer = wire.answer().await.expect("an answer");
        assert_eq!((answer.status, answer.problem().as_str()), (404, "operation-unknown"));
        let probed = wire.answer().await.expect("a second answer");
        assert_eq!(probed.text(), PROBED);
        assert_eq!(shop.journal.lines(), [PROBED]);
    });
}
