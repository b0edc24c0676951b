//! The corpus: the bytes to send, and the expected reaction.

use super::{SMUGGLED, SMUGGLED_POST};

/// The expected reaction to an entry.
#[derive(Debug)]
pub(super) enum Expected {
    /// The response has this status, nothing reaches a handler, and the connection ends.
    Refused(u16),
    /// A handler sees this body, and the next request is answered.
    Served(Vec<u8>),
    /// A handler sees this body, and the connection ends.
    ServedLast(Vec<u8>),
}

/// One entry of the corpus.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
    pub(super) expected: Expected,
    /// Whether the response must announce the end of the connection. HTTP/1.0 ends by itself, and
    /// requests without a key may be answered by the HTTP server itself.
    pub(super) announced: bool,
}

/// Returns all entries, as requests with or without a key.
pub(super) fn corpus(key: Option<&str>) -> Vec<Entry> {
    let mut corpus = Corpus { key: key.map(|key| format!("Idempotency-Key: {key}")), all: vec![] };
    corpus.two_lengths();
    corpus.bad_lengths();
    corpus.good_lengths();
    corpus.encodings();
    corpus.lines();
    corpus.chunk_sizes();
    corpus.chunk_endings();
    corpus.versions();
    corpus.all
}

struct Corpus {
    key: Option<String>,
    all: Vec<Entry>,
}

/// The body `hello` in one chunk.
const CHUNKED: &[u8] = b"5\r\nhello\r\n0\r\n\r\n";

fn refused(status: u16) -> Expected {
    Expected::Refused(status)
}

fn served(body: &[u8]) -> Expected {
    Expected::Served(body.to_vec())
}

fn last(body: &[u8]) -> Expected {
    Expected::ServedLast(body.to_vec())
}

impl Corpus {
    /// Adds a `POST /orders` with these header lines, unchanged, and these bytes after its head.
    fn add(&mut self, name: &str, headers: &[u8], rest: &[&[u8]], expected: Expected) {
        self.add_line("POST /orders HTTP/1.1", name, headers, rest, expected);
    }

    fn add_line(
        &mut self,
        line: &str,
        name: &str,
        headers: &[u8],
        rest: &[&[u8]],
        expected: Expected,
    ) {
        let mut bytes = format!("{line}\r\nHost: shop\r\nX-User: ann\r\n").into_bytes();
        if let Some(key) = &self.key {
            bytes.extend(key.as_bytes());
            bytes.extend(b"\r\n");
        }
        bytes.extend(headers);
        bytes.extend(b"\r\n\r\n");
        bytes.extend(rest.concat());
        let announced = self.key.is_some() && !line.ends_with("HTTP/1.0");
        self.all.push(Entry { name: name.to_owned(), bytes, expected, announced });
    }

    /// Adds the body `hello` in one chunk with this size line.
    fn sized(&mut self, size: &[u8], expected: Expected) {
        let shown = &size[..size.len().min(20)];
        let name = format!("chunk size {:?} ({} bytes)", shown.escape_ascii(), size.len());
        let rest: &[&[u8]] = &[size, b"\r\nhello\r\n0\r\n\r\n"];
        match expected {
            Expected::Refused(_) => self.chunks(&name, &[rest, &[SMUGGLED]].concat(), expected),
            Expected::Served(_) | Expected::ServedLast(_) => self.chunks(&name, rest, expected),
        }
    }

    fn chunks(&mut self, name: &str, rest: &[&[u8]], expected: Expected) {
        self.add(name, b"Transfer-Encoding: chunked", rest, expected);
    }

    fn two_lengths(&mut self) {
        // The encoding takes precedence, and a server that uses the length must not see another
        // request.
        let both: &[u8] = b"Content-Length: 5\r\nTransfer-Encoding: chunked";
        self.add("length and chunked, short", both, &[CHUNKED, SMUGGLED], last(b"hello"));
        let both: &[u8] = b"Transfer-Encoding: chunked\r\nContent-Length: 5";
        self.add("chunked and length, short", both, &[CHUNKED, SMUGGLED_POST], last(b"hello"));
        let length = 5 + SMUGGLED.len();
        let both = format!("Content-Length: {length}\r\nTransfer-Encoding: chunked");
        self.add("length and chunked, long", both.as_bytes(), &[b"0\r\n\r\n", SMUGGLED], last(b""));
        let both = format!("Transfer-Encoding: chunked\r\nContent-Length: {length}");
        self.add("chunked and length, long", both.as_bytes(), &[b"0\r\n\r\n", SMUGGLED], last(b""));
        // The length ends inside the size line of the first chunk.
        let both: &[u8] = b"Content-Length: 4\r\nTransfer-Encoding: chunked";
        let size = format!("{:x}\r\n", SMUGGLED.len());
        let rest: &[&[u8]] = &[size.as_bytes(), SMUGGLED, b"\r\n0\r\n\r\n"];
        self.add("length and chunked, in the size line", both, rest, last(SMUGGLED));

        self.add(
            "length twice",
            b"Content-Length: 5\r\nContent-Length: 5",
            &[b"hello"],
            served(b"hello"),
        );
        for (one, two) in [("5", "6"), ("6", "5"), ("0", "5"), ("5", "0"), ("5", "+5")] {
            let headers = format!("Content-Length: {one}\r\nX-Between: 1\r\ncontent-length: {two}");
            let name = format!("lengths {one} and {two}");
            self.add(&name, headers.as_bytes(), &[b"hello", SMUGGLED], refused(400));
        }
    }

    fn bad_lengths(&mut self) {
        let bad = ["+5", "-5", "5,5", "5, 5", "5, 6", "0x5", "5 5", "5;", "five", "", "5.0", "1e1"];
        for value in bad.into_iter().chain(["\"5\"", "٥", "5_0", "18446744073709551616"]) {
            let header = format!("Content-Length: {value}");
            let name = format!("length {value:?}");
            self.add(&name, header.as_bytes(), &[b"hello", SMUGGLED], refused(400));
        }
        // The largest 64-bit number is a number, but not a valid length.
        let header: &[u8] = b"Content-Length: 18446744073709551615";
        self.add("the largest length", header, &[b"hello", SMUGGLED], refused(431));
    }

    fn good_lengths(&mut self) {
        for value in ["5", " 5", "\t5", "5 ", "5\t", "005"] {
            let header = format!("Content-Length:{value}");
            let name = format!("length {value:?}");
            self.add(&name, header.as_bytes(), &[b"hello"], served(b"hello"));
        }
        for body in [SMUGGLED, SMUGGLED_POST] {
            let header = format!("Content-Length: {}", body.len());
            self.add("a body that is a request", header.as_bytes(), &[body], served(body));
            let size = format!("{:x}\r\n", body.len());
            let rest: &[&[u8]] = &[size.as_bytes(), body, b"\r\n0\r\n\r\n"];
            self.chunks("a chunk that is a request", rest, served(body));
        }
        // A header in another spelling is ignored.
        let headers: &[u8] = b"Content-Length: 15\r\nTransfer_Encoding: chunked";
        self.add("an encoding with a low line", headers, &[CHUNKED], served(CHUNKED));
    }

    fn encodings(&mut self) {
        let bad =
            ["xchunked", "chunked, identity", "identity", "gzip", "", "chunked;q=1", "chunke"];
        for value in
            bad.into_iter().chain(["\"chunked\"", "chunked,", "chunked identity", "[chunked]"])
        {
            let name = format!("encoding {value:?}");
            let header = format!("Transfer-Encoding: {value}");
            self.add(&name, header.as_bytes(), &[CHUNKED, SMUGGLED], refused(400));
            // An additional length does not make the encoding valid.
            let both = format!("Content-Length: 15\r\nTransfer-Encoding: {value}");
            let name = format!("{name} with a length");
            self.add(&name, both.as_bytes(), &[CHUNKED, SMUGGLED], refused(400));
        }
        for value in
            ["chunked", "Chunked", "CHUNKED", " chunked ", "\tchunked", "identity, chunked"]
        {
            let header = format!("Transfer-Encoding:{value}");
            let name = format!("encoding {value:?}");
            self.add(&name, header.as_bytes(), &[CHUNKED], served(b"hello"));
        }
        for (value, byte) in
            [(b"\x0bchunked", "VT"), (b"chunked\x00", "NUL"), (b"chunked\x7f", "DEL")]
        {
            let header = [b"Transfer-Encoding: ", &value[..]].concat();
            let name = format!("encoding with {byte}");
            self.add(&name, &header, &[CHUNKED, SMUGGLED], refused(400));
        }
        let lines: &[u8] = b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity";
        self.add("chunked, then identity", lines, &[CHUNKED, SMUGGLED], refused(400));
        let lines: &[u8] = b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked";
        self.add("identity, then chunked", lines, &[CHUNKED], served(b"hello"));
        let lines: &[u8] = b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked";
        self.add("chunked twice", lines, &[CHUNKED], served(b"hello"));
    }

    fn lines(&mut self) {
        let bad: [(&str, &[u8]); 12] = [
            ("a space before the colon of a length", b"Content-Length : 5"),
            ("a tab before the colon of a length", b"Content-Length\t: 5"),
            ("a space before the colon of an encoding", b"Transfer-Encoding : chunked"),
            ("a folded length", b"Content-Length:\r\n 5"),
            ("a folded encoding", b"Transfer-Encoding:\r\n\tchunked"),
            ("a fold that hides a length", b"X-A: 1\r\n Content-Length: 5"),
            ("NUL in a name", b"Content\0-Length: 5"),
            ("NUL in a value", b"X-A: 1\0\r\nContent-Length: 5"),
            ("CR in a value", b"X-A: 1\rContent-Length: 5"),
            ("CR CR LF", b"X-A: 1\r\r\nContent-Length: 5"),
            ("a line without a colon", b"Content-Length 5"),
            ("a line without a name", b": 5"),
        ];
        for (name, headers) in bad {
            self.add(name, headers, &[b"hello", SMUGGLED], refused(400));
        }
        // RFC 9112, 2.2 allows LF as the end of a line; the server accepts it everywhere.
        self.add("LF after a line", b"Content-Length: 5\nX-A: 1", &[b"hello"], served(b"hello"));
    }

    fn chunk_sizes(&mut self) {
        let bad: [&[u8]; 12] = [
            b"fffffffffffffffff",
            b"10000000000000005",
            b"+5",
            b"-5",
            b"0x5",
            b"5g",
            b" 5",
            b"",
            b"5 5",
            b"5\n",
            b"5;a\nb",
            b"5\r5",
        ];
        for size in bad {
            self.sized(size, refused(400));
        }
        for size in
            [&b"5"[..], b"05", b"0000000000000005", b"5 ", b"5;a=b", b"5 ;a", b"5;a=\"b c\""]
        {
            self.sized(size, served(b"hello"));
        }
        let long = [b"5;", &[b'a'; 20 << 10][..]].concat();
        self.sized(&long, refused(400));
        self.sized(&[b'0'; 20 << 10], refused(400));
    }

    fn chunk_endings(&mut self) {
        let bad: [(&str, &[u8]); 7] = [
            ("a chunk longer than it says", b"5\r\nhello!\r\n0\r\n\r\n"),
            ("a chunk that ends with LF", b"5\r\nhello\n0\r\n\r\n"),
            ("a chunk that ends with CR CR", b"5\r\nhello\r\r0\r\n\r\n"),
            ("a request for a trailer", b"5\r\nhello\r\n0\r\nGET /admin HTTP/1.1\r\n\r\n"),
            ("a trailer with a space in its name", b"5\r\nhello\r\n0\r\nX A: 1\r\n\r\n"),
            ("a folded trailer", b"5\r\nhello\r\n0\r\nX-A: 1\r\n 2\r\n\r\n"),
            ("a trailer with NUL", b"5\r\nhello\r\n0\r\nX-A: 1\0\r\n\r\n"),
        ];
        for (name, body) in bad {
            self.chunks(name, &[body, SMUGGLED], refused(400));
        }
        let long = [b"5\r\nhello\r\n0\r\nX-A: ", &[b'a'; 20 << 10][..], b"\r\n\r\n"].concat();
        self.chunks("an endless trailer", &[&long, SMUGGLED], refused(400));
        let good: [(&str, &[u8]); 4] = [
            ("a trailer", b"5\r\nhello\r\n0\r\nX-A: 1\r\n\r\n"),
            (
                "a trailer that holds a request",
                b"5\r\nhello\r\n0\r\nX-A: GET /admin HTTP/1.1\r\n\r\n",
            ),
            ("a trailer that is a length", b"5\r\nhello\r\n0\r\nContent-Length: 50\r\n\r\n"),
            ("a trailer that is a key", b"5\r\nhello\r\n0\r\nIdempotency-Key: other\r\n\r\n"),
        ];
        for (name, body) in good {
            self.chunks(name, &[body], served(b"hello"));
        }
    }

    fn versions(&mut self) {
        let old = "POST /orders HTTP/1.0";
        let chunked: &[u8] = b"Transfer-Encoding: chunked";
        self.add_line(old, "1.0 chunked", chunked, &[CHUNKED, SMUGGLED], refused(400));
        let both: &[u8] = b"Content-Length: 15\r\nTransfer-Encoding: chunked";
        self.add_line(old, "1.0 with both", both, &[CHUNKED, SMUGGLED], refused(400));
        let length: &[u8] = b"Content-Length: 5";
        self.add_line(old, "1.0", length, &[b"hello", SMUGGLED], last(b"hello"));
        let close: &[u8] = b"Content-Length: 5\r\nConnection: close";
        self.add("the last request", close, &[b"hello", SMUGGLED], last(b"hello"));
        for version in ["HTTP/1.2", "HTTP/2.0", "HTTP/1.1 HTTP/1.1", "http/1.1"] {
            let line = format!("POST /orders {version}");
            self.add_line(&line, version, length, &[b"hello", SMUGGLED], refused(400));
        }
    }
}
