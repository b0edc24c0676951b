//! The command line of `semel`.
//!
//! The flags of a command are declared in the module of the command. Invalid arguments print one
//! line.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;

use clap::error::{ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use crate::command::{completions, doctor, ids, inbox, map, migrate, outbox, records, sweep};
use crate::exit::{Code, ExitError};
use crate::logs::{self, Format};
use crate::redact::redacted;
use crate::settings::ServerSettings;
use crate::signals::until_interrupted;
use crate::{demo, gateway, relay};

/// The program's arguments.
#[derive(Debug, Parser)]
#[command(
    name = "semel",
    version,
    about = "Runs commands, messages and events once, through retries, duplicates and crashes"
)]
#[command(disable_help_subcommand = true)]
#[command(
    after_help = "Exit codes: 0 ok, 1 failed, 2 bad usage or input, 3 findings, 4 store unreachable."
)]
pub(crate) struct Cli {
    /// Settings file (TOML); flags and SEMEL_* variables override it
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Format of the logs, which go to stderr
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    log: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Gateway(Box<gateway::GatewayArguments>),
    Demo(demo::DemoArguments),
    Relay(relay::Arguments),
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

/// Parses the arguments of this process. Ends the process with code 2 if they are not valid.
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

/// Prints one line about invalid arguments, or the requested help. Returns the exit code.
fn refuse(error: &clap::Error, arguments: &[OsString]) -> i32 {
    let kind = error.kind();
    let asked = matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let bare = kind == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && arguments.len() < 2;
    // A closed output is no reason to fail.
    if asked || bare {
        let _ = error.print();
    } else {
        let failure = ExitError::usage(one_line(error, &command_path(arguments)));
        let _ = writeln!(std::io::stderr(), "semel: {failure}");
    }
    if asked { 0 } else { Code::Usage as i32 }
}

/// Returns the parser's message on one line, and the command that prints the help.
fn one_line(error: &clap::Error, command: &str) -> String {
    let more = format!("see `{command} --help`");
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return format!("`{command}`: missing subcommand; {more}");
    }
    let mut text = error.render().to_string();
    // The message quotes the arguments, which may contain a password.
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

/// Returns the path of the command in the arguments, such as `semel outbox list`. Words that are not
/// commands are skipped; without a command the path is `semel`.
fn command_path(arguments: &[OsString]) -> String {
    let (mut path, mut command) = (String::from("semel"), described());
    for word in arguments.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(below) = command.find_subcommand(word).cloned() {
            path = format!("{path} {}", below.get_name());
            command = below;
        }
    }
    path
}

/// Returns the command line as clap describes it, for completions and for the reference.
pub(crate) fn described() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

impl Cli {
    pub(crate) async fn run(self) -> Result<(), ExitError> {
        let settings = || ServerSettings::read(self.config.as_deref());
        match self.command {
            Command::Gateway(arguments) => {
                let _logs = logs::start(self.log, logs::INFO)?;
                gateway::run(*arguments, settings()?, self.config.clone()).await
            }
            Command::Demo(arguments) => {
                let _logs = logs::start(self.log, arguments.log_filter())?;
                demo::run(arguments, settings()?).await
            }
            Command::Relay(arguments) => {
                let _logs = logs::start(self.log, logs::INFO)?;
                relay::run(arguments, settings()?).await
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
            Command::Completions(arguments) => completions::run(arguments, described()),
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
    fn invalid_arguments_print_one_line_with_the_command() {
        for (words, named) in [
            (&["semel", "outbox", "list", "--nope"][..], "semel outbox list --help"),
            (&["semel", "outbox"], "semel outbox --help"),
            (&["semel", "recrods"], "records"),
            (&["semel", "doctor", "--store", "ann:pw@db"], "is not a store URL"),
            (&["semel", "doctor", "postgres://ann:pw@db"], "ann:***@db"),
            (&["semel", "ids", "encode", "ord"], "<ULID>"),
        ] {
            let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
            let error = Cli::try_parse_from(&arguments).unwrap_err();
            let shown = ExitError::usage(one_line(&error, &command_path(&arguments))).to_string();
            assert!(shown.contains(named), "{shown}");
            assert!(!shown.contains("pw") && !shown.contains("Usage"), "{shown}");
        }
    }
}
