//! `semel demo`: the whole mission on one screen.

use clap::Args;

use crate::failure::Failure;
use crate::settings::Settings;

/// Try it all: an orders service with its events, on an embedded database
#[derive(Clone, Debug, Args)]
pub struct Arguments {}

pub(crate) async fn run(_arguments: Arguments, _settings: Settings) -> Result<(), Failure> {
    Err(Failure::failed("not there yet"))
}
