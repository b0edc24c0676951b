//! Finding the servers' programs, and installing them where that is possible and wanted.
//!
//! Finding changes nothing. Installing happens only in [`ensure`], only as root on a Debian-like
//! system, and only when something is missing; everywhere else the error says what to install.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::account;
use super::error::{Error, ErrorKind};

/// `sbin` directories hold servers but are not on an ordinary user's `PATH`.
const MORE_DIRECTORIES: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin"];
/// Debian keeps each major version of PostgreSQL's programs in a directory below this one.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";
/// The oldest PostgreSQL the SQL stores support.
const POSTGRES_OLDEST: u32 = 13;
/// The oldest Redis the Redis store supports.
const REDIS_OLDEST: u32 = 7;

/// Where MariaDB's programs are.
#[derive(Debug, Clone)]
pub(super) struct MariaDbPrograms {
    pub(super) server: PathBuf,
    pub(super) install_db: PathBuf,
}

/// Makes sure that every server's programs are present, installing the missing ones.
///
/// `say` is told before anything on the machine changes.
pub fn ensure(mut say: impl FnMut(&str)) -> Result<(), Error> {
    let mut missing = Vec::new();
    let mut reasons = Vec::new();
    let checks = [
        ("postgresql", postgres().err()),
        ("mariadb-server", mariadb().err()),
        ("redis-server", redis().err()),
        ("curl", curl().err()),
    ];
    for (package, error) in checks {
        if let Some(error) = error {
            missing.push(package);
            reasons.push(error.to_string());
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let reasons = reasons.join("\n");
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
    // An outdated package index or a mirror that is partly down need not stop the installation;
    // if it does, that error is the better one.
    if let Err(error) = apt_get(&["update"], &[]) {
        say(&error.to_string());
    }
    apt_get(&line, &missing)?;
    postgres().and(mariadb().map(|_| ())).and(redis().map(|_| ())).map_err(|error| {
        Error::new(ErrorKind::Install, format!("{error}\n(even after installing {missing:?})"))
    })
}

/// A program on the `PATH` or in the usual places for servers.
pub(super) fn program(name: &str) -> Option<PathBuf> {
    directories().into_iter().map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// The directory with the newest PostgreSQL that has both `postgres` and `initdb`.
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

/// MariaDB's server and set-up tool.
pub(super) fn mariadb() -> Result<MariaDbPrograms, Error> {
    let install_db = program("mariadb-install-db").or_else(|| program("mysql_install_db"));
    match (program("mariadbd"), install_db) {
        (Some(server), Some(install_db)) => Ok(MariaDbPrograms { server, install_db }),
        (None, _) => Err(missing("`mariadbd`", "mariadb-server")),
        (_, None) => Err(missing("`mariadb-install-db`", "mariadb-server")),
    }
}

/// The Redis server.
pub(super) fn redis() -> Result<PathBuf, Error> {
    let server =
        program("redis-server").ok_or_else(|| missing("`redis-server`", "redis-server"))?;
    match major_version(&server) {
        Some(version) if version < REDIS_OLDEST => Err(too_old("Redis", version, REDIS_OLDEST)),
        _ => Ok(server),
    }
}

/// Not a server, but a client that tests drive servers of ours with.
fn curl() -> Result<PathBuf, Error> {
    program("curl").ok_or_else(|| missing("`curl`", "curl"))
}

fn directories() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all: Vec<PathBuf> = std::env::split_paths(&path).collect();
    all.extend(MORE_DIRECTORIES.map(PathBuf::from));
    all
}

/// The first number in what a program says about its version: `v=7.0.15`, `(PostgreSQL) 15.18`.
fn major_version(program: &Path) -> Option<u32> {
    let output = Command::new(program).arg("--version").output().ok()?;
    parse_major(&String::from_utf8_lossy(&output.stdout))
}

fn parse_major(said: &str) -> Option<u32> {
    let from = said.find(|c: char| c.is_ascii_digit())?;
    let digits = &said[from..];
    let to = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..to].parse().ok()
}

fn apt_get(verb: &[&str], packages: &[&str]) -> Result<(), Error> {
    let status = Command::new("apt-get")
        // Another package manager may be at work; wait for it rather than fail.
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
    fn the_major_version_is_read_from_what_programs_say() {
        assert_eq!(parse_major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some(15));
        assert_eq!(parse_major("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc"), Some(7));
        assert_eq!(parse_major("no number here"), None);
    }
}
