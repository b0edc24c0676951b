//! A private PostgreSQL.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::time::Duration;

use super::account::Account;
use super::error::Error;
use super::install;
use super::options::Options;
use super::port;
use super::process::Launch;
use super::scratch::Scratch;
use super::server::{Recipe, Server, Vitals};

/// Starts private PostgreSQL servers; a namespace, never a value.
#[derive(Debug)]
pub enum Postgres {}

/// Small, because several run at once on two cores, but as durable as in production: a test that
/// kills the server must not pass or fail because of relaxed flushing.
const SETTINGS: [&str; 6] = [
    "listen_addresses=127.0.0.1",
    // A socket file's path has a length limit that temporary directories easily exceed.
    "unix_socket_directories=",
    "max_connections=300",
    "shared_buffers=64MB",
    "fsync=on",
    "timezone=UTC",
];

impl Postgres {
    /// Starts PostgreSQL with superuser `postgres`, no password, database `postgres`, UTF-8 and the
    /// C locale. As root it runs under the account `postgres`.
    pub fn start(options: Options) -> Result<Server, Error> {
        let programs = install::postgres()?;
        let account = Account::for_server("postgres")?;
        let scratch = Scratch::new("postgres")?;
        let data = scratch.data(account.as_ref())?;
        let launch = |program: &str, args: Vec<OsString>| Launch {
            program: programs.join(program),
            args,
            env: Vec::new(),
            account: account.clone(),
            // An immediate shutdown. Killing would leave the tiny System V segment behind by which
            // PostgreSQL guards its directory.
            on_our_death: "QUIT",
        };
        let mut init: Vec<OsString> = vec!["-D".into(), data.clone().into()];
        let choices = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"];
        init.extend(choices.map(OsString::from));
        launch("initdb", init).complete(scratch.path())?;

        let flags = options.into_flags();
        Server::start(scratch, |port| {
            let mut args: Vec<OsString> = vec!["-D".into(), data.clone().into()];
            args.extend(["-p".into(), port.to_string().into()]);
            args.extend(SETTINGS.iter().flat_map(|setting| ["-c".into(), setting.into()]));
            args.extend(flags.iter().cloned());
            Ok(Recipe {
                name: "postgres",
                launch: launch("postgres", args),
                companion: None,
                url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
                polite: "INT",
                abrupt: "QUIT",
                ready,
                answers,
            })
        })
    }
}

/// The lock file has our process on its first line and a status on its eighth. Both are needed: a
/// stale file of a killed server may still say "ready", and another server may own the port.
fn ready(vitals: &Vitals<'_>) -> bool {
    let file = fs::read_to_string(vitals.data.join("postmaster.pid")).unwrap_or_default();
    let mut lines = file.lines().map(str::trim);
    let ours = lines.next() == Some(vitals.pid.to_string().as_str());
    ours && lines.nth(6) == Some("ready") && answers(vitals.port, Duration::from_secs(1))
}

/// Asks whether TLS is spoken, the one question that needs no login: a backend must be forked to
/// answer it with a single letter.
fn answers(port: u16, within: Duration) -> bool {
    let ask = || -> std::io::Result<u8> {
        let mut stream = port::dial(port, within)?;
        stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47])?;
        let mut letter = [0];
        stream.read_exact(&mut letter)?;
        Ok(letter[0])
    };
    ask().is_ok_and(|letter| matches!(letter, b'N' | b'S'))
}
