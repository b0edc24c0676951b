//! Tests of HTTP/2: many requests on one connection, and streams that end early.

mod early;
mod malformed;

use std::net::SocketAddr;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use http::Uri;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::backend::{Answer, Backend, Protocol, Sent, run};
use crate::frames::{
    self, CANCEL, DATA, END_STREAM, Frame, Frames, GOAWAY, HEADERS, PING, frame, reset,
};
use crate::shop::{Shop, of_ann};

const DUPLICATES: usize = 64;

/// One connection that many requests share.
#[derive(Clone)]
struct Shared {
    sender: http2::SendRequest<Sent>,
    address: SocketAddr,
}

impl Shared {
    async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        let handshake = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.expect("a handshake");
        tokio::spawn(connection);
        Self { sender, address }
    }

    async fn ask(&self, path: &str, key: &str) -> Answer {
        let mut request = of_ann(path, key);
        let uri = Uri::builder().scheme("http").authority(self.address.to_string());
        *request.uri_mut() = uri.path_and_query(path).build().expect("an address");
        let mut sender = self.sender.clone();
        sender.ready().await.expect("the connection is open");
        let response = sender.send_request(request).await.expect("an answer");
        Answer::of(response).await.expect("all of the answer")
    }
}

async fn of_duplicates_on_one_connection_one_runs<G: Backend>(backend: G) {
    let shop = Shop::with(backend.executor().await).await;
    let shared = Shared::connect(shop.server.address()).await;
    let asking = (0..DUPLICATES).map(|_| shared.ask("/held", "k-1"));
    let mut answers = futures_util::stream::iter(asking).buffer_unordered(DUPLICATES);
    for _ in 1..DUPLICATES {
        let answer = answers.next().await.expect("an answer");
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_deref()),
            (409, Some("in-progress"))
        );
    }
    shop.release();
    let last = answers.next().await.expect("an answer");
    assert_eq!((last.status.as_u16(), last.replayed()), (200, false));
    assert_eq!(shop.journal.times("k-1"), 1);
}

async fn duplicates_on_one_connection_that_wait_get_one_answer<G: Backend>(backend: G) {
    let shop = Shop::with(backend.executor().await).await;
    let shared = Shared::connect(shop.server.address()).await;
    let release = async {
        shop.came(DUPLICATES).await;
        shop.release();
    };
    let asking = join_all((0..DUPLICATES).map(|_| shared.ask("/waiting", "k-1")));
    let (answers, ()) = tokio::join!(asking, release);
    let replays = answers.iter().filter(|answer| answer.replayed()).count();
    assert_eq!(replays, DUPLICATES - 1);
    assert!(answers.iter().all(|answer| answer.status == 200 && answer.body == answers[0].body));
    assert_eq!(shop.journal.times("k-1"), 1);
}

async fn duplicates_that_wait_for_a_response_too_long_to_store_do_not_run_it_again<G: Backend>(
    backend: G,
) {
    let shop = Shop::with(backend.executor().await).await;
    let shared = Shared::connect(shop.server.address()).await;
    let release = async {
        shop.came(DUPLICATES).await;
        shop.release();
    };
    let asking = join_all((0..DUPLICATES).map(|_| shared.ask("/long", "k-1")));
    let (answers, ()) = tokio::join!(asking, release);
    let (answered, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|a| a.status == 200);
    assert_eq!((answered.len(), answered[0].text()), (1, "POST /long {}"));
    for answer in refused {
        let problem = answer.problem();
        assert_eq!((answer.status.as_u16(), problem.as_deref()), (409, Some("result-unavailable")));
    }
    assert_eq!(shop.journal.times("k-1"), 1);
}

mod on {
    use super::{
        duplicates_on_one_connection_that_wait_get_one_answer,
        duplicates_that_wait_for_a_response_too_long_to_store_do_not_run_it_again,
        of_duplicates_on_one_connection_one_runs,
    };

    macro_rules! on {
        ($($store:ident $backend:ident)*) => {$(
            crate::backend::tests_on! {
                $store $backend
                of_duplicates_on_one_connection_one_runs
                duplicates_on_one_connection_that_wait_get_one_answer
                duplicates_that_wait_for_a_response_too_long_to_store_do_not_run_it_again
            }
        )*};
    }

    on! { memory Memory sqlite Sqlite postgres Postgres mariadb MariaDb redis Redis }
}

/// Waits until the server has read everything that was sent before.
async fn read_by_now(connection: &mut Frames) {
    connection.send(&frame(PING, 0, 0, b"are we?!")).await;
    let pong = connection.until(PING).await.expect("the connection goes on");
    assert_eq!(pong.payload, b"are we?!");
}

#[test]
fn a_stream_that_is_reset_in_its_body_runs_nothing() {
    run(async {
        let shop = Shop::open().await;
        let mut connection = Frames::connect(shop.server.address()).await;
        let head = frames::post(1, 0, "/patient", "k-1");
        connection.send(&[head, frame(DATA, 0, 1, b"{")].concat()).await;
        shop.came(1).await;
        connection.send(&reset(1, CANCEL)).await;
        read_by_now(&mut connection).await;
        let answer = shop.ask(Protocol::H2, "/patient", "k-1").await;
        assert_eq!((answer.status.as_u16(), answer.replayed()), (200, false));
        assert_eq!(shop.journal.lines(), ["POST /patient {}"]);
    });
}

#[test]
fn a_stream_that_is_reset_while_its_handler_runs_is_finished() {
    run(async {
        let shop = Shop::open().await;
        let mut connection = Frames::connect(shop.server.address()).await;
        let head = frames::post(1, 0, "/waiting", "k-1");
        connection.send(&[head, frame(DATA, END_STREAM, 1, b"{}")].concat()).await;
        shop.reached(1).await;
        connection.send(&reset(1, CANCEL)).await;
        shop.left(1).await;
        shop.release();
        let answer = shop.ask(Protocol::H2, "/waiting", "k-1").await;
        assert_eq!((answer.status.as_u16(), answer.replayed()), (200, true));
        assert_eq!(shop.journal.times("k-1"), 1);
    });
}

#[test]
fn a_client_that_goes_away_leaves_its_requests_to_be_finished() {
    run(async {
        let shop = Shop::open().await;
        let mut connection = Frames::connect(shop.server.address()).await;
        for n in 0..8_u32 {
            let head = frames::post(2 * n + 1, 0, "/waiting", &format!("k-{n}"));
            connection.send(&[head, frame(DATA, END_STREAM, 2 * n + 1, b"{}")].concat()).await;
        }
        shop.reached(8).await;
        connection.send(&frame(GOAWAY, 0, 0, &[0; 8])).await;
        drop(connection);
        shop.left(8).await;
        shop.release();
        for n in 0..8 {
            let answer = shop.ask(Protocol::H2, "/waiting", &format!("k-{n}")).await;
            assert_eq!((answer.status.as_u16(), answer.replayed()), (200, true));
            assert_eq!(shop.journal.times(&format!("k-{n}")), 1);
        }
    });
}

#[test]
fn a_server_that_goes_away_finishes_its_requests_and_the_next_replays_them() {
    run(async {
        let backend = crate::backend::Memory::open().await;
        let shop = Shop::with(backend.executor().await).await;
        let mut connection = Frames::connect(shop.server.address()).await;
        let head = frames::post(1, 0, "/waiting", "k-1");
        connection.send(&[head, frame(DATA, END_STREAM, 1, b"{}")].concat()).await;
        shop.reached(1).await;
        let (journal, gate) = (shop.journal.clone(), shop.gate());
        let stopping = tokio::spawn(shop.server.stop());
        connection.until(GOAWAY).await.expect("the server announces its end");
        gate.send_replace(true);
        let head = connection.until(HEADERS).await.expect("an answer");
        assert_eq!(head.stream, 1);
        drop(connection);
        stopping.await.expect("the server stops");

        let next = Shop::with(backend.executor().await).await;
        let answer = next.ask(Protocol::H2, "/waiting", "k-1").await;
        assert_eq!((answer.status.as_u16(), answer.replayed()), (200, true));
        assert_eq!((journal.times("k-1"), next.journal.times("k-1")), (1, 0));
    });
}

/// Checks that a request with every key is answered: it runs now, or it ran before.
async fn none_is_stuck(shop: &Shop, keys: u32) {
    let shared = Shared::connect(shop.server.address()).await;
    let asking = (0..keys).map(|n| {
        let shared = shared.clone();
        async move { (n, shared.ask("/patient", &format!("k-{n}")).await) }
    });
    let mut answers = futures_util::stream::iter(asking).buffer_unordered(32);
    while let Some((n, answer)) = answers.next().await {
        assert_eq!(answer.status, 200, "k-{n}: {:?}", answer.problem());
        assert_eq!(shop.journal.times(&format!("k-{n}")), 1, "k-{n}");
    }
}

#[test]
fn hundreds_of_resets_in_a_row_leave_nothing_stuck() {
    const RESETS: u32 = 500;
    run(async {
        let shop = Shop::open().await;
        let mut connection = Frames::connect(shop.server.address()).await;
        for n in 0..RESETS {
            let stream = 2 * n + 1;
            let head = frames::post(stream, 0, "/patient", &format!("k-{n}"));
            connection.send(&[head, frame(DATA, END_STREAM, stream, b"{}")].concat()).await;
            // The server may take resets of requests that it has not read yet for an attack.
            shop.came(n as usize + 1).await;
            connection.send(&reset(stream, CANCEL)).await;
        }
        read_by_now(&mut connection).await;
        none_is_stuck(&shop, RESETS).await;
    });
}

#[test]
fn a_burst_of_resets_that_ends_the_connection_leaves_nothing_stuck() {
    const RESETS: u32 = 300;
    run(async {
        let shop = Shop::open().await;
        let mut connection = Frames::connect(shop.server.address()).await;
        let mut burst = Vec::new();
        for n in 0..RESETS {
            let stream = 2 * n + 1;
            burst.extend(frames::post(stream, 0, "/patient", &format!("k-{n}")));
            burst.extend(frame(DATA, END_STREAM, stream, b"{}"));
            burst.extend(reset(stream, CANCEL));
        }
        connection.send(&burst).await;
        // The server protects itself by ending the connection; requests that have begun are
        // finished.
        let went = connection.until(GOAWAY).await;
        assert!(went.as_ref().is_none_or(|went: &Frame| went.code() != 0), "{went:?}");
        none_is_stuck(&shop, RESETS).await;
    });
}
