//! Tests of responses that break off, never end or are dropped.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use semel_tower::client::{Attempts, CallLayer, Dialect, Error, ReadAheadBody};
use tower::{Layer as _, ServiceExt as _};

/// A piece of a response body.
#[derive(Clone)]
enum Piece {
    Data(&'static str),
    Trailers,
    Cut,
    Silence,
}

/// A response body in pieces, which counts the pieces that were read.
#[derive(Clone)]
struct Pieces {
    pieces: VecDeque<Piece>,
    size: Option<u64>,
    taken: Arc<AtomicUsize>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(Piece::Silence) = self.pieces.front() {
            return Poll::Pending;
        }
        let piece = self.pieces.pop_front();
        self.taken.fetch_add(usize::from(piece.is_some()), Ordering::SeqCst);
        Poll::Ready(match piece {
            None => None,
            Some(Piece::Data(text)) => Some(Ok(Frame::data(Bytes::from_static(text.as_bytes())))),
            Some(Piece::Trailers) => {
                let trailers =
                    HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]);
                Some(Ok(Frame::trailers(trailers)))
            }
            Some(Piece::Cut) => Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof))),
            Some(Piece::Silence) => unreachable!("silence stays in front"),
        })
    }

    fn size_hint(&self) -> SizeHint {
        self.size.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

struct Responses {
    answers: Mutex<VecDeque<Response<Pieces>>>,
    taken: Arc<AtomicUsize>,
}

impl Responses {
    fn new() -> Self {
        Self { answers: Mutex::default(), taken: Arc::default() }
    }

    fn then(
        self,
        status: u16,
        content_type: &str,
        size: Option<u64>,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Self {
        let taken = Arc::clone(&self.taken);
        let body = Pieces { pieces: pieces.into_iter().collect(), size, taken };
        let response = Response::builder().status(status).header("content-type", content_type);
        self.answers.lock().unwrap().push_back(response.body(body).unwrap());
        self
    }

    async fn run(self, layer: CallLayer) -> (Response<ReadAheadBody<Pieces>>, usize) {
        let taken = Arc::clone(&self.taken);
        let responses = Arc::new(self);
        let inner = tower::service_fn(move |_: Request<&'static str>| {
            let next = responses.answers.lock().unwrap().pop_front().expect("no more answers");
            async move { Ok::<_, io::Error>(next) }
        });
        let request = Request::post("http://provider/charges").body("{}").unwrap();
        let answer: Result<_, Error<io::Error>> = layer.layer(inner).oneshot(request).await;
        (answer.unwrap(), taken.load(Ordering::SeqCst))
    }
}

fn layer() -> CallLayer {
    CallLayer::new(Dialect::standard())
}

const JSON: &str = "application/json; charset=utf-8";

#[tokio::test(start_paused = true)]
async fn a_response_that_breaks_off_is_tried_again() {
    use Piece::{Cut, Data, Silence, Trailers};
    for (content_type, size, last) in [
        (JSON, None, Cut),
        ("application/problem+json", None, Silence),
        ("text/plain", Some(8), Cut),
        ("text/plain", Some(8), Silence),
    ] {
        let responses = Responses::new().then(201, content_type, size, [Data("half"), last]).then(
            201,
            content_type,
            size,
            [Data("half"), Data("half"), Trailers],
        );
        let (answer, _) = responses.run(layer()).await;
        assert_eq!(answer.extensions().get(), Some(&Attempts(2)), "{content_type}");
        let whole = answer.into_body().collect().await.unwrap();
        assert_eq!(whole.trailers().unwrap()["x-sum"], "7");
        assert_eq!(whole.to_bytes(), "halfhalf");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_response_breaks_off_at_the_same_place_for_the_caller() {
    use Piece::{Cut, Data};
    let responses = Responses::new().then(201, JSON, None, [Cut]).then(
        201,
        JSON,
        None,
        [Data("ha"), Data("lf"), Cut],
    );
    let (answer, _) = responses.run(layer().tries(2)).await;
    assert_eq!(answer.extensions().get(), Some(&Attempts(2)));
    let mut body = answer.into_body();
    for expected in ["ha", "lf"] {
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), expected);
    }
    assert_eq!(body.frame().await.unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_was_read_ahead_is_returned_if_no_try_is_left() {
    use Piece::{Cut, Data};
    let responses = Responses::new().then(201, JSON, None, [Data("half"), Cut]);
    let (answer, _) = responses.run(layer().budget(Duration::ZERO)).await;
    let mut body = answer.into_body();
    assert!(!body.is_end_stream());
    assert_eq!(body.size_hint().lower(), 4);
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
    assert_eq!(body.frame().await.unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_returned_as_soon_as_it_begins() {
    use Piece::{Data, Silence};
    for (content_type, size) in
        [("text/event-stream", None), ("application/x-ndjson", None), ("text/plain", Some(1 << 20))]
    {
        let responses = Responses::new().then(200, content_type, size, [Data("data: 1"), Silence]);
        let (answer, taken) = responses.run(layer()).await;
        assert_eq!((answer.extensions().get(), taken), (Some(&Attempts(1)), 0), "{content_type}");
    }
    let responses = Responses::new().then(200, JSON, None, [Data("{"), Silence]);
    let (_, taken) = responses.run(layer().read_ahead(0)).await;
    assert_eq!(taken, 0, "reading ahead is off");
}

#[tokio::test(start_paused = true)]
async fn a_response_beyond_the_limit_is_returned_whole() {
    let pieces = (0..10).map(|_| Piece::Data("0123456789"));
    let responses = Responses::new().then(200, JSON, None, pieces);
    let (answer, taken) = responses.run(layer().read_ahead(35)).await;
    assert_eq!(taken, 4);
    assert_eq!(answer.body().size_hint().lower(), 40);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes().len(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_response_is_drained_up_to_the_limit() {
    use Piece::{Data, Silence};
    let unavailable = |pieces: Vec<Piece>| Responses::new().then(503, "text/html", None, pieces);
    let fine = |responses: Responses| responses.then(200, "text/plain", None, []);

    let responses = fine(unavailable(vec![Data("0123456789"); 5]));
    assert_eq!(
        responses.run(layer()).await.1,
        5,
        "drained, so that its connection can be used again"
    );
    let responses = fine(unavailable(vec![Data("0123456789"); 1000]));
    assert_eq!(responses.run(layer().read_ahead(95)).await.1, 10, "not for ever");
    let responses = fine(unavailable(vec![Data("0123456789"), Silence]));
    let (answer, taken) = responses.run(layer()).await;
    assert_eq!((answer.status().as_u16(), taken), (200, 1), "nor longer than the wait");
}
