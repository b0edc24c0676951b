//! `semel migrate`.

use clap::Args;

use crate::failure::Failure;
use crate::settings::Settings;

#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {}

pub(crate) async fn run(_arguments: Arguments, _settings: Settings) -> Result<(), Failure> {
    Err(Failure::failed("not there yet"))
}
