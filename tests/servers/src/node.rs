//! Packages of npm, for clients that are written in TypeScript.
//!
//! They go into a directory below the target directory, never into the machine's own. A directory is made
//! once for each manifest, and stays for later runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::environment::{made_once, succeed, target};
use super::error::Error;
use super::install;

/// Returns a `node_modules` with the dependencies of a manifest, which npm installs where they are missing:
/// the text of a `package.json`, whose versions are exact.
///
/// Concurrent calls, also of other processes, wait for the one that installs.
///
/// # Errors
/// `Missing` without Node.js 18 and npm, `Install` with the output of npm if it failed.
pub fn modules(manifest: &str) -> Result<PathBuf, Error> {
    modules_below(&target().join("node"), manifest)
}

fn modules_below(directory: &Path, manifest: &str) -> Result<PathBuf, Error> {
    let home = made_once(directory, &["npm", manifest], |home| {
        install::node()?;
        let npm = install::npm()?;
        let system = |error| Error::system(format!("writing {}", home.display()), error);
        fs::create_dir_all(home).map_err(system)?;
        fs::write(home.join("package.json"), manifest).map_err(system)?;
        // Scripts of packages do not run: nothing here has to be built.
        let install =
            ["install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund"];
        succeed(Command::new(npm).args(install).current_dir(home))?;
        fs::create_dir_all(home.join("node_modules")).map_err(system)
    })?;
    Ok(home.join("node_modules"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::scratch::Scratch;

    #[test]
    fn a_manifest_without_dependencies_has_no_modules() {
        let scratch = Scratch::new("node").expect("a directory");
        let modules = modules_below(scratch.path(), r#"{"name": "empty"}"#).expect("a directory");
        assert!(modules.is_dir());
    }

    #[test]
    fn what_npm_says_is_in_the_error() {
        let scratch = Scratch::new("node").expect("a directory");
        let manifest = r#"{"dependencies": {"there": "file:./is-no-such-directory/there.tgz"}}"#;
        let error =
            modules_below(scratch.path(), manifest).expect_err("there is nothing to install");
        assert_eq!(error.kind(), ErrorKind::Install);
        assert!(error.to_string().contains("is-no-such-directory"), "{error}");
    }
}
