//! The framing of gRPC messages: a flag, four bytes of length, the message.
//!
//! Messages are neither decoded nor decompressed: the layer does not know their types.

/// The number of bytes before a message: its flag and its length.
pub(super) const PREFIX: usize = 5;

/// One framed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'d> {
    pub(super) compressed: bool,
    pub(super) bytes: &'d [u8],
}

/// The reason why a body is not exactly one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Misframed {
    #[error("the call has no message")]
    Empty,
    #[error("the call's message breaks off")]
    Cut,
    #[error("the call has a message with the unknown flag {0:#04x}")]
    Flag(u8),
    #[error(
        "the call has more than one message, and this method is registered as unary; register no \
         streaming method"
    )]
    Several,
}

/// Returns the only message in `data`.
pub(super) fn message(data: &[u8]) -> Result<Message<'_>, Misframed> {
    let (&flag, rest) = data.split_first().ok_or(Misframed::Empty)?;
    let compressed = match flag {
        0 => false,
        1 => true,
        other => return Err(Misframed::Flag(other)),
    };
    let (length, bytes) = rest.split_first_chunk::<4>().ok_or(Misframed::Cut)?;
    let length = u32::from_be_bytes(*length) as usize;
    match bytes.len() {
        has if has < length => Err(Misframed::Cut),
        has if has > length => Err(Misframed::Several),
        _ => Ok(Message { compressed, bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_message_is_read() {
        let read = |data: &'static [u8]| message(data);
        assert_eq!(read(b"\0\0\0\0\x02hi"), Ok(Message { compressed: false, bytes: b"hi" }));
        assert_eq!(read(b"\x01\0\0\0\x02hi"), Ok(Message { compressed: true, bytes: b"hi" }));
        assert_eq!(read(b"\0\0\0\0\0"), Ok(Message { compressed: false, bytes: b"" }));
    }

    #[test]
    fn anything_but_one_message_is_an_error() {
        assert_eq!(message(b""), Err(Misframed::Empty));
        for cut in 1..7 {
            assert_eq!(message(&b"\0\0\0\0\x02hi"[..cut]), Err(Misframed::Cut), "{cut}");
        }
        assert_eq!(message(b"\0\xff\xff\xff\xffhi"), Err(Misframed::Cut));
        assert_eq!(message(b"\0\0\0\0\x01hi"), Err(Misframed::Several));
        assert_eq!(message(b"\0\0\0\0\0\0\0\0\0\0"), Err(Misframed::Several));
        assert_eq!(message(b"{\"a\":1}"), Err(Misframed::Flag(b'{')));
    }
}
