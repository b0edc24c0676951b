//! The checks that need no servers: formatting, lints, documentation, packages.

use std::ffi::OsString;
use std::process::Command;

use crate::step::{Failure, Steps};

/// Returns a command for the cargo that runs this task, so that a chosen toolchain stays chosen.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

pub(crate) fn fmt(steps: &mut Steps) -> Result<(), Failure> {
    steps.command("fmt", cargo().args(["fmt", "--all", "--check"]))
}

pub(crate) fn clippy(steps: &mut Steps) -> Result<(), Failure> {
    let mut command = cargo();
    command.args(["clippy", "--workspace", "--all-targets", "--all-features"]);
    steps.command("clippy", command.args(["--", "-D", "warnings"]))
}

pub(crate) fn doc(steps: &mut Steps) -> Result<(), Failure> {
    let mut command = cargo();
    command.args(["doc", "--workspace", "--all-features", "--no-deps"]);
    steps.command("doc", command.env("RUSTDOCFLAGS", "-D warnings"))
}

/// Packages every published crate, as `cargo publish` would, without building it: a dependency
/// without a version or a missing readme fails. The dependencies that it resolves were downloaded
/// for the builds before.
pub(crate) fn package(steps: &mut Steps) -> Result<(), Failure> {
    let mut command = cargo();
    command.args(["package", "--quiet", "--no-verify", "--allow-dirty", "--offline"]);
    let crates = std::fs::read_dir(crate::root().join("crates"));
    let crates = crates.map_err(|error| Failure::new(format!("package: crates/: {error}")))?;
    for name in crates.flatten() {
        command.arg("--package").arg(name.file_name());
    }
    steps.command("package", &mut command)
}
