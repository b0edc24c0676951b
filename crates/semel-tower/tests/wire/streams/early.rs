//! Tests of early responses over HTTP/2: the stream ends, the connection continues.

use super::read_by_now;
use crate::backend::run;
use crate::frames::{self, DATA, END_STREAM, Frame, Frames, HEADERS, RST_STREAM, frame};
use crate::shop::Shop;

const NO_ERROR: u32 = 0;

/// Reads the frames of a stream until it is reset. Returns the data and the last frame.
async fn read_stream(connection: &mut Frames, stream: u32) -> (Vec<u8>, Frame) {
    let mut kinds = Vec::new();
    loop {
        let frame = connection.next().await.expect("the connection goes on");
        if frame.stream != stream {
            continue;
        }
        if frame.kind == RST_STREAM {
            return (kinds, frame);
        }
        kinds.push(frame.kind);
    }
}

/// Checks that the response on stream 1 is complete, that the rest of its body is refused without
/// an error, and that stream 3 is answered.
async fn goes_on(shop: &Shop, connection: &mut Frames) {
    let (kinds, reset) = read_stream(connection, 1).await;
    assert_eq!(kinds.first(), Some(&HEADERS), "{kinds:?}");
    assert!(kinds.contains(&DATA), "{kinds:?}");
    assert_eq!(reset.code(), NO_ERROR, "a client would take another code for a failure");
    // Frames that were under way when the stream was reset are ignored.
    connection.send(&frame(DATA, END_STREAM, 1, b"POST /admin HTTP/1.1")).await;
    let head = frames::post(3, 0, "/orders", "k-3");
    connection.send(&[head, frame(DATA, END_STREAM, 3, b"{}")].concat()).await;
    let answer = connection.until(HEADERS).await.expect("an answer");
    assert_eq!(answer.stream, 3);
    read_by_now(connection).await;
    assert_eq!(shop.journal.lines(), ["POST /orders {}"]);
}

#[test]
fn a_body_that_is_too_large_ends_its_stream_only() {
    run(async {
        let shop = Shop::open().await;
        let mut connection = Frames::connect(shop.server.address()).await;
        let head = frames::post(1, 0, "/small", "k-1");
        connection.send(&[head, frame(DATA, 0, 1, &[b'x'; 1_000])].concat()).await;
        goes_on(&shop, &mut connection).await;
    });
}

#[test]
fn an_invalid_key_with_a_body_that_never_ends_ends_its_stream_only() {
    run(async {
        let shop = Shop::open().await;
        let mut connection = Frames::connect(shop.server.address()).await;
        let head = frames::post(1, 0, "/orders", "a,b");
        connection.send(&[head, frame(DATA, 0, 1, b"POST /admin")].concat()).await;
        goes_on(&shop, &mut connection).await;
    });
}
