//! Finds the programs of the servers, and installs missing ones.
//!
//! Finding changes nothing. [`ensure`] installs, only as root on a Debian-like system and only
//! missing programs; otherwise its error lists what to install.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::account;
use super::error::{Error, ErrorKind};
use super::release::{self, Program};

/// Directories that contain servers but are not on an ordinary user's `PATH`.
const MORE_DIRECTORIES: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin"];
/// The directory in which Debian has one subdirectory per major version of PostgreSQL.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";
/// The directory in which Debian has RabbitMQ's own script. The script on the `PATH` is a wrapper
/// that changes to the account of the packaged service and logs to its files.
const RABBITMQ_SCRIPTS: &str = "/usr/lib/rabbitmq/bin";
/// The program that Debian's package scripts run to decide whether they may start a service.
const SERVICE_POLICY: &str = "/usr/sbin/policy-rc.d";
/// The oldest PostgreSQL that the SQL stores support.
const POSTGRES_OLDEST: u32 = 13;
/// The oldest MySQL that the SQL stores support.
const MYSQL_OLDEST: u32 = 8;
/// The oldest Redis that the Redis store supports.
const REDIS_OLDEST: u32 = 7;
/// The first NATS with JetStream.
const NATS_OLDEST: u32 = 2;

/// The paths of MariaDB's programs.
#[derive(Debug, Clone)]
pub(super) struct MariaDbPrograms {
    pub(super) server: PathBuf,
    pub(super) install_db: PathBuf,
}

/// The paths of RabbitMQ's programs.
#[derive(Debug, Clone)]
pub(super) struct RabbitMqPrograms {
    /// The script that becomes the server process.
    pub(super) server: PathBuf,
    /// Erlang's name service, which RabbitMQ needs to start.
    pub(super) epmd: PathBuf,
}

/// Makes sure that the programs of every server are present, and installs missing ones.
///
/// Calls `say` with a message before anything on the machine changes.
pub fn ensure(mut say: impl FnMut(&str)) -> Result<(), Error> {
    install(&mut say)?;
    if mysql().is_ok() && release::is_unpacked() {
        return Ok(());
    }
    release::unpack(&mut say)
}

/// Installs the servers that are packages of the machine's own release.
fn install(say: &mut impl FnMut(&str)) -> Result<(), Error> {
    let lacking = lacking();
    if lacking.is_empty() {
        return Ok(());
    }
    let missing: Vec<&str> = lacking.iter().map(|(package, _)| *package).collect();
    let reasons = reasons(&lacking);
    if !(account::is_root() && program("apt-get").is_some()) {
        let why = "not installed for you, because that needs root and apt-get; nothing was changed";
        return Err(Error::new(ErrorKind::Missing, format!("{reasons}\n{why}")));
    }
    let line = ["install", "-y", "--no-install-recommends"];
    say(&format!(
        "{reasons}\nrunning: apt-get update; apt-get {} {}",
        line.join(" "),
        missing.join(" ")
    ));
    // The result of the update is ignored: an outdated index or a mirror that is partly down may
    // not matter, and if it does, the installation reports a better error.
    if let Err(error) = apt_get(&["update"], &[]) {
        say(&error.to_string());
    }
    // Dropped after the installation, whether or not that succeeds.
    let _quiet = NoServices::declare()?;
    apt_get(&line, &missing)?;
    let lacking = self::lacking();
    if lacking.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Install,
        format!("{}\n(even after installing {missing:?})", self::reasons(&lacking)),
    ))
}

/// Returns the packages whose programs are missing, with the reason for each.
fn lacking() -> Vec<(&'static str, Error)> {
    let checks = [
        ("postgresql", postgres().err()),
        ("pgbouncer", pgbouncer().err()),
        ("mariadb-server", mariadb().err()),
        ("redis-server", redis().err()),
        ("nats-server", nats().err()),
        ("rabbitmq-server", rabbitmq().err()),
        ("curl", curl().err()),
        ("chromium", chromium().err()),
        ("nginx", nginx().err()),
        ("haproxy", haproxy().err()),
        ("python3-venv", python().err()),
        ("nodejs", node().err()),
        ("npm", npm().err()),
    ];
    checks.into_iter().filter_map(|(package, error)| Some((package, error?))).collect()
}

fn reasons(lacking: &[(&str, Error)]) -> String {
    lacking.iter().map(|(_, error)| error.to_string()).collect::<Vec<_>>().join("\n")
}

/// Returns the path of a program on the `PATH` or in the usual directories for servers.
pub(super) fn program(name: &str) -> Option<PathBuf> {
    directories().into_iter().map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// Returns the directory with the newest PostgreSQL that has both `postgres` and `initdb`.
pub(super) fn postgres() -> Result<PathBuf, Error> {
    let versions = fs::read_dir(POSTGRES_VERSIONS).into_iter().flatten();
    let packaged = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    let newest = directories()
        .into_iter()
        .chain(packaged)
        .filter(|bin| bin.join("initdb").is_file())
        .filter_map(|bin| Some((major_version(&bin.join("postgres"))?, bin)))
        .max_by_key(|(version, _)| *version);
    match newest {
        Some((version, bin)) if version >= POSTGRES_OLDEST => Ok(bin),
        Some((version, _)) => Err(too_old("PostgreSQL", version, POSTGRES_OLDEST)),
        None => Err(missing("`postgres` with `initdb`", "postgresql")),
    }
}

/// Returns the path of PgBouncer.
pub(super) fn pgbouncer() -> Result<PathBuf, Error> {
    program("pgbouncer").ok_or_else(|| missing("`pgbouncer`", "pgbouncer"))
}

/// Returns the paths of MariaDB's server and set-up tool.
pub(super) fn mariadb() -> Result<MariaDbPrograms, Error> {
    let install_db = program("mariadb-install-db").or_else(|| program("mysql_install_db"));
    match (program("mariadbd"), install_db) {
        (Some(server), Some(install_db)) => Ok(MariaDbPrograms { server, install_db }),
        (None, _) => Err(missing("`mariadbd`", "mariadb-server")),
        (_, None) => Err(missing("`mariadb-install-db`", "mariadb-server")),
    }
}

/// Returns MySQL's server: the machine's own, else that of the unpacked release.
pub(super) fn mysql() -> Result<Program, Error> {
    let installed = program("mysqld").filter(|path| {
        // Packages of MariaDB have a program of this name too.
        let said = version(path).unwrap_or_default();
        !said.contains("MariaDB") && parse_major(&said).is_some_and(|major| major >= MYSQL_OLDEST)
    });
    installed
        .map(Program::installed)
        .or_else(|| release::program("mysqld"))
        .ok_or_else(|| missing("`mysqld` (MySQL, not MariaDB)", "mysql-server"))
}

/// Returns PgBouncer of the unpacked release.
pub(super) fn newest_pgbouncer() -> Result<Program, Error> {
    release::program("pgbouncer").ok_or_else(|| missing("a newer `pgbouncer`", "pgbouncer"))
}

/// Returns the path of the Redis server.
pub(super) fn redis() -> Result<PathBuf, Error> {
    let server =
        program("redis-server").ok_or_else(|| missing("`redis-server`", "redis-server"))?;
    match major_version(&server) {
        Some(version) if version < REDIS_OLDEST => Err(too_old("Redis", version, REDIS_OLDEST)),
        _ => Ok(server),
    }
}

/// Returns the path of the NATS server.
pub(super) fn nats() -> Result<PathBuf, Error> {
    let server = program("nats-server").ok_or_else(|| missing("`nats-server`", "nats-server"))?;
    match major_version(&server) {
        Some(version) if version < NATS_OLDEST => Err(too_old("NATS", version, NATS_OLDEST)),
        _ => Ok(server),
    }
}

/// Returns the paths of RabbitMQ's own script, recognised by the `rabbitmq-env` beside it, and of
/// Erlang's name service.
pub(super) fn rabbitmq() -> Result<RabbitMqPrograms, Error> {
    let scripts = std::iter::once(PathBuf::from(RABBITMQ_SCRIPTS))
        .chain(directories())
        .find(|bin| ["rabbitmq-server", "rabbitmq-env"].iter().all(|it| bin.join(it).is_file()));
    match (scripts, program("epmd")) {
        (Some(scripts), Some(epmd)) => {
            Ok(RabbitMqPrograms { server: scripts.join("rabbitmq-server"), epmd })
        }
        (None, _) => Err(missing("`rabbitmq-server` with `rabbitmq-env`", "rabbitmq-server")),
        (_, None) => Err(missing("`epmd`", "rabbitmq-server")),
    }
}

/// Returns the path of curl, with which tests send requests to servers of this workspace.
fn curl() -> Result<PathBuf, Error> {
    program("curl").ok_or_else(|| missing("`curl`", "curl"))
}

/// Returns the path of Chromium, for tests of behaviour that only browsers have.
pub fn chromium() -> Result<PathBuf, Error> {
    program("chromium").ok_or_else(|| missing("`chromium`", "chromium"))
}

/// Returns the path of nginx, which tests put in front of servers of this workspace.
pub fn nginx() -> Result<PathBuf, Error> {
    program("nginx").ok_or_else(|| missing("`nginx`", "nginx"))
}

/// Returns the path of HAProxy, which tests put in front of servers of this workspace.
pub fn haproxy() -> Result<PathBuf, Error> {
    program("haproxy").ok_or_else(|| missing("`haproxy`", "haproxy"))
}

/// Returns the path of a Python that can make virtual environments, for clients in Python.
pub fn python() -> Result<PathBuf, Error> {
    const CHECK: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 9))";
    // Debian's own beside any other on the `PATH`: the package adds the modules only to its own.
    let mut found = program("python3").into_iter().chain([PathBuf::from("/usr/bin/python3")]);
    let usable = |path: &PathBuf| {
        Command::new(path).args(["-c", CHECK]).output().is_ok_and(|output| output.status.success())
    };
    found
        .find(usable)
        .ok_or_else(|| missing("`python3`, 3.9 or newer, with `venv`", "python3-venv"))
}

/// Returns the path of Node.js, for clients in TypeScript.
pub fn node() -> Result<PathBuf, Error> {
    program("node")
        .filter(|path| major_version(path).is_some_and(|major| major >= 18))
        .ok_or_else(|| missing("`node`, 18 or newer", "nodejs"))
}

/// Returns the path of npm, which installs packages for Node.js.
pub fn npm() -> Result<PathBuf, Error> {
    program("npm").ok_or_else(|| missing("`npm`", "npm"))
}

fn directories() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all: Vec<PathBuf> = std::env::split_paths(&path).collect();
    all.extend(MORE_DIRECTORIES.map(PathBuf::from));
    all
}

/// Returns the first number in the version text of a program: `v=7.0.15`, `(PostgreSQL) 15.18`.
fn major_version(program: &Path) -> Option<u32> {
    parse_major(&version(program)?)
}

fn version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn parse_major(said: &str) -> Option<u32> {
    let from = said.find(|c: char| c.is_ascii_digit())?;
    let digits = &said[from..];
    let to = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..to].parse().ok()
}

/// Keeps packages from starting their services while they are installed: tests start private
/// servers, and a service on a well-known port is not wanted.
///
/// A policy that the machine already has stays as it is.
struct NoServices {
    ours: bool,
}

impl NoServices {
    fn declare() -> Result<Self, Error> {
        // The policy forbids services only while this process lives, so a file left behind by a
        // kill does no harm.
        let policy = format!(
            "#!/bin/sh\n\
             # Written while servers for tests are installed; of no effect afterwards.\n\
             kill -s 0 {} 2>/dev/null && exit 101\n\
             exit 0\n",
            std::process::id()
        );
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(SERVICE_POLICY)
            .and_then(|mut file| file.write_all(policy.as_bytes()));
        match file {
            Ok(()) => Ok(Self { ours: true }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Self { ours: false }),
            Err(error) => Err(Error::system(format!("writing {SERVICE_POLICY}"), error)),
        }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.ours {
            // A file that cannot be removed has no effect once this process has ended.
            let _ = fs::remove_file(SERVICE_POLICY);
        }
    }
}

fn apt_get(verb: &[&str], packages: &[&str]) -> Result<(), Error> {
    let status = Command::new("apt-get")
        // Waits for another package manager instead of failing.
        .args(["-o", "DPkg::Lock::Timeout=300"])
        .args(verb)
        .args(packages)
        .env("DEBIAN_FRONTEND", OsStr::new("noninteractive"))
        .status()
        .map_err(|error| Error::system("running apt-get", error))?;
    if status.success() {
        return Ok(());
    }
    let line = [verb, packages].concat().join(" ");
    Err(Error::new(ErrorKind::Install, format!("`apt-get {line}` failed ({status})")))
}

fn missing(program: &str, package: &str) -> Error {
    Error::new(
        ErrorKind::Missing,
        format!(
            "{program} was not found; install it, on Debian or Ubuntu with \
             `apt-get install --no-install-recommends {package}`"
        ),
    )
}

fn too_old(name: &str, found: u32, oldest: u32) -> Error {
    Error::new(
        ErrorKind::Missing,
        format!("{name} {found} is too old; version {oldest} or newer is needed"),
    )
}

#[cfg(test)]
mod tests {
    use super::parse_major;

    #[test]
    fn the_major_version_is_read_from_version_texts() {
        assert_eq!(parse_major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some(15));
        assert_eq!(parse_major("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc"), Some(7));
        assert_eq!(parse_major("nats-server: v2.9.10"), Some(2));
        assert_eq!(parse_major("no number here"), None);
    }
}
