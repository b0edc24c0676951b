//! The request that is sent repeatedly: one buffer, in which a few digits change.

use std::io::Write as _;

/// The length of the JSON body.
const BODY: usize = 200;
/// The number of calls that share a thousand sessions, if the server needs sessions. Some servers
/// search a whole session with each call, so a session must not grow with the run.
const CALLS: u64 = 100_000;

/// An order as the bytes of an HTTP request.
#[derive(Clone, Debug)]
pub struct Request {
    bytes: Vec<u8>,
    key: usize,
    reference: usize,
    session: Option<usize>,
}

impl Request {
    /// Creates a request, with a session cookie if `sessions`.
    pub fn new(sessions: bool) -> Self {
        let mut head = String::from(
            "POST /orders HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
             accept: application/json\r\n",
        );
        let session = sessions.then(|| {
            head.push_str("cookie: session=");
            let at = head.len();
            // 128 bits in base64: the last digit has four unused bits, which must be zero.
            head.push_str("000000000000000000000A\r\n");
            at
        });
        head.push_str("idempotency-key: 00000000-0000-4000-8000-");
        let key = head.len();
        head.push_str("000000000000\r\n");
        head.push_str(&format!("content-length: {BODY}\r\n\r\n"));
        let start = head.len();
        head.push_str(r#"{"reference":""#);
        let reference = head.len();
        head.push_str(r#"0000000000000000","sku":"A-17-0042","quantity":3,"amount":12950,"#);
        head.push_str(r#""currency":"EUR","note":""#);
        let left = BODY - (head.len() - start) - 2;
        head.extend(std::iter::repeat_n('n', left));
        head.push_str("\"}");
        Self { bytes: head.into_bytes(), key, reference, session }
    }

    /// Sets the number from which key, reference and session are derived.
    pub fn number(&mut self, number: u64) {
        write_digits(&mut self.bytes[self.key..][..12], number & 0xffff_ffff_ffff);
        write_digits(&mut self.bytes[self.reference..][..16], number);
        if let Some(at) = self.session {
            let session = number / CALLS * 1_000 + number % 1_000;
            let mut digits = &mut self.bytes[at..at + 21];
            let _ = write!(digits, "{session:021}");
        }
    }

    /// Returns the bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the reference that the response must repeat.
    fn reference(&self) -> &[u8] {
        &self.bytes[self.reference..][..16]
    }

    /// Returns whether `body` answers this request: `{"id":"…16…","reference":"…16…"`.
    pub fn is_answered_by(&self, body: &[u8]) -> bool {
        const BEFORE: &[u8] = br#"","reference":""#;
        const ID: usize = br#"{"id":""#.len() + 16;
        let told = body.get(ID..).and_then(|rest| rest.strip_prefix(BEFORE));
        told.is_some_and(|rest| rest.starts_with(self.reference())) && body.len() > 150
    }
}

/// Writes hexadecimal digits, from the right.
fn write_digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_is_as_long_as_announced_and_is_json() {
        for sessions in [false, true] {
            let mut request = Request::new(sessions);
            request.number(0xabc);
            let text = std::str::from_utf8(request.bytes()).expect("text");
            let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.contains("8000-000000000abc\r\n"), "{head}");
            assert_eq!(head.contains("cookie: session=000000000000000000748A"), sessions, "{head}");
            assert_eq!(body.len(), BODY);
            let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
            assert_eq!(json["reference"], "0000000000000abc");
        }
    }

    #[test]
    fn an_answer_to_another_request_is_found() {
        let mut request = Request::new(false);
        request.number(7);
        let answer = |reference: u64| {
            let note = "n".repeat(150);
            format!(r#"{{"id":"{:016x}","reference":"{reference:016x}","note":"{note}"}}"#, 99)
        };
        assert!(request.is_answered_by(answer(7).as_bytes()));
        assert!(!request.is_answered_by(answer(8).as_bytes()));
        assert!(!request.is_answered_by(b"{}"));
    }
}
