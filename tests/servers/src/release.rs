//! Programs of a newer Debian release, unpacked beside the machine's own and never installed.
//!
//! The machine's release may not have a server at all (MySQL) or only an old one (PgBouncer). Their
//! packages and every library they need are downloaded with apt-get under a state of its own and
//! unpacked into a cache directory; the release's own loader runs them, so that nothing of the
//! machine is changed and nothing of it is used but the kernel. Unpacking needs no root.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::account;
use super::error::{Error, ErrorKind};

/// The environment variable with the directory in which unpacked programs are kept between runs.
const CACHE: &str = "SEMEL_TEST_CACHE";
/// The Debian release with the newest servers.
const RELEASE: &str = "sid";
/// The packages that are unpacked. A change of the list uses another directory.
const PACKAGES: [&str; 2] = ["mysql-server-core", "pgbouncer"];
/// The keys that sign Debian's releases, newer ones included.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A program, and the arguments that must precede its own.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) leading: Vec<OsString>,
    /// The root directory of its files, if not that of the machine.
    pub(super) root: Option<PathBuf>,
}

impl Program {
    /// Returns an installed program of the machine.
    pub(super) fn installed(path: PathBuf) -> Self {
        Self { path, leading: Vec::new(), root: None }
    }
}

/// Returns a program of the unpacked release.
pub(super) fn program(name: &str) -> Option<Program> {
    let root = directory();
    let path = ["usr/sbin", "usr/bin"].iter().map(|bin| root.join(bin).join(name));
    let path = path.into_iter().find(|path| path.is_file())?;
    let libraries = libraries(&root)?;
    let loader = loader(&libraries)?;
    let leading = vec!["--library-path".into(), libraries.into(), path.into()];
    Some(Program { path: loader, leading, root: Some(root) })
}

/// Returns whether the release is unpacked.
pub(super) fn is_unpacked() -> bool {
    directory().is_dir()
}

/// Downloads and unpacks the release, unless that was done before.
pub(super) fn unpack(say: &mut impl FnMut(&str)) -> Result<(), Error> {
    let root = directory();
    if root.is_dir() {
        return Ok(());
    }
    let mirror = mirror()?;
    let packages = PACKAGES.join(" and ");
    say(&format!("unpacking {packages} of Debian {RELEASE} into {}", root.display()));
    let work = root.with_extension(format!("new-{}", std::process::id()));
    let outcome = fill(&work, &mirror);
    // Renamed as a whole, so that an interrupted run leaves nothing that looks complete. If two
    // runs finish together, the first one counts.
    let placed = outcome.and_then(|()| match fs::rename(work.join("root"), &root) {
        Err(_) if root.is_dir() => Ok(()),
        renamed => {
            renamed.map_err(|error| Error::system(format!("placing {}", root.display()), error))
        }
    });
    // Only the download is left; failing to remove it costs disk space only.
    let _ = fs::remove_dir_all(&work);
    placed
}

fn fill(work: &Path, mirror: &str) -> Result<(), Error> {
    let system = |what: &str| {
        let what = format!("{what} in {}", work.display());
        move |error| Error::system(what, error)
    };
    for part in ["state/lists/partial", "cache/archives/partial", "root"] {
        fs::create_dir_all(work.join(part)).map_err(system("creating directories"))?;
    }
    let source = format!("deb [signed-by={KEYS}] {mirror} {RELEASE} main\n");
    fs::write(work.join("sources.list"), source).map_err(system("writing sources.list"))?;
    fs::write(work.join("status"), "").map_err(system("writing the package status"))?;
    apt_get(work, &["update"])?;
    let download = ["install", "-y", "--download-only", "--no-install-recommends"];
    apt_get(work, &[download.as_slice(), PACKAGES.as_slice()].concat())?;
    let archives = fs::read_dir(work.join("cache/archives")).map_err(system("reading archives"))?;
    for archive in archives.filter_map(|entry| Some(entry.ok()?.path())) {
        if archive.extension().is_some_and(|extension| extension == "deb") {
            let mut unpack = Command::new("dpkg");
            unpack.arg("-x").arg(&archive).arg(work.join("root"));
            succeed(&mut unpack)?;
        }
    }
    Ok(())
}

/// Runs apt-get with a state, a cache and sources of this crate's own.
fn apt_get(work: &Path, args: &[&str]) -> Result<(), Error> {
    let mut command = Command::new("apt-get");
    let ours = [
        ("Dir::Etc::sourcelist", work.join("sources.list")),
        ("Dir::Etc::sourceparts", PathBuf::from("/dev/null")),
        ("Dir::State", work.join("state")),
        // No package counts as installed, so that every library is downloaded with its program.
        ("Dir::State::status", work.join("status")),
        ("Dir::Cache", work.join("cache")),
        ("APT::Sandbox::User", PathBuf::from("root")),
    ];
    for (name, value) in ours {
        let mut option = OsString::from(format!("{name}="));
        option.push(value);
        command.arg("-o").arg(option);
    }
    succeed(command.args(["-q", "-o", "Debug::NoLocking=1"]).args(args))
}

fn succeed(command: &mut Command) -> Result<(), Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .map_err(|error| Error::system(format!("running {name}"), error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let message = format!("`{name}` failed ({}) while unpacking: {said}", output.status);
    Err(Error::new(ErrorKind::Install, message))
}

/// Returns the mirror from which the machine gets Debian's packages.
fn mirror() -> Result<String, Error> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    let more = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten();
    files.extend(more.filter_map(|entry| Some(entry.ok()?.path())));
    let found = files.iter().find_map(|file| {
        let text = fs::read_to_string(file).ok()?;
        text.lines().find_map(|line| mirror_in(line).map(str::to_owned))
    });
    found.ok_or_else(|| {
        let why = "MySQL comes from Debian's packages, and no source of them is listed under \
                   /etc/apt: put `mysqld` (MySQL 8 or newer) on the PATH instead";
        Error::new(ErrorKind::Missing, why)
    })
}

/// Returns the address of Debian's main archive in a line of either format, if it has one.
fn mirror_in(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    if first != "URIs:" && first != "deb" {
        return None;
    }
    let is_main = |word: &&str| word.contains("://") && !word.contains("security");
    words.find(is_main).filter(|uri| uri.trim_end_matches('/').ends_with("/debian"))
}

fn directory() -> PathBuf {
    let cache = match std::env::var_os(CACHE) {
        Some(cache) => PathBuf::from(cache),
        // The accounts of the servers must be able to enter the directory.
        None if account::is_root() => PathBuf::from("/var/cache/semel"),
        None => {
            std::env::home_dir().unwrap_or_else(std::env::temp_dir).join(".cache").join("semel")
        }
    };
    cache.join([&[RELEASE], PACKAGES.as_slice()].concat().join("-"))
}

/// Returns the directory of shared libraries, whose name contains the processor's.
fn libraries(root: &Path) -> Option<PathBuf> {
    let all = fs::read_dir(root.join("usr/lib")).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    all.into_iter().find(|path| loader(path).is_some())
}

fn loader(libraries: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(libraries).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.into_iter().find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"))
    })
}

#[cfg(test)]
mod tests {
    use super::mirror_in;

    #[test]
    fn the_mirror_is_read_from_sources_of_either_format() {
        let mirror = Some("http://mirror.example/debian");
        assert_eq!(mirror_in("URIs: http://mirror.example/debian"), mirror);
        assert_eq!(mirror_in("deb [a=b] http://mirror.example/debian bookworm main"), mirror);
        assert_eq!(mirror_in("URIs: http://mirror.example/debian-security"), None);
        assert_eq!(mirror_in("deb http://mirror.example/ubuntu noble main"), None);
        assert_eq!(mirror_in("# deb http://mirror.example/debian bookworm main"), None);
        assert_eq!(mirror_in(""), None);
    }
}
