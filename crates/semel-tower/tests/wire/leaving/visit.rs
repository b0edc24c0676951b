//! One caller: it comes, it leaves, it comes again until it has its answer.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use semel_testkit::effects::Told;

use super::desk::{Desk, Moment, Stage};
use super::office::Office;
use crate::backend::{Answer, Client, Protocol, post};
use crate::frames::{self, CANCEL, DATA, END_STREAM, Frames};
use crate::raw::{self, Wire};

/// Enough is known when so many were stranded.
const ENOUGH: u64 = 100;

/// How a caller leaves.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// FIN.
    Close,
    /// RST.
    Abort,
    /// RST_STREAM, on a connection that stays; HTTP/2 only.
    Cancel,
}

/// The `n`-th caller, whose choices depend on the seed alone.
pub(super) async fn leave_and_return(office: Arc<Office>, address: SocketAddr, n: u64) {
    if office.stuck.load(Ordering::SeqCst) >= ENOUGH {
        return;
    }
    let mut rng = Rng::with_seed(office.seed.wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    let moment = Moment::ALL[rng.usize(..Moment::ALL.len())];
    let takes = [rng.u64(..2_000), rng.u64(..2_000)].map(Duration::from_micros);
    let key = format!("order-{n}");
    let body = format!(r#"{{"order":{n},"note":"{}"}}"#, "x".repeat(rng.usize(..200)));
    let desk = office.expect(&key, Desk::new(moment, takes));
    office.note(&key, Told::Asked);
    let kept = if rng.bool() {
        let manner = [Manner::Close, Manner::Abort][rng.usize(..2)];
        leave_h1(&office, &desk, address, &key, &body, manner, &mut rng).await;
        None
    } else {
        let manner = [Manner::Close, Manner::Abort, Manner::Cancel][rng.usize(..3)];
        leave_h2(&office, &desk, address, &key, &body, manner, &mut rng).await
    };
    office.note(&key, Told::Unknown { why: format!("left {moment:?}") });
    come_again(&office, address, &key, &body, &mut rng).await;
    drop(kept);
}

/// Waits for the moment to leave, once everything was sent.
async fn wait(desk: &Desk, rng: &mut Rng) {
    match desk.moment {
        Moment::InTheBody | Moment::AfterSending | Moment::InTheAnswer => {}
        Moment::Anytime => tokio::time::sleep(Duration::from_micros(rng.u64(..6_000))).await,
        Moment::BeforeTheEffect => desk.reached(Stage::Running).await,
        Moment::AfterTheEffect => desk.reached(Stage::Done).await,
    }
}

/// Counts a caller who has left, and lets the handler know.
async fn left(office: &Office, desk: &Desk, rng: &mut Rng) {
    let at_work = matches!(desk.stage(), Stage::Running | Stage::Done);
    office.leave(desk, at_work);
    // Half of the handlers go on when the server has noticed, the others whenever they like.
    if at_work && rng.bool() && desk.is_held() {
        desk.noticed().await;
    }
    tokio::time::sleep(Duration::from_micros(rng.u64(..3_000))).await;
    desk.leave();
}

async fn leave_h1(
    office: &Office,
    desk: &Desk,
    address: SocketAddr,
    key: &str,
    body: &str,
    manner: Manner,
    rng: &mut Rng,
) {
    let mut wire = Wire::connect(address).await;
    let (key, length) =
        (format!("Idempotency-Key: {key}"), format!("Content-Length: {}", body.len()));
    let head = raw::post("/orders", &[&key, &length], b"");
    let sent = if desk.moment == Moment::InTheBody { rng.usize(..body.len()) } else { body.len() };
    wire.send(&[&head, &body.as_bytes()[..sent]].concat()).await;
    wait(desk, rng).await;
    if desk.moment == Moment::InTheAnswer {
        wire.hear_something().await;
    }
    match manner {
        Manner::Close | Manner::Cancel => wire.close(),
        Manner::Abort => wire.reset(),
    }
    left(office, desk, rng).await;
}

/// Gives back the connection if only its stream was cancelled.
async fn leave_h2(
    office: &Office,
    desk: &Desk,
    address: SocketAddr,
    key: &str,
    body: &str,
    manner: Manner,
    rng: &mut Rng,
) -> Option<Frames> {
    let mut connection = Frames::connect(address).await;
    let head = frames::post(1, 0, "/orders", key);
    let cut = desk.moment == Moment::InTheBody;
    let sent = if cut { rng.usize(..body.len()) } else { body.len() };
    let flags = if cut { 0 } else { END_STREAM };
    let data = frames::frame(DATA, flags, 1, &body.as_bytes()[..sent]);
    connection.send(&[head, data].concat()).await;
    wait(desk, rng).await;
    if desk.moment == Moment::InTheAnswer {
        // More of it than we have room for is still to come.
        connection.until(DATA).await.expect("an answer begins");
    }
    let kept = match manner {
        Manner::Close => {
            drop(connection);
            None
        }
        Manner::Abort => {
            connection.abort();
            None
        }
        Manner::Cancel => {
            connection.send(&frames::reset(1, CANCEL)).await;
            Some(connection)
        }
    };
    left(office, desk, rng).await;
    kept
}

/// The same request until there is an answer, and once more for its replay.
async fn come_again(office: &Office, address: SocketAddr, key: &str, body: &str, rng: &mut Rng) {
    let protocols = [Protocol::H1, Protocol::H2];
    for time in 0..2 {
        let mut client = Client::connect(address, protocols[rng.usize(..2)]).await;
        let answer = client.send(post("/orders", key, body)).await;
        if answer.status != 200 {
            let why = format!("{} {:?}", answer.status, answer.problem());
            // The request has waited for it: nobody will ever settle this claim.
            office.stuck.fetch_add(1, Ordering::SeqCst);
            office.note(key, Told::NotDone { why });
            return;
        }
        assert!(time == 0 || answer.replayed(), "{key}: answered twice, and not replayed");
        office.note(key, Told::Done { outcome: digest(&answer), replayed: answer.replayed() });
    }
}

/// Stands for an answer's status, type and bytes.
fn digest(answer: &Answer) -> String {
    let mut hasher = DefaultHasher::new();
    (answer.status, answer.header("content-type"), &answer.body).hash(&mut hasher);
    format!("{} bytes {:016x}", answer.body.len(), hasher.finish())
}
