//! The page of the command line.

use std::fmt::Write as _;

use clap::{Arg, Command};

use super::{Language, cell};

/// Returns the page, from clap's description of the program.
pub(super) fn page(language: &Language) -> String {
    let mut program = crate::cli::described();
    program.build();
    let mut text = format!("# {}\n\n", language.pick("Command line", "命令行"));
    text.push_str(&language.links("cli"));
    text.push_str(language.pick(
        "\nGenerated from the program: `semel COMMAND --help` prints the same texts. Options of a group of \
         commands apply to\neach of them.\n\nExit codes: 0 ok, 1 failed, 2 bad usage or input, 3 findings, 4 \
         store unreachable.\n",
        "\n由程序生成，与 `semel COMMAND --help` 内容一致。一组命令的选项对其中每个命令都有效。\n\n\
         退出码：0 成功，1 失败，2 用法或输入有误，3 有发现的问题，4 存储不可达。\n",
    ));
    describe(&mut text, &program, &[], language);
    text
}

/// Writes a command and those below it.
fn describe(text: &mut String, command: &Command, above: &[String], language: &Language) {
    let name = match above.last() {
        Some(above) => format!("{above} {}", command.get_name()),
        None => command.get_name().to_owned(),
    };
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let about = language.text("cli", &about, &about);
    let end = language.pick(".", "。");
    let _ = write!(text, "\n## `{name}`\n\n{about}{end}\n");
    let shown = |arg: &&Arg| {
        let inherited = arg.is_global_set() && inherited(arg, above);
        !arg.is_hide_set() && !inherited && !["help", "version"].contains(&arg.get_id().as_str())
    };
    let arguments: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    if !arguments.is_empty() {
        let (argument, default) =
            (language.pick("argument", "参数"), language.pick("default", "默认值"));
        let _ = write!(text, "\n| {argument} | | {default} |\n|---|---|---|\n");
        for argument in arguments {
            text.push_str(&row(argument, language));
        }
    }
    let below = [above, &[name]].concat();
    let visible = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for command in command.get_subcommands().filter(visible) {
        describe(text, command, &below, language);
    }
}

/// Whether a command above has declared a global argument.
fn inherited(argument: &Arg, above: &[String]) -> bool {
    let mut program = crate::cli::described();
    let mut command = &mut program;
    for (depth, name) in above.iter().enumerate() {
        if depth > 0 {
            let below = name.rsplit(' ').next().unwrap_or_default().to_owned();
            command = command.find_subcommand_mut(&below).unwrap();
        }
        if command.get_arguments().any(|own| own.get_id() == argument.get_id()) {
            return true;
        }
    }
    false
}

fn row(argument: &Arg, language: &Language) -> String {
    let values = argument.get_value_names().unwrap_or_default();
    let values: Vec<String> = values.iter().map(|name| format!("<{name}>")).collect();
    let takes = argument.get_action().takes_values();
    let values = if takes { values.join(" ") } else { String::new() };
    let name = match argument.get_long() {
        Some(long) => format!("--{long} {values}").trim_end().to_owned(),
        None => values,
    };
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let (help, written) = match help.split_once(" [default: ") {
        Some((help, default)) => {
            let default = default.trim_end_matches(']');
            (help.to_owned(), language.text("default", default, default))
        }
        None => (help, String::new()),
    };
    let defaults: Vec<_> = match takes {
        true => argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect(),
        false => Vec::new(),
    };
    let default = if defaults.is_empty() { written } else { format!("`{}`", defaults.join(" ")) };
    let mut about = language.text("cli", &help, &help);
    let possible = argument.get_possible_values();
    if takes && !possible.is_empty() {
        let names: Vec<String> =
            possible.iter().map(|value| format!("`{}`", value.get_name())).collect();
        let _ = write!(about, "{}{}", language.pick(": ", "："), names.join(", "));
    }
    let required = argument.is_required_set();
    let default = match (required, language) {
        (false, _) => default,
        (true, Language::English) => "required".to_owned(),
        (true, Language::Chinese(_)) => "必填".to_owned(),
    };
    format!("| `{name}` | {} | {} |\n", cell(&about), cell(&default))
}
