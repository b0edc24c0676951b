//! What may be written after `semel`.
//!
//! Every command's own flags are beside what it does. What cannot be meant is answered with one line.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;

use clap::error::{ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use crate::command::{completions, doctor, ids, inbox, map, migrate, outbox, records, sweep};
use crate::exit::{Code, ExitError};
use crate::logs::{self, Format};
use crate::settings::ServerSettings;
use crate::signals::until_interrupted;
use crate::store::redacted;
use crate::{demo, gateway};

/// Runs what is asked for once, through retries, duplicates and crashes.
#[derive(Debug, Parser)]
#[command(
    name = "semel",
    version,
    about = "Runs what is asked for once, through retries, duplicates and crashes"
)]
#[command(disable_help_subcommand = true)]
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
    Gateway(Box<gateway::GatewayArguments>),
    Demo(demo::DemoArguments),
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
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let code = refuse(&error, &arguments);
            std::process::exit(code);
        }
    }
}

/// Says why the arguments cannot be meant: whole pages where somebody asked for help, else one line.
fn refuse(error: &clap::Error, arguments: &[OsString]) -> i32 {
    let kind = error.kind();
    let asked = matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let bare = kind == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && arguments.len() < 2;
    // Nobody may be reading, which is no reason to fail.
    if asked || bare {
        let _ = error.print();
    } else {
        let failure = ExitError::usage(said(error, &wanted(arguments)));
        let _ = writeln!(std::io::stderr(), "semel: {failure}");
    }
    if asked { 0 } else { Code::Usage as i32 }
}

/// The parser's words on one line, and where there are more.
fn said(error: &clap::Error, command: &str) -> String {
    let more = format!("`{command} --help` says what may be written");
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return format!("`{command}` alone says too little; {more}");
    }
    let mut text = error.render().to_string();
    // It quotes what was written, which may hold a password.
    for (_, value) in error.context() {
        if let ContextValue::String(written) = value {
            text = text.replace(written, &redacted(written));
        }
    }
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let words = lines.map(|line| line.trim_start_matches("error: ").replacen("tip: ", "", 1));
    format!("{}; {more}", words.collect::<Vec<_>>().join("; ").replace(":; ", ": "))
}

/// The command that was asked for, as far as it is one.
fn wanted(arguments: &[OsString]) -> String {
    let (mut path, mut command) = (String::from("semel"), described());
    for word in arguments.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(below) = command.find_subcommand(word).cloned() {
            path = format!("{path} {}", below.get_name());
            command = below;
        }
    }
    path
}

/// The arguments as clap knows them, for completions.
pub(crate) fn described() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

impl Cli {
    pub(crate) async fn run(self) -> Result<(), ExitError> {
        let settings = || ServerSettings::read(self.config.as_deref());
        match self.command {
            Command::Gateway(arguments) => {
                let _logs = logs::start(self.log)?;
                gateway::run(*arguments, settings()?, self.config.clone()).await
            }
            Command::Demo(arguments) => {
                let _logs = logs::start(self.log)?;
                demo::run(arguments, settings()?).await
            }
            Command::Doctor(arguments) => doctor::run(arguments, settings()?).await,
            Command::Ids(arguments) => ids::run(arguments),
            Command::Migrate(arguments) => {
                until_interrupted(migrate::run(arguments, settings()?)).await
            }
            Command::Records(arguments) => {
                until_interrupted(records::run(arguments, settings()?)).await
            }
            Command::Sweep(arguments) => {
                until_interrupted(sweep::run(arguments, settings()?)).await
            }
            Command::Outbox(arguments) => {
                until_interrupted(outbox::run(arguments, settings()?)).await
            }
            Command::Inbox(arguments) => {
                until_interrupted(inbox::run(arguments, settings()?)).await
            }
            Command::Map(arguments) => until_interrupted(map::run(arguments, settings()?)).await,
            Command::Completions(arguments) => completions::run(arguments),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        described().debug_assert();
    }

    #[test]
    fn what_cannot_be_meant_is_one_line_that_names_the_command() {
        for (words, named) in [
            (&["semel", "outbox", "list", "--nope"][..], "semel outbox list --help"),
            (&["semel", "outbox"], "semel outbox --help"),
            (&["semel", "recrods"], "records"),
            (&["semel", "doctor", "--store", "ann:pw@db"], "is no store"),
            (&["semel", "doctor", "postgres://ann:pw@db"], "ann:***@db"),
            (&["semel", "ids", "encode", "ord"], "<ULID>"),
        ] {
            let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
            let error = Cli::try_parse_from(&arguments).unwrap_err();
            let shown = ExitError::usage(said(&error, &wanted(&arguments))).to_string();
            assert!(shown.contains(named), "{shown}");
            assert!(!shown.contains("pw") && !shown.contains("Usage"), "{shown}");
        }
    }
}
