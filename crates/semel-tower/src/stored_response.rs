//! The stored form of a response: status, selected headers, body, trailers.
//!
//! HTTP and gRPC share one versioned layout; the outcome's content type distinguishes them. The
//! stored bytes may have been written by an earlier release, or by any program that can write to
//! the store: every length is checked, and bytes that do not fit are an error.
//!
//! ```text
//! 1 byte   version, 1
//! 2 bytes  status, big endian
//! block    headers: 4 bytes count, then for each 2 bytes + name, 4 bytes + value
//! block    trailers, the same
//! rest     body
//! ```

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

const VERSION: u8 = 1;

/// A response in the form in which it is stored.
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use semel_tower::StoredResponse;
///
/// let (headers, trailers) = (HeaderMap::new(), HeaderMap::new());
/// let response =
///     StoredResponse { status: StatusCode::CREATED, headers, body: "done".into(), trailers };
/// assert_eq!(StoredResponse::decode(&response.encode()), Ok(response));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct StoredResponse {
    /// The HTTP status.
    pub status: StatusCode,
    /// The stored headers, in order.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// The stored trailers; always empty for HTTP.
    pub trailers: HeaderMap,
}

/// The reason why stored bytes are not a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
    /// The layout has a version that this release does not read.
    #[error("the stored response has layout version {0}, this release reads {VERSION}")]
    Version(u8),
    /// The bytes end before the lengths in them are reached.
    #[error("the stored response ends in the middle")]
    Short,
    /// A status, header name or header value is not valid in HTTP.
    #[error("the stored response has an invalid {0}")]
    Invalid(&'static str),
}

impl StoredResponse {
    /// The content type of a stored HTTP response.
    pub const HTTP: &'static str = "application/vnd.semel.http.v1";
    /// The content type of a stored gRPC response.
    pub const GRPC: &'static str = "application/vnd.semel.grpc.v1";

    /// Encodes the response. The body is copied, because a slice of a connection's buffer would
    /// keep the whole buffer alive.
    pub fn encode(&self) -> Bytes {
        encode(self.status, [&self.headers, &self.trailers], &self.body, |_| true)
    }

    /// Decodes a stored response. The body shares the memory of `stored`.
    ///
    /// # Errors
    /// [`Damaged`] if the bytes are not a stored response of this version.
    pub fn decode(stored: &Bytes) -> Result<Self, Damaged> {
        let mut rest = Reader { stored, at: 0 };
        let version = rest.take(1)?[0];
        if version != VERSION {
            return Err(Damaged::Version(version));
        }
        let status = StatusCode::from_u16(rest.u16()?).map_err(|_| Damaged::Invalid("status"))?;
        let headers = rest.block()?;
        let trailers = rest.block()?;
        Ok(Self { status, headers, trailers, body: stored.slice(rest.at..) })
    }
}

/// Encodes a response from borrowed parts, with the headers and trailers that `keeps` selects.
pub(crate) fn encode(
    status: StatusCode,
    blocks: [&HeaderMap; 2],
    body: &[u8],
    keeps: impl Fn(&HeaderName) -> bool,
) -> Bytes {
    let kept = |(name, _): &(&HeaderName, &HeaderValue)| keeps(name);
    let lines = blocks.iter().flat_map(|block| block.iter().filter(kept));
    let heads: usize = lines.map(|(name, value)| 6 + name.as_str().len() + value.len()).sum();
    let mut stored = BytesMut::with_capacity(11 + heads + body.len());
    stored.put_u8(VERSION);
    stored.put_u16(status.as_u16());
    for block in blocks {
        let (at, mut count) = (stored.len(), 0_u32);
        stored.put_u32(count);
        // A `HeaderMap` has at most 32,768 names of at most 65,535 bytes, but one name may have any
        // number of values.
        for (name, value) in block.iter().filter(kept) {
            stored.put_u16(u16::try_from(name.as_str().len()).unwrap_or(u16::MAX));
            stored.put_slice(name.as_str().as_bytes());
            stored.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
            stored.put_slice(value.as_bytes());
            count += 1;
        }
        stored[at..at + 4].copy_from_slice(&count.to_be_bytes());
    }
    stored.put_slice(body);
    stored.freeze()
}

struct Reader<'s> {
    stored: &'s Bytes,
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, length: usize) -> Result<&[u8], Damaged> {
        let end = self.at.checked_add(length).ok_or(Damaged::Short)?;
        let taken = self.stored.get(self.at..end).ok_or(Damaged::Short)?;
        self.at = end;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, Damaged> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<usize, Damaged> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
    }

    fn block(&mut self) -> Result<HeaderMap, Damaged> {
        let mut map = HeaderMap::new();
        for _ in 0..self.u32()? {
            let length = self.u16()?;
            let name = HeaderName::from_bytes(self.take(length.into())?)
                .map_err(|_| Damaged::Invalid("header name"))?;
            let length = self.u32()?;
            let value = HeaderValue::from_bytes(self.take(length)?)
                .map_err(|_| Damaged::Invalid("header value"))?;
            map.try_append(name, value).map_err(|_| Damaged::Invalid("number of headers"))?;
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> StoredResponse {
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("<a>; rel=next"));
        headers.append("link", HeaderValue::from_static("<b>; rel=prev"));
        headers.append("x-raw", HeaderValue::from_bytes(b"\xff\xfe").expect("opaque"));
        let mut trailers = HeaderMap::new();
        trailers.append("grpc-status", HeaderValue::from_static("0"));
        let body = Bytes::from_static(b"\0\x01{}");
        StoredResponse { status: StatusCode::CREATED, headers, trailers, body }
    }

    #[test]
    fn a_stored_response_reads_back() {
        let stored = sample().encode();
        assert_eq!(StoredResponse::decode(&stored), Ok(sample()));
    }

    #[test]
    fn only_selected_headers_are_stored() {
        let StoredResponse { status, headers, trailers, body } = sample();
        let stored = encode(status, [&headers, &trailers], &body, |name| name != "link");
        let read = StoredResponse::decode(&stored).expect("a stored response");
        assert_eq!((read.headers.len(), read.trailers, read.body), (1, trailers, body));
        assert!(read.headers.contains_key("x-raw"));
    }

    #[test]
    fn a_name_may_have_more_values_than_sixteen_bits_count() {
        let mut many = sample();
        for n in 0..70_000_u32 {
            many.headers.append("link", HeaderValue::from(n));
        }
        assert_eq!(StoredResponse::decode(&many.encode()), Ok(many));
    }

    #[test]
    fn every_cut_inside_the_head_is_an_error() {
        let stored = sample().encode();
        for cut in 0..stored.len() - sample().body.len() {
            assert!(StoredResponse::decode(&stored.slice(..cut)).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn another_version_and_invalid_parts_are_errors() {
        let mut stored = sample().encode().to_vec();
        stored[0] = 9;
        assert_eq!(StoredResponse::decode(&stored.clone().into()), Err(Damaged::Version(9)));
        stored[0] = 1;
        stored[1..3].copy_from_slice(&[0, 1]);
        assert_eq!(StoredResponse::decode(&stored.into()), Err(Damaged::Invalid("status")));
        assert_eq!(StoredResponse::decode(&Bytes::new()), Err(Damaged::Short));
    }
}
