//! The checks that need no servers: formatting, lints, documentation.

use std::ffi::OsString;
use std::process::Command;

use crate::step::{Failure, Steps};

/// The cargo that runs us, so that a chosen toolchain stays chosen.
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
