//! A private Redis.

use std::ffi::OsString;
use std::time::Duration;

use super::error::Error;
use super::install;
use super::options::Options;
use super::process::Launch;
use super::resp::Connection;
use super::scratch::Scratch;
use super::server::{Recipe, Server, Vitals};

/// Starts private Redis servers. A namespace; it has no values.
#[derive(Debug)]
pub enum Redis {}

/// The settings that a ledger needs: acknowledged writes survive the death of the process, and
/// nothing is evicted.
const FLAGS: [&str; 12] = [
    "--bind",
    "127.0.0.1",
    "--daemonize",
    "no",
    "--save",
    "",
    "--appendonly",
    "yes",
    "--appendfsync",
    "everysec",
    "--maxmemory-policy",
    "noeviction",
];

impl Redis {
    /// Starts a single Redis without a password, under the account of this process.
    pub fn start(options: Options) -> Result<Server, Error> {
        let program = install::redis()?;
        let scratch = Scratch::new("redis")?;
        let data = scratch.data(None)?;
        let flags = options.into_flags();
        Server::start(scratch, |port| {
            let mut args: Vec<OsString> = vec!["--port".into(), port.to_string().into()];
            args.extend(["--dir".into(), data.clone().into()]);
            args.extend(FLAGS.map(OsString::from));
            args.extend(flags.iter().cloned());
            Ok(Recipe {
                name: "redis-server",
                launch: Launch {
                    program: program.clone(),
                    args,
                    env: Vec::new(),
                    account: None,
                    on_our_death: "KILL",
                },
                companion: None,
                url: format!("redis://127.0.0.1:{port}"),
                polite: "TERM",
                abrupt: "KILL",
                ready,
                answers,
            })
        })
    }
}

/// Checks readiness. The process id distinguishes this server from another one that took the port;
/// the ping fails while the server still loads its data.
fn ready(vitals: &Vitals<'_>) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut connection = Connection::open(vitals.port, Duration::from_secs(1))?;
        let ours = format!("process_id:{}", vitals.pid);
        let info = connection.ask(&["INFO", "server"])?.text();
        Ok(info.lines().any(|line| line.trim() == ours) && pong(&mut connection)?)
    };
    ask().unwrap_or(false)
}

fn answers(port: u16, within: Duration) -> bool {
    Connection::open(port, within).and_then(|mut connection| pong(&mut connection)).unwrap_or(false)
}

fn pong(connection: &mut Connection) -> std::io::Result<bool> {
    Ok(connection.ask(&["PING"])?.text() == "PONG")
}
