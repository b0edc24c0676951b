//! A minimal AMQP 0-9-1, to publish a message to RabbitMQ and to get it back.
//!
//! Not a client: one channel, no heartbeats, and any reply other than the expected one is an error.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const END: u8 = 0xCE;
const DURABLE: u8 = 0b10;
const NO_ACK: u8 = 1;

/// The numbers of a class and its method.
type Method = (u16, u16);

/// A connection with one channel open and publisher confirms on.
pub(crate) struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Logs in as a user of the virtual host `/`; each wait is bounded by `within`.
    pub(crate) fn open(port: u16, user: &str, within: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(within))?;
        let mut it = Self { stream };
        it.stream.write_all(b"AMQP\x00\x00\x09\x01")?;
        it.expect((10, 10))?;
        let login = [&[0], user.as_bytes(), &[0], user.as_bytes()].concat();
        let start = [long(b""), short("PLAIN"), long(&login), short("en_US")].concat();
        let mut tune = it.call(0, (10, 11), &start, (10, 30))?;
        // Accepts the server's limits, but without heartbeats.
        tune.truncate(6);
        it.method(0, (10, 31), &[tune, vec![0, 0]].concat())?;
        it.call(0, (10, 40), &[short("/"), short(""), vec![0]].concat(), (10, 41))?;
        it.call(1, (20, 10), &short(""), (20, 11))?;
        it.call(1, (85, 10), &[0], (85, 11))?;
        Ok(it)
    }

    /// Declares a quorum queue.
    pub(crate) fn declare(&mut self, queue: &str) -> io::Result<()> {
        let kind = [short("x-queue-type"), b"S".to_vec(), long(b"quorum")].concat();
        let declare = [vec![0, 0], short(queue), vec![DURABLE], long(&kind)].concat();
        self.call(1, (50, 10), &declare, (50, 11)).map(|_| ())
    }

    /// Publishes a persistent message and waits for the confirm.
    pub(crate) fn publish(&mut self, queue: &str, body: &[u8]) -> io::Result<()> {
        self.method(1, (60, 40), &[vec![0, 0], short(""), short(queue), vec![0]].concat())?;
        let mut header = vec![0, 60, 0, 0];
        header.extend((body.len() as u64).to_be_bytes());
        header.extend([0x10, 0, 2]);
        self.frame(HEADER, 1, &header)?;
        self.frame(BODY, 1, body)?;
        self.expect((60, 80)).map(|_| ())
    }

    /// Takes one message, if there is one.
    pub(crate) fn take(&mut self, queue: &str) -> io::Result<Option<Vec<u8>>> {
        self.method(1, (60, 70), &[vec![0, 0], short(queue), vec![NO_ACK]].concat())?;
        match self.read()? {
            (METHOD, payload) if payload.starts_with(&[0, 60, 0, 71]) => {}
            (METHOD, payload) if payload.starts_with(&[0, 60, 0, 72]) => return Ok(None),
            other => return Err(strange(&other)),
        }
        self.read()?;
        Ok(Some(self.read()?.1))
    }

    fn call(
        &mut self,
        channel: u16,
        method: Method,
        arguments: &[u8],
        reply: Method,
    ) -> io::Result<Vec<u8>> {
        self.method(channel, method, arguments)?;
        self.expect(reply)
    }

    fn method(&mut self, channel: u16, (class, id): Method, arguments: &[u8]) -> io::Result<()> {
        let payload = [&class.to_be_bytes(), &id.to_be_bytes(), arguments].concat();
        self.frame(METHOD, channel, &payload)
    }

    fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) -> io::Result<()> {
        let mut frame = vec![kind];
        frame.extend(channel.to_be_bytes());
        frame.extend(long(payload));
        frame.push(END);
        self.stream.write_all(&frame)
    }

    /// Reads a frame and returns the arguments of the method, which must be the expected one.
    fn expect(&mut self, (class, id): Method) -> io::Result<Vec<u8>> {
        let (kind, payload) = self.read()?;
        let wanted = [class.to_be_bytes(), id.to_be_bytes()].concat();
        match payload.strip_prefix(wanted.as_slice()) {
            Some(arguments) if kind == METHOD => Ok(arguments.to_vec()),
            _ => Err(strange(&(kind, payload))),
        }
    }

    fn read(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 7];
        self.stream.read_exact(&mut head)?;
        let [kind, _, _, size @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes(size) as usize + 1];
        self.stream.read_exact(&mut payload)?;
        payload.pop();
        Ok((kind, payload))
    }
}

fn short(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).expect("tests use short strings");
    [&[length], text.as_bytes()].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("tests use short bodies");
    [&length.to_be_bytes(), bytes].concat()
}

fn strange((kind, payload): &(u8, Vec<u8>)) -> io::Error {
    io::Error::other(format!("frame {kind}: {}", String::from_utf8_lossy(payload)))
}
