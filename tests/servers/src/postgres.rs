//! A private PostgreSQL.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use super::account::Account;
use super::error::Error;
use super::install;
use super::options::Options;
use super::port;
use super::process::Launch;
use super::scratch::Scratch;
use super::server::{Recipe, Server, Vitals};

/// Starts private PostgreSQL servers. A namespace; it has no values.
#[derive(Debug)]
pub enum Postgres {}

/// Small, because several servers run at once on two cores, but as durable as in production: a test
/// that kills the server must not pass or fail because of relaxed flushing.
const SETTINGS: [&str; 6] = [
    "listen_addresses=127.0.0.1",
    // No socket file: its path has a length limit that temporary directories easily exceed.
    "unix_socket_directories=",
    "max_connections=300",
    "shared_buffers=64MB",
    "fsync=on",
    "timezone=UTC",
];

impl Postgres {
    /// Starts PostgreSQL with superuser `postgres`, no password, database `postgres`, UTF-8 and the
    /// C locale. If this process is root, the server runs under the account `postgres`.
    pub fn start(options: Options) -> Result<Server, Error> {
        Setup::new()?.start(options, |setup| {
            let mut init: Vec<OsString> = vec!["-D".into(), setup.data.clone().into()];
            let choices =
                ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"];
            init.extend(choices.map(OsString::from));
            setup.launch("initdb", init).complete(setup.scratch.path())
        })
    }

    /// Starts a standby of a running primary: a base backup that follows the primary by streaming.
    /// `name` is both its replication slot and its application name.
    ///
    /// The standby is asynchronous unless the primary's `synchronous_standby_names` lists `name`.
    pub fn standby(primary: &Server, name: &str, options: Options) -> Result<Server, Error> {
        let conninfo =
            format!("host=127.0.0.1 port={} user=postgres application_name={name}", primary.port());
        Setup::new()?.start(options, |setup| {
            let mut copy: Vec<OsString> = vec!["-D".into(), setup.data.clone().into()];
            copy.extend(["-d".into(), conninfo.into()]);
            copy.extend(["-R", "-C", "-S", name, "-X", "stream"].map(OsString::from));
            copy.extend(["--checkpoint=fast", "--no-sync"].map(OsString::from));
            setup.launch("pg_basebackup", copy).complete(setup.scratch.path())
        })
    }

    /// Promotes a standby, and returns once it accepts writes.
    pub fn promote(standby: &Server) -> Result<(), Error> {
        let programs = install::postgres()?;
        let data = standby.directory().join("data");
        let promote = Launch {
            program: programs.join("pg_ctl"),
            args: vec!["-D".into(), data.into(), "-w".into(), "promote".into()],
            env: Vec::new(),
            account: Account::for_server("postgres")?,
            on_our_death: "QUIT",
        };
        promote.complete(standby.directory())
    }
}

/// The directory, the account and the programs of a server that is being set up.
struct Setup {
    programs: PathBuf,
    account: Option<Account>,
    scratch: Scratch,
    data: PathBuf,
}

impl Setup {
    fn new() -> Result<Self, Error> {
        let programs = install::postgres()?;
        let account = Account::for_server("postgres")?;
        let scratch = Scratch::new("postgres")?;
        let data = scratch.data(account.as_ref())?;
        Ok(Self { programs, account, scratch, data })
    }

    fn launch(&self, program: &str, args: Vec<OsString>) -> Launch {
        Launch {
            program: self.programs.join(program),
            args,
            env: Vec::new(),
            account: self.account.clone(),
            // An immediate shutdown. A kill would leave behind the small System V segment with
            // which PostgreSQL guards its directory.
            on_our_death: "QUIT",
        }
    }

    /// Fills the data directory and starts a server on it.
    fn start(
        self,
        options: Options,
        fill: impl FnOnce(&Self) -> Result<(), Error>,
    ) -> Result<Server, Error> {
        fill(&self)?;
        let flags = options.into_flags();
        let server = self.launch("postgres", Vec::new());
        let Self { scratch, data, .. } = self;
        Server::start(scratch, |port| {
            let mut args: Vec<OsString> = vec!["-D".into(), data.clone().into()];
            args.extend(["-p".into(), port.to_string().into()]);
            args.extend(SETTINGS.iter().flat_map(|setting| ["-c".into(), setting.into()]));
            args.extend(flags.iter().cloned());
            Ok(Recipe {
                name: "postgres",
                launch: Launch { args, ..server.clone() },
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

/// Checks readiness. The lock file has the process id on its first line and a status on its eighth.
/// Both are needed: a stale file of a killed server may still contain "ready", and another server
/// may own the port.
fn ready(vitals: &Vitals<'_>) -> bool {
    let file = fs::read_to_string(vitals.data.join("postmaster.pid")).unwrap_or_default();
    let mut lines = file.lines().map(str::trim);
    let ours = lines.next() == Some(vitals.pid.to_string().as_str());
    // The status of a standby that accepts readers.
    let open = matches!(lines.nth(6), Some("ready" | "standby"));
    ours && open && answers(vitals.port, Duration::from_secs(1))
}

/// Returns whether the server answers the question for TLS, which needs no login: a backend must be
/// forked to answer it with a single letter.
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
