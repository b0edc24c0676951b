//! Tests of responses that are sent before the request's body was read.
//!
//! The unneeded body is read all the same, or the connection is closed: otherwise the server would
//! parse the rest of it as the next request.

mod bodies;
mod expectations;

use std::time::Duration;

use futures_util::future::join_all;

use crate::backend::run;
use crate::raw::{Wire, keyed, post};
use crate::shop::Shop;

/// A body that looks like a request.
const HIDDEN: &[u8] = b"POST /admin HTTP/1.1\r\nHost: shop\r\nX-User: ann\r\n\
    Idempotency-Key: stolen\r\nContent-Length: 4\r\n\r\nevil";
/// A request that shows whether client and server agree on the position in the connection.
const PROBE: &[u8] = b"POST /probe HTTP/1.1\r\nHost: shop\r\nX-User: ann\r\n\
    Idempotency-Key: probe\r\nContent-Length: 7\r\n\r\nprobing";
const PROBED: &str = "POST /probe probing";

/// A response that the layer sends without calling a handler.
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
    /// The responses that depend on the head only.
    const OF_THE_HEAD: [Early; 4] =
        [Early::KeyInvalid, Early::KeyRepeated, Early::KeyMissing, Early::PrincipalUnknown];
    /// The responses that depend on the body.
    const OF_THE_BODY: [Early; 3] = [Early::KeyReused, Early::InProgress, Early::Replay];

    fn all() -> impl Iterator<Item = Early> {
        Self::OF_THE_HEAD.into_iter().chain(Self::OF_THE_BODY)
    }

    /// Returns the head of a request that gets this response, with these framing headers.
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

    /// Returns the status and the problem.
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

    /// Starts a shop in which the request gets this response. Also returns the number of requests
    /// so far.
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
            // The request stays there until the shop closes.
            tokio::spawn(async move { wire.answer().await });
        } else {
            assert_eq!(wire.answer().await.expect("an answer").status, 200);
        }
        (shop, 1)
    }

    async fn read_answer(self, wire: &mut Wire) -> bool {
        let answer = wire.answer().await.unwrap_or_else(|| panic!("{self:?}: no answer"));
        assert_eq!((answer.status, answer.problem().as_str()), self.answer(), "{self:?}");
        assert_eq!(answer.replayed(), self == Early::Replay, "{self:?}");
        answer.closes()
    }
}

fn length(body: &[u8]) -> String {
    format!("Content-Length: {}", body.len())
}

/// Checks that after an early response the next request on the connection gets its own response.
async fn in_step(early: Early, wire: &mut Wire, shop: &Shop, before: usize) {
    assert!(!early.read_answer(wire).await, "{early:?} closes, although its body was complete");
    let probed = wire.answer().await.unwrap_or_else(|| panic!("{early:?}: no second answer"));
    assert_eq!(probed.text(), PROBED, "{early:?}");
    let reached = shop.journal.lines();
    assert_eq!(reached[before..], [PROBED.to_owned()], "{early:?}");
}

#[test]
fn an_early_response_drains_a_sized_body() {
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
fn an_early_response_drains_a_chunked_body() {
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
fn an_early_response_drains_a_body_in_pieces() {
    run(async {
        for early in Early::all() {
            let (shop, before) = early.shop().await;
            let mut wire = shop.connect().await;
            wire.send(&early.head(&length(HIDDEN))).await;
            // Few pieces, so that they arrive within the two seconds for which a server goes on
            // reading.
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
fn an_early_response_to_half_a_body_closes_its_connection() {
    run(async {
        let halves = Early::OF_THE_HEAD.map(async |early| {
            let (shop, _) = early.shop().await;
            let mut wire = shop.connect().await;
            // The client announces more than it sends, and continues with bytes that look like a
            // request.
            let announced = format!("Content-Length: {}", HIDDEN.len() + 10);
            wire.send(&[&early.head(&announced), &b"0123456789"[..]].concat()).await;
            assert!(
                early.read_answer(&mut wire).await,
                "{early:?} does not announce that it closes"
            );
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
fn a_request_for_an_outcome_cannot_hide_another_request() {
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
