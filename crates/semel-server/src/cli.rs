//! What may be written after `semel`.
//!
//! Every command's own flags are beside what it does.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::command::{completions, doctor, ids, inbox, map, migrate, outbox, records, sweep};
use crate::failure::Failure;
use crate::logs::{self, Format};
use crate::settings::Settings;
use crate::{demo, gateway};

/// Make things happen exactly once.
#[derive(Debug, Parser)]
#[command(name = "semel", version, about, disable_help_subcommand = true)]
#[command(
    after_help = "Exit codes: 0 ok, 1 failed, 2 bad usage or input, 3 findings, 4 store unreachable."
)]
pub(crate) struct Cli {
    /// Settings; flags and SEMEL_* variables count for more
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How to write logs, which go to stderr
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    log: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Gateway(Box<gateway::Arguments>),
    Demo(demo::Arguments),
    Migrate(migrate::Arguments),
    Doctor(doctor::Arguments),
    Records(records::Arguments),
    Sweep(sweep::Arguments),
    Outbox(outbox::Arguments),
    Inbox(inbox::Arguments),
    Ids(ids::Arguments),
    Map(map::Arguments),
    Completions(completions::Arguments),
}

/// Reads this process's arguments. Ends the process with code 2 if they cannot be meant.
pub(crate) fn parse() -> Cli {
    Cli::parse()
}

/// The arguments as clap knows them, for completions.
pub(crate) fn described() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

impl Cli {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let settings = || Settings::read(self.config.as_deref());
        match self.command {
            Command::Gateway(arguments) => {
                let _logs = logs::start(self.log)?;
                gateway::run(*arguments, settings()?, self.config.clone()).await
            }
            Command::Demo(arguments) => {
                let _logs = logs::start(self.log)?;
                demo::run(arguments, settings()?).await
            }
            Command::Migrate(arguments) => migrate::run(arguments, settings()?).await,
            Command::Doctor(arguments) => doctor::run(arguments, settings()?).await,
            Command::Records(arguments) => records::run(arguments, settings()?).await,
            Command::Sweep(arguments) => sweep::run(arguments, settings()?).await,
            Command::Outbox(arguments) => outbox::run(arguments, settings()?).await,
            Command::Inbox(arguments) => inbox::run(arguments, settings()?).await,
            Command::Ids(arguments) => ids::run(arguments),
            Command::Map(arguments) => map::run(arguments, settings()?).await,
            Command::Completions(arguments) => completions::run(arguments),
        }
    }
}
