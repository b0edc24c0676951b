//! A private MariaDB.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::time::Duration;

use super::account::Account;
use super::error::Error;
use super::install;
use super::options::Options;
use super::port;
use super::process::Launch;
use super::scratch::Scratch;
use super::server::{Recipe, Server, Vitals};

/// Starts private MariaDB servers. A namespace; it has no values.
#[derive(Debug)]
pub enum MariaDb {}

/// A small but durable configuration, for the same reason as PostgreSQL's. Relative names are
/// relative to the data directory: the path of the socket stays short, and the pid file is in a
/// directory that the account may write to. A server that cannot write its pid file exits only
/// *after* it has opened its port.
const FLAGS: [&str; 12] = [
    "--bind-address=127.0.0.1",
    "--skip-networking=0",
    // Without name resolution, a login does not depend on the machine's hosts file.
    "--skip-name-resolve",
    "--socket=mariadb.sock",
    "--pid-file=mariadb.pid",
    "--skip-log-bin",
    "--max-connections=300",
    "--performance-schema=OFF",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=48M",
    "--innodb-flush-log-at-trx-commit=1",
    "--default-time-zone=+00:00",
];

/// Creates the login for TCP clients: the set-up tool creates `root@localhost`, which does not
/// match an address once names are not resolved.
pub(super) const LOGIN: &str = "CREATE USER IF NOT EXISTS root@'127.0.0.1';\n\
                     GRANT ALL PRIVILEGES ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n";

impl MariaDb {
    /// Starts MariaDB with superuser `root` and no password. If this process is root, the server
    /// runs under the account `mysql`. The URL has the database `mysql`, the only one that always
    /// exists.
    pub fn start(options: Options) -> Result<Server, Error> {
        let programs = install::mariadb()?;
        // The account is changed before the server starts: a server that changes its own account
        // loses the parent-death signal.
        let account = Account::for_server("mysql")?;
        let scratch = Scratch::new("mariadb")?;
        let data = scratch.data(account.as_ref())?;
        let data_flag = flag("--datadir=", &data);
        // Each server has a temporary directory of its own: a starting server deletes the temporary
        // tables that it finds there, other servers' included.
        let temporary = flag("--tmpdir=", &data);
        let launch = |program, args: Vec<OsString>| Launch {
            program,
            args,
            env: Vec::new(),
            account: account.clone(),
            on_our_death: "KILL",
        };
        let init = vec![
            "--no-defaults".into(),
            data_flag.clone(),
            temporary.clone(),
            "--auth-root-authentication-method=normal".into(),
            "--skip-test-db".into(),
            "--skip-name-resolve".into(),
        ];
        launch(programs.install_db, init).complete(scratch.path())?;

        let login = scratch.path().join("login.sql");
        fs::write(&login, LOGIN).map_err(|error| Error::system("writing login.sql", error))?;
        let flags = options.into_flags();
        Server::start(scratch, |port| {
            let mut args: Vec<OsString> =
                vec!["--no-defaults".into(), data_flag.clone(), temporary.clone()];
            args.push(format!("--port={port}").into());
            args.push(flag("--init-file=", &login));
            args.extend(FLAGS.map(OsString::from));
            args.extend(flags.iter().cloned());
            Ok(Recipe {
                name: "mariadbd",
                launch: launch(programs.server.clone(), args),
                companion: None,
                url: format!("mysql://root@127.0.0.1:{port}/mysql"),
                polite: "TERM",
                abrupt: "KILL",
                ready,
                answers,
            })
        })
    }
}

pub(super) fn flag(name: &str, path: &std::path::Path) -> OsString {
    let mut flag = OsString::from(name);
    flag.push(path);
    flag
}

/// Checks readiness: the log line comes after the port is bound and the login exists. A server that
/// lost its port to another process ends instead of logging it, so a greeting afterwards comes from
/// this server.
pub(super) fn ready(vitals: &Vitals<'_>) -> bool {
    vitals.log.contains("ready for connections") && answers(vitals.port, Duration::from_secs(1))
}

/// Returns whether the server greets a new connection: a header of four bytes, then the protocol's
/// version, ten. A refusal (too many connections) has 255 in its place.
pub(super) fn answers(port: u16, within: Duration) -> bool {
    let greet = || -> std::io::Result<u8> {
        let mut greeting = [0; 5];
        port::dial(port, within)?.read_exact(&mut greeting)?;
        Ok(greeting[4])
    };
    greet().is_ok_and(|version| version == 10)
}
