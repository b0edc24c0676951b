//! Python interpreters with packages, for clients that are not written in Rust.
//!
//! Packages go into a virtual environment below the target directory, never into the machine's own
//! Python. An environment is made once for each list of packages, and stays for later runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::environment::{made_once, succeed, target};
use super::error::Error;
use super::install;

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
    let python = |home: &Path| home.join("bin").join("python");
    let home = made_once(directory, packages, |home| {
        succeed(Command::new(install::python()?).args(["-m", "venv"]).arg(home))?;
        if packages.is_empty() {
            return Ok(());
        }
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        succeed(Command::new(python(home)).args(pip).args(packages))
    })?;
    Ok(python(&home))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::scratch::Scratch;

    #[test]
    fn an_environment_has_an_interpreter() {
        let scratch = Scratch::new("python").expect("a directory");
        let made = interpreter_below(scratch.path(), &[]).expect("an interpreter");
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
