//! Properties of stored bytes that are decoded as a response, and of responses that are stored.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use semel_tower::{Damaged, StoredResponse};

/// Checks some bytes twice: as bytes that a store may return, and as a recipe for a response.
pub(crate) fn check(bytes: &[u8]) {
    stored(&Bytes::copy_from_slice(bytes));
    let made = recipe(bytes);
    assert_eq!(StoredResponse::decode(&made.encode()).as_ref(), Ok(&made));
}

fn stored(bytes: &Bytes) {
    let read = match StoredResponse::decode(bytes) {
        Ok(read) => read,
        Err(damaged) => return refused(bytes, damaged),
    };
    shares_memory(bytes, &read);
    // A response that is encoded again has the same length and decodes to the same response.
    let again = read.encode();
    assert_eq!(again.len(), bytes.len());
    assert_eq!(StoredResponse::decode(&again).as_ref(), Ok(&read));
    assert_eq!(read.encode(), again);
    // Every part of the head is needed.
    let head = bytes.len() - read.body.len();
    for cut in head.saturating_sub(40)..head {
        assert_eq!(
            StoredResponse::decode(&bytes.slice(..cut)),
            Err(Damaged::Short),
            "cut at {cut}"
        );
    }
    // The body does not influence how the head is decoded.
    let longer = Bytes::from([bytes, &b"tail"[..]].concat());
    let longer = StoredResponse::decode(&longer).expect("a longer body");
    assert_eq!((longer.status, &longer.headers), (read.status, &read.headers));
    assert_eq!(longer.body.len(), read.body.len() + 4);
}

/// Checks that a few stored bytes never allocate much memory.
fn shares_memory(bytes: &Bytes, read: &StoredResponse) {
    let body = read.body.as_ptr_range();
    assert!(read.body.is_empty() || bytes.as_ptr_range().end == body.end, "the body is copied");
    for map in [&read.headers, &read.trailers] {
        // A value takes at least 7 bytes; a map may double its capacity several times.
        assert!(map.len() <= bytes.len() / 7);
        assert!(map.capacity() <= 16 + 16 * map.len(), "{} for {}", map.capacity(), map.len());
    }
}

fn refused(bytes: &Bytes, damaged: Damaged) {
    match damaged {
        Damaged::Version(version) => {
            assert_ne!(version, 1);
            assert_eq!(bytes.first(), Some(&version));
        }
        Damaged::Short => assert!(!walks_to_its_end(bytes), "{bytes:?} is not short"),
        Damaged::Invalid(part) => assert!(!part.is_empty() && bytes.len() >= 3),
    }
}

/// Returns whether every length in the head lies within the bytes.
fn walks_to_its_end(bytes: &[u8]) -> bool {
    fn number<const N: usize>(rest: &mut &[u8]) -> Option<usize> {
        let (taken, after) = rest.split_first_chunk::<N>()?;
        *rest = after;
        Some(taken.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }
    let walk = || {
        let mut rest = bytes.get(3..)?;
        for _ in 0..2 {
            for _ in 0..number::<4>(&mut rest)? {
                let name = number::<2>(&mut rest)?;
                rest = rest.get(name..)?;
                let value = number::<4>(&mut rest)?;
                rest = rest.get(value..)?;
            }
        }
        Some(())
    };
    walk().is_some()
}

/// Creates a response from these bytes: status, then lines of `name:value`, a blank line, trailers,
/// a blank line, the body.
fn recipe(bytes: &[u8]) -> StoredResponse {
    let (status, mut rest) = bytes.split_at(bytes.len().min(2));
    let number = status.iter().fold(0, |number, byte| number << 8 | u16::from(*byte));
    let status = StatusCode::from_u16(100 + number % 900).expect("100 to 999");
    let mut maps = [HeaderMap::new(), HeaderMap::new()];
    for map in &mut maps {
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            if line.is_empty() {
                break;
            }
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
            let name = HeaderName::from_bytes(&line[..colon]);
            let value = HeaderValue::from_bytes(line.get(colon + 1..).unwrap_or_default());
            if let (Ok(name), Ok(value)) = (name, value) {
                map.append(name, value);
            }
        }
    }
    let [headers, trailers] = maps;
    StoredResponse { status, headers, trailers, body: Bytes::copy_from_slice(rest) }
}
