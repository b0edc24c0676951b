//! Python interpreters with packages, for clients that are not written in Rust.
//!
//! Packages go into a virtual environment below the target directory, never into the machine's own
//! Python. An environment is made once for each list of packages, and stays for later runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::error::{Error, ErrorKind};
use super::install;

/// The file in an environment that says that all packages are in it.
const COMPLETE: &str = "complete";

/// Returns the interpreter of an environment that has `packages`, which pip installs where they are
/// missing: names with versions, such as `psycopg[binary]==3.2.9`.
///
/// Concurrent calls, also of other processes, wait for the one that makes the environment.
///
/// # Errors
/// `Missing` without Python 3.9 and its `venv` module, `Install` with the output of pip if it failed.
pub fn interpreter(packages: &[&str]) -> Result<PathBuf, Error> {
    interpreter_below(&target().join("python"), packages)
}

fn interpreter_below(directory: &Path, packages: &[&str]) -> Result<PathBuf, Error> {
    let system = |what: &str| {
        let what = format!("{what} below {}", directory.display());
        move |error| Error::system(what, error)
    };
    let home = directory.join(name(packages));
    let (python, complete) = (home.join("bin").join("python"), home.join(COMPLETE));
    fs::create_dir_all(directory).map_err(system("making a directory"))?;
    let lock = File::create(home.with_extension("lock")).map_err(system("making a lock file"))?;
    lock.lock().map_err(system("locking a file"))?;
    if complete.is_file() && python.is_file() {
        return Ok(python);
    }
    // What another process left half-made is made anew.
    let _ = fs::remove_dir_all(&home);
    let base = install::python()?;
    succeed(Command::new(base).args(["-m", "venv"]).arg(&home))?;
    if !packages.is_empty() {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        succeed(Command::new(&python).args(pip).args(packages))?;
    }
    fs::write(&complete, packages.join("\n")).map_err(system("writing a file"))?;
    Ok(python)
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
fn succeed(command: &mut Command) -> Result<(), Error> {
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

fn target() -> PathBuf {
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
        let scratch = Scratch::new("python").expect("a directory");
        let made = interpreter_below(scratch.path(), &[]).expect("an interpreter");
        let marker = made.with_file_name("marker");
        fs::write(&marker, "").expect("a file");
        assert_eq!(interpreter_below(scratch.path(), &[]).expect("the same"), made);
        assert!(marker.is_file(), "made again");

        let home = made.parent().and_then(Path::parent).expect("the environment");
        fs::remove_file(home.join(COMPLETE)).expect("a file");
        assert_eq!(interpreter_below(scratch.path(), &[]).expect("made anew"), made);
        assert!(!marker.is_file(), "what was half-made is still there");
        let version = Command::new(&made).arg("--version").output().expect("it runs");
        assert!(String::from_utf8_lossy(&version.stdout).starts_with("Python 3"));
    }

    #[test]
    fn what_pip_says_is_in_the_error() {
        let scratch = Scratch::new("python").expect("a directory");
        let error = interpreter_below(scratch.path(), &["./there-is-no-such-directory"]);
        let error = error.expect_err("there is nothing to install");
        assert_eq!(error.kind(), ErrorKind::Install);
        assert!(error.to_string().contains("there-is-no-such-directory"), "{error}");
    }
}
