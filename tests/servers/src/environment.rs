//! Directories with packages of another language, made once and kept for later runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::error::{Error, ErrorKind};

/// The file in an environment that says that all packages are in it.
const COMPLETE: &str = "complete";

/// Returns the directory of these packages below `directory`; `make` fills it where it is missing.
///
/// Concurrent calls, also of other processes, wait for the one that makes it.
pub(super) fn made_once(
    directory: &Path,
    packages: &[&str],
    make: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    let system = |what: &str| {
        let what = format!("{what} below {}", directory.display());
        move |error| Error::system(what, error)
    };
    let home = directory.join(name(packages));
    fs::create_dir_all(directory).map_err(system("making a directory"))?;
    let lock = File::create(home.with_extension("lock")).map_err(system("making a lock file"))?;
    lock.lock().map_err(system("locking a file"))?;
    if home.join(COMPLETE).is_file() {
        return Ok(home);
    }
    // What another process left half-made is made anew.
    let _ = fs::remove_dir_all(&home);
    make(&home)?;
    fs::write(home.join(COMPLETE), packages.join("\n")).map_err(system("writing a file"))?;
    Ok(home)
}

/// Returns the name of the environment of these packages: readable, and different for other lists.
fn name(packages: &[&str]) -> String {
    let list = packages.join(" ");
    let first = packages.first().copied().unwrap_or("plain");
    let readable: String = first.chars().take_while(char::is_ascii_alphanumeric).collect();
    // FNV-1a: stable between compilers, unlike the standard library's hasher.
    let hash = list.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{readable}-{hash:016x}")
}

/// Runs a command; its output is in the error if it fails.
pub(super) fn succeed(command: &mut Command) -> Result<(), Error> {
    let line = format!("{command:?}");
    let output = command.output();
    let Output { status, stdout, stderr } =
        output.map_err(|error| Error::system(format!("running {line}"), error))?;
    if status.success() {
        return Ok(());
    }
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    let message = format!("{line} failed ({status})\n{}\n{}", stdout.trim(), stderr.trim());
    Err(Error::new(ErrorKind::Install, message))
}

/// Returns the target directory.
pub(super) fn target() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join("..");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn environments_of_other_packages_have_other_names() {
        assert_eq!(name(&["psycopg[binary]==3.2.9"]), name(&["psycopg[binary]==3.2.9"]));
        assert_ne!(name(&["psycopg[binary]==3.2.9"]), name(&["psycopg[binary]==3.2.8"]));
        assert_ne!(name(&["a", "b"]), name(&["a"]));
        assert!(name(&["psycopg[binary]==3.2.9"]).starts_with("psycopg-"));
    }

    #[test]
    fn an_environment_is_made_once_and_anew_if_it_is_not_complete() {
        let scratch = Scratch::new("environment").expect("a directory");
        let make = |home: &Path| {
            fs::create_dir_all(home).expect("a directory");
            Ok(())
        };
        let home = made_once(scratch.path(), &["a"], make).expect("an environment");
        let marker = home.join("marker");
        fs::write(&marker, "").expect("a file");
        let again = made_once(scratch.path(), &["a"], |_| panic!("made again"));
        assert_eq!(again.expect("the same"), home);

        fs::remove_file(home.join(COMPLETE)).expect("a file");
        assert_eq!(made_once(scratch.path(), &["a"], make).expect("made anew"), home);
        assert!(!marker.is_file(), "what was half-made is still there");
    }
}
