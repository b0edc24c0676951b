//! A private MySQL (Oracle's), beside MariaDB.

use std::ffi::OsString;
use std::fs;

use super::account::Account;
use super::error::Error;
use super::install;
use super::mariadb::{LOGIN, answers, flag, ready};
use super::options::Options;
use super::process::Launch;
use super::scratch::Scratch;
use super::server::{Recipe, Server};

/// Starts private MySQL servers. A namespace; it has no values.
#[derive(Debug)]
pub enum MySql {}

/// A small but durable configuration, as MariaDB's.
const FLAGS: [&str; 14] = [
    "--bind-address=127.0.0.1",
    "--skip-networking=0",
    "--skip-name-resolve",
    "--socket=mysql.sock",
    "--pid-file=mysql.pid",
    // The X protocol would listen on a well-known port.
    "--mysqlx=OFF",
    // The packaged directory for exported files does not exist.
    "--secure-file-priv=NULL",
    "--skip-log-bin",
    "--max-connections=300",
    "--performance-schema=OFF",
    "--innodb-buffer-pool-size=64M",
    "--innodb-redo-log-capacity=64M",
    "--innodb-flush-log-at-trx-commit=1",
    "--default-time-zone=+00:00",
];

impl MySql {
    /// Starts MySQL with superuser `root` and no password. If this process is root, the server runs
    /// under the account `mysql`. The URL has the database `mysql`, the only one that always
    /// exists.
    pub fn start(options: Options) -> Result<Server, Error> {
        let program = install::mysql()?;
        let account = Account::for_server("mysql")?;
        let scratch = Scratch::new("mysql")?;
        let data = scratch.data(account.as_ref())?;
        let mut common = program.leading.clone();
        common.extend(["--no-defaults".into(), flag("--datadir=", &data)]);
        common.push(flag("--tmpdir=", &data));
        if let Some(root) = &program.root {
            common.push(flag("--basedir=", &root.join("usr")));
            common.push(flag("--lc-messages-dir=", &root.join("usr/share/mysql")));
            common.push(flag("--plugin-dir=", &root.join("usr/lib/mysql/plugin")));
        }
        let launch = |args: Vec<OsString>| Launch {
            program: program.path.clone(),
            args,
            env: Vec::new(),
            account: account.clone(),
            on_our_death: "KILL",
        };
        let mut init = common.clone();
        init.push("--initialize-insecure".into());
        launch(init).complete(scratch.path())?;

        let login = scratch.path().join("login.sql");
        fs::write(&login, LOGIN).map_err(|error| Error::system("writing login.sql", error))?;
        let flags = options.into_flags();
        Server::start(scratch, |port| {
            let mut args = common.clone();
            args.push(format!("--port={port}").into());
            args.push(flag("--init-file=", &login));
            args.extend(FLAGS.map(OsString::from));
            args.extend(flags.iter().cloned());
            Ok(Recipe {
                name: "mysqld",
                launch: launch(args),
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
