//! Properties of two requests under one key: the second gets the response to the first exactly if
//! it is the same request.
//!
//! The requests go through the layer, because only the layer decides whether two requests are the
//! same. They stay in this process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::OnceLock;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use semel_core::store::memory::MemoryStore;
use semel_core::{Executor, Key, Kind, Operate as _, Operated, Principal};
use semel_tower::http::{IdempotencyLayer, REPLAYED, Rules};
use semel_tower::{Body, PrincipalFrom, Tenant};
use tokio::runtime::Runtime;
use tower::util::BoxCloneSyncService;
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::json::Meaning;

type Answer = Response<Body<Full<Bytes>>>;
type Layered = BoxCloneSyncService<Request<Full<Bytes>>, Answer, Infallible>;

const ONE: HeaderName = HeaderName::from_static("x-one");
const TWO: HeaderName = HeaderName::from_static("x-two");

/// Checks one input: two requests, separated by NUL.
pub(crate) fn check(input: &[u8]) {
    let mut pieces = input.splitn(2, |byte| *byte == 0);
    let mut piece = || Sketch::of(pieces.next().unwrap_or_default());
    let (Some(first), Some(second)) = (piece(), piece()) else { return };
    let same = first.meaning() == second.meaning();
    let bench = Bench::get();
    bench.runtime.block_on(async {
        let done = bench.send(&first).await;
        assert_eq!((done.status(), replayed(&done)), (StatusCode::OK, false), "{first:?}");
        let again = bench.send(&second).await;
        // Unit tests check how multipart bodies are divided; this check only requires that nothing
        // panics.
        let parts = [&first, &second].iter().any(|sketch| sketch.is_multipart());
        if parts && !(first.body == second.body && first.content_type == second.content_type) {
            assert_eq!(bench.executor.purge(&key()).await.expect("memory"), Operated::Done);
            return;
        }
        let expected = if same { (StatusCode::OK, true) } else { MISMATCH };
        assert_eq!((again.status(), replayed(&again)), expected, "{first:?} and {second:?}");
        assert_eq!(bench.executor.purge(&key()).await.expect("memory"), Operated::Done);
    });
}

const MISMATCH: (StatusCode, bool) = (StatusCode::UNPROCESSABLE_ENTITY, false);

fn replayed(answer: &Answer) -> bool {
    answer.headers().contains_key(REPLAYED)
}

fn key() -> Key {
    Key::new(Kind::Http, "acme", "ORDER", Principal::global(), "k-1").expect("a valid key")
}

/// The parts of a request that will be sent.
#[derive(Debug)]
struct Sketch<'i> {
    uri: http::Uri,
    content_type: Option<HeaderValue>,
    one: Vec<HeaderValue>,
    two: Vec<HeaderValue>,
    body: &'i [u8],
}

/// The values of each name, in their order.
type Fields = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

/// The meaning of a request, without its spelling.
#[derive(Debug, PartialEq)]
struct RequestMeaning<'i> {
    path: String,
    query: Fields,
    content_type: String,
    body: Meaning<'i>,
    /// The fields of a body that is a form.
    form: Option<Fields>,
    headers: [Vec<HeaderValue>; 2],
}

impl<'i> Sketch<'i> {
    /// Parses lines: the URI, the content type, then headers as `1value` and `2value`, an empty
    /// line, and the body. Returns `None` if the request could not be sent.
    fn of(text: &'i [u8]) -> Option<Self> {
        let mut rest = text;
        let mut line = || {
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            line
        };
        let uri = http::Uri::try_from(line()).ok()?;
        let content_type = match line() {
            b"" => None,
            text => Some(HeaderValue::from_bytes(text).ok()?),
        };
        let (mut one, mut two) = (Vec::new(), Vec::new());
        loop {
            match line() {
                [] => break,
                [b'1', value @ ..] => one.push(HeaderValue::from_bytes(value).ok()?),
                [b'2', value @ ..] => two.push(HeaderValue::from_bytes(value).ok()?),
                _ => return None,
            }
        }
        Some(Self { uri, content_type, one, two, body: rest })
    }

    fn is_multipart(&self) -> bool {
        let kind = self.content_type.as_ref().map(HeaderValue::as_bytes).unwrap_or_default();
        kind.trim_ascii().to_ascii_lowercase().starts_with(b"multipart/")
    }

    fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(Bytes::copy_from_slice(self.body)));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.insert("idempotency-key", HeaderValue::from_static("k-1"));
        if let Some(content_type) = &self.content_type {
            headers.insert(http::header::CONTENT_TYPE, content_type.clone());
        }
        for (name, values) in [(ONE, &self.one), (TWO, &self.two)] {
            for value in values {
                headers.append(&name, value.clone());
            }
        }
        request
    }

    fn meaning(&self) -> RequestMeaning<'i> {
        let content_type = self.content_type.as_ref().and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default();
        let content_type = content_type.trim().to_ascii_lowercase();
        let json = content_type == "application/json" || content_type.ends_with("+json");
        let text = std::str::from_utf8(self.body).ok().filter(|text| text.is_ascii());
        let form = text.filter(|_| content_type == "application/x-www-form-urlencoded");
        let form = form.map(|text| fields(&text.replace('+', "%20")));
        RequestMeaning {
            path: self.uri.path().to_owned(),
            query: fields(self.uri.query().unwrap_or_default()),
            body: match json {
                true => Meaning::of(self.body),
                false if form.is_some() => Meaning::Bytes(b""),
                false => Meaning::Bytes(self.body),
            },
            form,
            content_type,
            headers: [self.one.clone(), self.two.clone()],
        }
    }
}

fn fields(text: &str) -> Fields {
    let mut fields = Fields::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = match pair.split_once('=') {
            Some((name, value)) => (name, Some(decoded(value))),
            None => (pair, None),
        };
        fields.entry(decoded(name)).or_default().push(value);
    }
    fields
}

/// Decodes percent-encoding: `%41` is `A`. A `%` without two hex digits stays unchanged.
fn decoded(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut bytes = Vec::new();
    while let Some((first, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).expect("two hex digits"));
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// A layer with a handler that answers 200.
struct Bench {
    runtime: Runtime,
    executor: Executor<MemoryStore>,
    layered: Layered,
}

impl Bench {
    fn get() -> &'static Self {
        static BENCH: OnceLock<Bench> = OnceLock::new();
        BENCH.get_or_init(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let executor = Executor::new(MemoryStore::new());
            let principal = PrincipalFrom::global();
            let layer =
                IdempotencyLayer::fenced(executor.clone(), Tenant::fixed("acme"), principal)
                    .operation(|_| Some("ORDER".to_owned()))
                    .rules(Rules::new().required().matched_headers([ONE, TWO]));
            let yes = service_fn(async |_: Request<Body<Full<Bytes>>>| {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"yes"))))
            });
            let layered = BoxCloneSyncService::new(layer.layer(yes));
            Bench { runtime: runtime.expect("a runtime"), executor, layered }
        })
    }

    async fn send(&self, sketch: &Sketch<'_>) -> Answer {
        match self.layered.clone().oneshot(sketch.request()).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }
}
