//! Tests of request smuggling: a request that is hidden in a body or a header never reaches a
//! handler, and the next request on the connection gets its own response or none.

mod corpus;
mod naive;

use std::net::SocketAddr;
use std::time::Duration;

use self::corpus::{Entry, Expected, corpus};
use self::naive::{Defect, Naive};
use crate::backend::run;
use crate::raw::{Answer, Wire, keyed};
use crate::shop::{Journal, Shop};

/// The request that is hidden inside another one.
const SMUGGLED: &[u8] = b"GET /admin HTTP/1.1\r\nHost: shop\r\nX-User: ann\r\n\r\n";
/// A hidden request with a key and a body.
const SMUGGLED_POST: &[u8] = b"POST /admin HTTP/1.1\r\nHost: shop\r\nX-User: ann\r\n\
    Idempotency-Key: stolen\r\nContent-Length: 4\r\n\r\nevil";
/// The response to the request after the hidden one.
const PROBED: &str = "POST /probe probing";

/// The time limit for one response, which is long enough for any machine.
const SILENCE: Duration = Duration::from_secs(60);

/// The way in which bytes are cut into segments.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// All bytes at once, together with the next request.
    Whole,
    /// Two segments, cut at this many thousandths.
    At(usize),
    /// One segment per byte.
    Bytes,
}

const CUTS: [Cut; 4] = [Cut::Whole, Cut::At(300), Cut::At(850), Cut::Bytes];

/// The reaction of a server to an entry of the corpus.
struct Seen {
    answers: Vec<Answer>,
    probed: bool,
    /// Whether there was neither a response nor an end: the next request was taken for something
    /// else.
    silent: bool,
    reached: Vec<String>,
}

async fn sent(address: SocketAddr, journal: &Journal, entry: &Entry, cut: Cut) -> Seen {
    let mut wire = Wire::connect(address).await;
    let probe = keyed("/probe", "probe", b"probing");
    let bytes = [&entry.bytes[..], &probe].concat();
    match cut {
        Cut::Whole => wire.send(&bytes).await,
        Cut::At(thousandths) => {
            let (one, two) = bytes.split_at(bytes.len() * thousandths / 1_000);
            wire.send(one).await;
            // The two parts should be separate segments; if they are joined, this is `Whole` again.
            tokio::task::yield_now().await;
            wire.send(two).await;
        }
        Cut::Bytes => {
            for byte in &bytes {
                wire.send(&[*byte]).await;
            }
        }
    }
    let mut seen = Seen { answers: vec![], probed: false, silent: false, reached: vec![] };
    while !(seen.probed || seen.silent) {
        match tokio::time::timeout(SILENCE, wire.answer()).await {
            Ok(None) => break,
            Ok(Some(answer)) if answer.text() == PROBED => seen.probed = true,
            Ok(Some(answer)) => seen.answers.push(answer),
            Err(_) => seen.silent = true,
        }
    }
    Seen { reached: journal.lines(), ..seen }
}

/// Returns the difference between the expected and the actual reaction; `None` if they agree.
fn desync(entry: &Entry, seen: &Seen) -> Option<String> {
    let Seen { answers, probed, silent, reached } = seen;
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
    let closing = answers.last().is_some_and(Answer::closes);
    let order = |body: &[u8]| format!("POST /orders {}", String::from_utf8_lossy(body));
    let (status, body, kept) = match &entry.expected {
        Expected::Refused(status) => (*status, None, false),
        Expected::Served(body) => (200, Some(order(body)), true),
        Expected::ServedLast(body) => (200, Some(order(body)), false),
    };
    let mut expected: Vec<String> = body.iter().cloned().collect();
    expected.extend(kept.then(|| PROBED.to_owned()));
    let text = answers.first().map(Answer::text);
    let answered = statuses == [status] && (body.is_none() || body == text);
    // A server that closes must announce it, because a client would otherwise use the connection
    // again.
    let announced = if kept { !closing } else { closing || !entry.announced };
    let fine = answered && *probed == kept && announced && !silent && *reached == expected;
    let actual = format!(
        "{statuses:?}, closing {closing}, probe answered {probed}, silent {silent}, {reached:?}"
    );
    (!fine).then(|| format!("{}: expected {:?}, got {actual}", entry.name, entry.expected))
}

#[test]
fn nothing_hidden_in_a_request_reaches_a_handler() {
    run(async {
        let mut desyncs = Vec::new();
        let mut tried = 0;
        for key in [Some("k-1"), None] {
            for entry in corpus(key) {
                for cut in CUTS {
                    // Long bodies are left to another test.
                    if matches!(cut, Cut::Bytes) && entry.bytes.len() > 4_096 {
                        continue;
                    }
                    let shop = Shop::open().await;
                    let seen = sent(shop.server.address(), &shop.journal, &entry, cut).await;
                    let found = desync(&entry, &seen);
                    desyncs.extend(found.map(|what| format!("{cut:?}, key {key:?}, {what}")));
                    tried += 1;
                }
            }
        }
        let count = desyncs.len();
        assert_eq!(count, 0, "desyncs in {tried} tries:\n{}", desyncs.join("\n"));
        assert!(tried > 500, "only {tried} tries: the corpus has shrunk");
    });
}

#[test]
fn the_corpus_detects_a_server_that_ignores_chunked_encoding() {
    run(async {
        let mut found = 0;
        for entry in corpus(None).iter().filter(|entry| entry.name.contains("length and chunked")) {
            let naive = Naive::start(Defect::IgnoresChunked).await;
            let seen = sent(naive.address(), &naive.journal, entry, Cut::Whole).await;
            assert!(desync(entry, &seen).is_some(), "{}", entry.name);
            found += usize::from(seen.reached.iter().any(|line| line.contains("/admin")));
        }
        assert!(found > 0, "a smuggled request reached even a naive server in no case");
    });
}

#[test]
fn the_corpus_detects_a_server_that_does_not_read_bodies() {
    run(async {
        let entry = Entry {
            name: "unread body".to_owned(),
            bytes: keyed("/orders", "k-1", SMUGGLED),
            expected: Expected::Served(SMUGGLED.to_vec()),
            announced: false,
        };
        let naive = Naive::start(Defect::LeavesBodies).await;
        let seen = sent(naive.address(), &naive.journal, &entry, Cut::Whole).await;
        assert!(desync(&entry, &seen).is_some());
        assert!(seen.reached.iter().any(|line| line.starts_with("GET /admin")));
    });
}
