//! A private PgBouncer in transaction mode, in front of a PostgreSQL.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::time::Duration;

use super::account::Account;
use super::error::Error;
use super::install;
use super::port;
use super::process::Launch;
use super::release::Program;
use super::scratch::Scratch;
use super::server::{Recipe, Server, Vitals};

/// Builds a private PgBouncer, which shares server connections between clients per transaction.
///
/// Clients connect with any user name; the database in their URL is passed on.
#[derive(Debug, Clone)]
#[must_use]
pub struct PgBouncer {
    upstream: u16,
    program: Option<Program>,
    settings: Vec<(String, String)>,
}

impl PgBouncer {
    /// Prepares a PgBouncer in front of the PostgreSQL on this loopback port.
    pub fn before(upstream: u16) -> Self {
        Self { upstream, program: None, settings: Vec::new() }
    }

    /// Uses the PgBouncer of a newer Debian release, which tracks prepared statements.
    pub fn newest(mut self) -> Result<Self, Error> {
        self.program = Some(install::newest_pgbouncer()?);
        Ok(self)
    }

    /// Adds a line to the section `[pgbouncer]`; it overrides the default.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts PgBouncer. If this process is root, it runs under the account `postgres`.
    pub fn start(self) -> Result<Server, Error> {
        let program = match &self.program {
            Some(program) => program.clone(),
            None => Program::installed(install::pgbouncer()?),
        };
        let account = Account::for_server("postgres")?;
        let scratch = Scratch::new("pgbouncer")?;
        let data = scratch.data(account.as_ref())?;
        Server::start(scratch, |port| {
            let file = data.join("pgbouncer.ini");
            fs::write(&file, self.file(port))
                .map_err(|error| Error::system(format!("writing {}", file.display()), error))?;
            let mut args = program.leading.clone();
            args.push(file.into());
            Ok(Recipe {
                name: "pgbouncer",
                launch: Launch {
                    program: program.path.clone(),
                    args,
                    env: Vec::new(),
                    account: account.clone(),
                    on_our_death: "KILL",
                },
                companion: None,
                url: format!("postgres://postgres@127.0.0.1:{port}/postgres"),
                polite: "INT",
                abrupt: "KILL",
                ready,
                answers,
            })
        })
    }

    fn file(&self, port: u16) -> String {
        let upstream = self.upstream;
        let mut file = format!(
            "[databases]\n* = host=127.0.0.1 port={upstream} user=postgres\n\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = transaction\n"
        );
        for (name, value) in &self.settings {
            // Writing to a string never fails.
            let _ = writeln!(file, "{name} = {value}");
        }
        file
    }
}

/// Checks readiness: PgBouncer logs it after its port is bound, and ends if it cannot bind the
/// port.
fn ready(vitals: &Vitals<'_>) -> bool {
    vitals.log.contains("process up") && answers(vitals.port, Duration::from_secs(1))
}

/// Returns whether PgBouncer answers the question for TLS with a single letter, as PostgreSQL does.
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
