//! A private NATS with JetStream.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::time::Duration;

use super::error::Error;
use super::install;
use super::options::Options;
use super::port;
use super::process::Launch;
use super::scratch::Scratch;
use super::server::{Recipe, Server, Vitals};

/// Starts private NATS servers. A namespace; it has no values.
#[derive(Debug)]
pub enum Nats {}

impl Nats {
    /// Starts a single NATS without a password, with JetStream on files, under the account of this
    /// process. Acknowledged messages survive a kill: they are written, if not flushed.
    pub fn start(options: Options) -> Result<Server, Error> {
        let program = install::nats()?;
        let scratch = Scratch::new("nats")?;
        let data = scratch.data(None)?;
        let flags = options.into_flags();
        Server::start(scratch, |port| {
            let mut args: Vec<OsString> = vec!["--addr".into(), "127.0.0.1".into()];
            args.extend(["--port".into(), port.to_string().into()]);
            args.extend(["--jetstream".into(), "--store_dir".into(), data.clone().into()]);
            args.extend(flags.iter().cloned());
            Ok(Recipe {
                name: "nats-server",
                launch: Launch {
                    program: program.clone(),
                    args,
                    env: Vec::new(),
                    account: None,
                    on_our_death: "KILL",
                },
                companion: None,
                url: format!("nats://127.0.0.1:{port}"),
                polite: "TERM",
                abrupt: "KILL",
                ready,
                answers,
            })
        })
    }
}

/// Checks readiness. The server id, which is new at every start and also in the log, distinguishes
/// this server from another one that took the port.
fn ready(vitals: &Vitals<'_>) -> bool {
    const LIMIT: Duration = Duration::from_secs(1);
    vitals.log.contains("Server is ready")
        && greet(vitals.port, LIMIT)
            .is_ok_and(|info| identity(&info).is_some_and(|id| vitals.log.contains(id)))
}

fn answers(port: u16, within: Duration) -> bool {
    greet(port, within).is_ok()
}

/// Reads the server's description, which it sends first, and checks that it answers a ping.
fn greet(port: u16, within: Duration) -> io::Result<String> {
    let mut stream = BufReader::new(port::dial(port, within)?);
    let info = line(&mut stream)?;
    stream.get_mut().write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n")?;
    let pong = line(&mut stream)?;
    if info.starts_with("INFO ") && pong.trim_end() == "PONG" {
        return Ok(info);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("not a NATS: {info:?}, {pong:?}")))
}

fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    match stream.read_line(&mut line)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line),
    }
}

fn identity(info: &str) -> Option<&str> {
    let (_, rest) = info.split_once(r#""server_id":""#)?;
    Some(rest.split_once('"')?.0)
}
