//! `semel ids`.

use clap::Args;

use crate::failure::Failure;

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_arguments: Arguments) -> Result<(), Failure> {
    Err(Failure::failed("not there yet"))
}
