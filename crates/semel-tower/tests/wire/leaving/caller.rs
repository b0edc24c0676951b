//! One caller, which sends its request, leaves, and retries until it has its response.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use semel_testkit::effects::HistoryEvent;

use super::request_state::{Moment, RequestState, Stage};
use super::service::LeavingService;
use crate::backend::{Answer, Client, Protocol, post};
use crate::frames::{self, CANCEL, DATA, END_STREAM, Frames};
use crate::raw::{self, Wire};

/// The number of stuck requests after which the test stops retrying.
const ENOUGH: u64 = 100;

/// The way in which a caller leaves.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// The caller closes the connection with FIN.
    Close,
    /// The caller closes the connection with RST.
    Abort,
    /// The caller cancels with RST_STREAM on a connection that stays open; HTTP/2 only.
    Cancel,
}

/// Runs the `n`-th caller, whose choices depend only on the seed.
pub(super) async fn leave_and_return(service: Arc<LeavingService>, address: SocketAddr, n: u64) {
    if service.stuck.load(Ordering::SeqCst) >= ENOUGH {
        return;
    }
    let mut rng = Rng::with_seed(service.seed.wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    let moment = Moment::ALL[rng.usize(..Moment::ALL.len())];
    let takes = [rng.u64(..2_000), rng.u64(..2_000)].map(Duration::from_micros);
    let key = format!("order-{n}");
    let body = format!(r#"{{"order":{n},"note":"{}"}}"#, "x".repeat(rng.usize(..200)));
    let state = service.expect(&key, RequestState::new(moment, takes));
    service.note(&key, HistoryEvent::Asked);
    let kept = if rng.bool() {
        let manner = [Manner::Close, Manner::Abort][rng.usize(..2)];
        leave_h1(&service, &state, address, &key, &body, manner, &mut rng).await;
        None
    } else {
        let manner = [Manner::Close, Manner::Abort, Manner::Cancel][rng.usize(..3)];
        leave_h2(&service, &state, address, &key, &body, manner, &mut rng).await
    };
    service.note(&key, HistoryEvent::Unknown { why: format!("left {moment:?}") });
    come_again(&service, address, &key, &body, &mut rng).await;
    drop(kept);
}

/// Waits for the moment to leave, after everything was sent.
async fn wait(state: &RequestState, rng: &mut Rng) {
    match state.moment {
        Moment::InTheBody | Moment::AfterSending | Moment::InTheAnswer => {}
        Moment::Anytime => tokio::time::sleep(Duration::from_micros(rng.u64(..6_000))).await,
        Moment::BeforeTheEffect => state.reached(Stage::Running).await,
        Moment::AfterTheEffect => state.reached(Stage::Done).await,
    }
}

/// Counts a caller that has left, and signals it to the handler.
async fn left(service: &LeavingService, state: &RequestState, rng: &mut Rng) {
    let at_work = matches!(state.stage(), Stage::Running | Stage::Done);
    service.leave(state, at_work);
    // Half of the handlers continue when the server has noticed, the others at any time.
    if at_work && rng.bool() && state.is_held() {
        state.noticed().await;
    }
    tokio::time::sleep(Duration::from_micros(rng.u64(..3_000))).await;
    state.leave();
}

async fn leave_h1(
    service: &LeavingService,
    state: &RequestState,
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
    let sent = if state.moment == Moment::InTheBody { rng.usize(..body.len()) } else { body.len() };
    wire.send(&[&head, &body.as_bytes()[..sent]].concat()).await;
    wait(state, rng).await;
    if state.moment == Moment::InTheAnswer {
        wire.read_some().await;
    }
    match manner {
        Manner::Close | Manner::Cancel => wire.close(),
        Manner::Abort => wire.reset(),
    }
    left(service, state, rng).await;
}

/// Returns the connection if only its stream was cancelled.
async fn leave_h2(
    service: &LeavingService,
    state: &RequestState,
    address: SocketAddr,
    key: &str,
    body: &str,
    manner: Manner,
    rng: &mut Rng,
) -> Option<Frames> {
    let mut connection = Frames::connect(address).await;
    let head = frames::post(1, 0, "/orders", key);
    let cut = state.moment == Moment::InTheBody;
    let sent = if cut { rng.usize(..body.len()) } else { body.len() };
    let flags = if cut { 0 } else { END_STREAM };
    let data = frames::frame(DATA, flags, 1, &body.as_bytes()[..sent]);
    connection.send(&[head, data].concat()).await;
    wait(state, rng).await;
    if state.moment == Moment::InTheAnswer {
        // The rest of the response is larger than the receive window.
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
    left(service, state, rng).await;
    kept
}

/// Repeats the request until there is a response, and once more for its replay.
async fn come_again(
    service: &LeavingService,
    address: SocketAddr,
    key: &str,
    body: &str,
    rng: &mut Rng,
) {
    let protocols = [Protocol::H1, Protocol::H2];
    for time in 0..2 {
        let mut client = Client::connect(address, protocols[rng.usize(..2)]).await;
        let answer = client.send(post("/orders", key, body)).await;
        if answer.status != 200 {
            let why = format!("{} {:?}", answer.status, answer.problem());
            // The request has waited in vain: this claim will never be settled.
            service.stuck.fetch_add(1, Ordering::SeqCst);
            service.note(key, HistoryEvent::NotDone { why });
            return;
        }
        assert!(time == 0 || answer.replayed(), "{key}: answered twice, and not replayed");
        service.note(
            key,
            HistoryEvent::Done { outcome: digest(&answer), replayed: answer.replayed() },
        );
    }
}

/// Returns a digest of a response's status, type and bytes.
fn digest(answer: &Answer) -> String {
    let mut hasher = DefaultHasher::new();
    (answer.status, answer.header("content-type"), &answer.body).hash(&mut hasher);
    format!("{} bytes {:016x}", answer.body.len(), hasher.finish())
}
