//! `semel completions`: prints the completion script of a shell.

use clap::Args;
use clap_complete::Shell;

use super::shown;
use crate::exit::ExitError;

/// Print completions for a shell
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

/// Prints the completion script of `program`.
pub(crate) fn run(arguments: Arguments, mut program: clap::Command) -> Result<(), ExitError> {
    // The script is written to memory first, because the generator panics when a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, "semel", &mut script);
    shown::bytes(&script)
}
