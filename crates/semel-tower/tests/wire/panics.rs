//! Tests that a handler that panics does not affect its connection.

use crate::backend::{Client, Protocol, run};
use crate::frames::{self, DATA, END_STREAM, Frames, HEADERS, frame};
use crate::raw::keyed;
use crate::shop::{Shop, of_ann};

#[test]
fn the_requests_behind_a_panic_are_answered() {
    run(async {
        let shop = Shop::open().await;
        let mut wire = shop.connect().await;
        let panics = keyed("/panics", "k-1", b"{}");
        wire.send(&[&panics, &keyed("/orders", "k-2", b"{}")[..], &panics, &panics].concat()).await;
        let failed = wire.answer().await.expect("an answer");
        assert_eq!((failed.status, failed.problem().as_str()), (500, "work-failed"));
        assert!(!failed.closes());
        assert!(!failed.text().contains("fire"), "the panic's message is not for callers");
        assert_eq!(wire.answer().await.expect("an answer").text(), "POST /orders {}");
        for replayed in [false, true] {
            let answer = wire.answer().await.expect("an answer");
            assert_eq!((answer.status, answer.replayed()), (200, replayed));
        }
        assert_eq!((shop.journal.times("k-1"), shop.done.times("k-1")), (2, 1));
    });
}

#[test]
fn the_streams_beside_a_panic_are_answered() {
    run(async {
        let shop = Shop::open().await;
        let mut connection = Frames::connect(shop.server.address()).await;
        let held = frames::post(1, 0, "/held", "k-1");
        connection.send(&[held, frame(DATA, END_STREAM, 1, b"{}")].concat()).await;
        shop.reached(1).await;
        let panics = frames::post(3, 0, "/panics", "k-2");
        connection.send(&[panics, frame(DATA, END_STREAM, 3, b"{}")].concat()).await;
        assert_eq!(connection.until(HEADERS).await.expect("an answer").stream, 3);
        shop.release();
        assert_eq!(connection.until(HEADERS).await.expect("an answer").stream, 1);
    });
}

#[test]
fn a_panic_after_the_caller_left_is_a_failure_like_any_other() {
    run(async {
        let shop = Shop::open().await;
        let mut wire = shop.connect().await;
        wire.send(&keyed("/burns", "k-1", b"{}")).await;
        shop.reached(1).await;
        wire.reset();
        shop.left(1).await;
        shop.release();
        let mut client = Client::connect(shop.server.address(), Protocol::H2).await;
        let answer = loop {
            let answer = client.send(of_ann("/burns", "k-1")).await;
            // The panic may not be recorded yet.
            if answer.status != 409 {
                break answer;
            }
        };
        assert_eq!((answer.status.as_u16(), answer.replayed()), (200, false));
        assert_eq!((shop.journal.times("k-1"), shop.done.times("k-1")), (2, 1));
    });
}
