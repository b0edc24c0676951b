//! `semel completions`.

use clap::Args;
use clap_complete::Shell;

use super::shown;
use crate::exit::ExitError;

/// Print a shell's completions
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(arguments: Arguments) -> Result<(), ExitError> {
    // Into memory first: the generator itself takes no refusal from a pipe.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::cli::described(), "semel", &mut script);
    shown::bytes(&script)
}
