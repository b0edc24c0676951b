//! A private RabbitMQ: one Erlang node with a name service of its own.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use super::account::Account;
use super::error::Error;
use super::install;
use super::options::Options;
use super::port;
use super::process::Launch;
use super::scratch::Scratch;
use super::server::{Companion, Recipe, Server, Vitals};

/// Starts private RabbitMQ servers. A namespace; it has no values.
#[derive(Debug)]
pub enum RabbitMq {}

/// One scheduler is enough for a test. The script adds `-noinput` only if it stays as a wrapper,
/// which it must not.
const ERL_ARGS: &str = "-noinput +S 1:1 -kernel inet_dist_use_interface {127,0,0,1}";

/// The offset of a second port that is free for each chosen port.
const NEIGHBOUR: u16 = 10_000;

impl RabbitMq {
    /// Starts RabbitMQ with user `guest`, password `guest`, the virtual host `/` and no plugins. As
    /// root it runs under the account `rabbitmq`.
    ///
    /// Erlang nodes find each other through a name service, `epmd`, of which a machine usually has
    /// one. The name service of this server has its own port, ends with the server and is not affected by
    /// [`Server::kill9`] and [`Server::pause`].
    ///
    /// A quorum queue survives a kill only once [`RabbitMq::has_stored`] returns `true` for it.
    pub fn start(options: Options) -> Result<Server, Error> {
        let programs = install::rabbitmq()?;
        let account = Account::for_server("rabbitmq")?;
        let scratch = Scratch::new("rabbitmq")?;
        let data = scratch.data(account.as_ref())?;
        // Without this file RabbitMQ reads that of the packaged service.
        let plugins = scratch.path().join("plugins");
        fs::write(&plugins, "[].\n").map_err(|error| Error::system("writing plugins", error))?;
        let flags = options.into_flags();
        Server::start(scratch, |port| {
            let epmd = port::free()?;
            let launch = |program: &Path, args, more: Vec<(&'static str, OsString)>| Launch {
                program: program.to_owned(),
                args,
                env: [names(epmd.number()), more].concat(),
                account: account.clone(),
                on_our_death: "KILL",
            };
            let mut env = ports(port);
            env.extend(places(&data));
            env.push(("RABBITMQ_ENABLED_PLUGINS_FILE", plugins.clone().into()));
            Ok(Recipe {
                name: "rabbitmq-server",
                launch: launch(&programs.server, flags.clone(), env),
                companion: Some(Companion {
                    launch: launch(&programs.epmd, Vec::new(), Vec::new()),
                    port: epmd,
                }),
                url: format!("amqp://guest:guest@127.0.0.1:{port}/%2f"),
                polite: "TERM",
                abrupt: "KILL",
                ready,
                answers,
            })
        })
    }

    /// Returns whether a quorum queue of the virtual host `/` would survive a kill of this server.
    ///
    /// RabbitMQ answers a declaration, and confirms messages, about a second before it stores which
    /// member the queue has. If it is killed in between, it finds the queue again but never a leader
    /// for it, and every request to the queue hangs (seen with 3.10). A fault test that kills the
    /// server declares its queues and waits for this before it begins.
    #[must_use]
    pub fn has_stored(server: &Server, queue: &str) -> bool {
        let node = node(server.port());
        let data = server.directory().join("data").join(&node);
        let names = fs::read(data.join("quorum").join(&node).join("names.dets"));
        // The member of a queue has a name made of both; the file contains such names unencoded,
        // each after its length.
        let member = format!("%2F_{queue}");
        let Ok(length) = u8::try_from(member.len()) else {
            return false;
        };
        let entry = [&[length], member.as_bytes()].concat();
        names.is_ok_and(|names| names.windows(entry.len()).any(|window| window == entry))
    }
}

/// Returns the node's name. It contains the port, so that two nodes that share a name service
/// differ.
fn node(port: u16) -> String {
    format!("semel-{port}@localhost")
}

/// Returns the variables with the address of the name service. RabbitMQ must not start one itself:
/// it would stay behind as a daemon.
fn names(epmd: u16) -> Vec<(&'static str, OsString)> {
    vec![
        ("ERL_EPMD_PORT", epmd.to_string().into()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".into()),
        ("ERL_FLAGS", "-start_epmd false".into()),
    ]
}

fn ports(port: u16) -> Vec<(&'static str, OsString)> {
    vec![
        ("RABBITMQ_NODENAME", node(port).into()),
        ("RABBITMQ_USE_LONGNAME", "false".into()),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".into()),
        ("RABBITMQ_NODE_PORT", port.to_string().into()),
        ("RABBITMQ_DIST_PORT", (port + NEIGHBOUR).to_string().into()),
        // The script replaces itself with the server, which then is the process that was started.
        ("RABBITMQ_ALLOW_INPUT", "1".into()),
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", ERL_ARGS.into()),
        ("ERL_CRASH_DUMP_SECONDS", "0".into()),
    ]
}

/// Returns the variables with the paths. All files are in the data directory, the cookie too; the
/// configuration of the packaged service is not used.
fn places(data: &Path) -> Vec<(&'static str, OsString)> {
    let absent = data.join("absent");
    vec![
        ("HOME", data.into()),
        ("RABBITMQ_MNESIA_BASE", data.into()),
        ("RABBITMQ_LOG_BASE", data.into()),
        ("RABBITMQ_LOGS", "-".into()),
        ("RABBITMQ_PID_FILE", data.join("pid").into()),
        ("RABBITMQ_CONF_ENV_FILE", absent.clone().into()),
        ("RABBITMQ_CONFIG_FILE", absent.clone().into()),
        ("RABBITMQ_CONFIG_FILES", absent.clone().into()),
        ("RABBITMQ_ADVANCED_CONFIG_FILE", absent.into()),
    ]
}

/// Checks readiness: the log line comes after the port is bound. A server that lost its port to
/// another process ends instead of logging it, so a greeting afterwards comes from this server.
fn ready(vitals: &Vitals<'_>) -> bool {
    vitals.log.contains("Server startup complete") && answers(vitals.port, Duration::from_secs(1))
}

/// Returns whether the server answers the client's header with the method `connection.start` on
/// channel zero; a server of another protocol version would answer with a header of its own.
fn answers(port: u16, within: Duration) -> bool {
    let greet = || -> io::Result<[u8; 11]> {
        let mut stream = port::dial(port, within)?;
        stream.write_all(b"AMQP\x00\x00\x09\x01")?;
        let mut frame = [0; 11];
        stream.read_exact(&mut frame)?;
        Ok(frame)
    };
    greet().is_ok_and(|frame| matches!(frame, [1, 0, 0, _, _, _, _, 0, 10, 0, 10]))
}
