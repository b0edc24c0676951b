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
        Ground::new()?.start(options, |ground| {
            let mut init: Vec<OsString> = vec!["-D".into(), ground.data.clone().into()];
            let choices =
                ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"];
            init.extend(choices.map(OsString::from));
            ground.launch("initdb", init).complete(ground.scratch.path())
        })
    }

    /// Starts a standby of a running primary: a base backup that follows it by streaming, through a
    /// replication slot and under an application name that are both `name`.
    ///
    /// It is asynchronous unless the primary's `synchronous_standby_names` lists that name.
    pub fn standby(primary: &Server, name: &str, options: Options) -> Result<Server, Error> {
        let conninfo =
            format!("host=127.0.0.1 port={} user=postgres application_name={name}", primary.port());
        Ground::new()?.start(options, |ground| {
            let mut copy: Vec<OsString> = vec!["-D".into(), ground.data.clone().into()];
            copy.extend(["-d".into(), conninfo.into()]);
            copy.extend(["-R", "-C", "-S", name, "-X", "stream"].map(OsString::from));
            copy.extend(["--checkpoint=fast", "--no-sync"].map(OsString::from));
            ground.launch("pg_basebackup", copy).complete(ground.scratch.path())
        })
    }

    /// Promotes a standby, and returns when it takes writes.
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

/// Where a server is about to be set up.
struct Ground {
    programs: PathBuf,
    account: Option<Account>,
    scratch: Scratch,
    data: PathBuf,
}

impl Ground {
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
            // An immediate shutdown. Killing would leave the tiny System V segment behind by which
            // PostgreSQL guards its directory.
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

/// The lock file has our process on its first line and a status on its eighth. Both are needed: a
/// stale file of a killed server may still say "ready", and another server may own the port.
fn ready(vitals: &Vitals<'_>) -> bool {
    let file = fs::read_to_string(vitals.data.join("postmaster.pid")).unwrap_or_default();
    let mut lines = file.lines().map(str::trim);
    let ours = lines.next() == Some(vitals.pid.to_string().as_str());
    // A standby that takes readers says so instead.
    let open = matches!(lines.nth(6), Some("ready" | "standby"));
    ours && open && answers(vitals.port, Duration::from_secs(1))
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
