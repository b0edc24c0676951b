//! `semel gateway`: a reverse proxy that gives any HTTP service idempotent writes, with no code.
//!
//! It is the library's HTTP layer around a forwarding service; nothing here knows what a claim is.

pub mod settings;

use std::path::PathBuf;

use clap::Args;

use crate::failure::Failure;
use crate::settings::Settings;

/// Put idempotent writes in front of any HTTP service
#[derive(Clone, Debug, Args)]
pub struct Arguments {}

pub(crate) async fn run(
    _arguments: Arguments,
    _settings: Settings,
    _file: Option<PathBuf>,
) -> Result<(), Failure> {
    Err(Failure::failed("not there yet"))
}
