//! The page of the settings.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Language, cell};
use crate::settings::ServerSettings;

/// A section of the example file.
struct Section {
    /// `[ledger]`.
    heading: String,
    about: String,
    settings: Vec<Setting>,
}

struct Setting {
    name: String,
    /// `None` for a setting that is commented out.
    default: Option<String>,
    about: String,
}

impl Section {
    /// Returns `ledger` of `[ledger]`.
    fn path(&self) -> &str {
        self.heading.trim_matches(['[', ']'])
    }
}

/// Reads the example file: comments describe the section or the setting that follows.
fn sections() -> Vec<Section> {
    let (mut sections, mut comment) = (Vec::<Section>::new(), Vec::<String>::new());
    let example = std::fs::read_to_string(super::root().join("semel.example.toml")).unwrap();
    for line in example.lines() {
        if line.starts_with('[') {
            let (heading, about) = (line.to_owned(), comment.join(" "));
            sections.push(Section { heading, about, settings: Vec::new() });
            comment.clear();
        } else if line.is_empty() {
            comment.clear();
        } else if let Some((name, value)) = setting(line) {
            let default = (!line.starts_with('#')).then(|| value.to_owned());
            let (name, about) = (name.to_owned(), comment.join(" "));
            sections.last_mut().unwrap().settings.push(Setting { name, default, about });
            comment.clear();
        } else {
            comment.push(line.trim_start_matches('#').trim().to_owned());
        }
    }
    sections
}

/// Splits `name = value`, which may be commented out.
fn setting(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.strip_prefix("# ").unwrap_or(line).split_once(" = ")?;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.chars().all(plain).then_some((name, value))
}

/// Returns the page.
pub(super) fn page(language: &Language) -> String {
    let mut text = format!("# {}\n\n", language.pick("Settings", "设置"));
    text.push_str(&language.links("settings"));
    text.push_str(language.pick(
        "\nGenerated from [semel.example.toml](../../semel.example.toml). `semel --config semel.toml COMMAND` reads \
         a file;\n`SEMEL_LEDGER__LEASE` in the environment is `lease` under `[ledger]`, and `SEMEL_STORE` is short \
         for\n`SEMEL_LEDGER__STORE`. Flags override the environment, the environment overrides the file. Unknown names \
         and durations\nwithout a unit (`30s`, `1h 30m`, `PT30S`) are refused. Routes are only read from a file. \
         Aliases:\n[from BlueCone, Bento or Genesis](../how-to/from-the-originals.md).\n",
        "\n由 [semel.example.toml](../../semel.example.toml) 生成。`semel --config semel.toml COMMAND` 读取设置文件；环境变量\n\
         `SEMEL_LEDGER__LEASE` 就是 `[ledger]` 下的 `lease`，`SEMEL_STORE` 是 `SEMEL_LEDGER__STORE` 的简写。命令行选项优先于\n\
         环境变量，环境变量优先于文件。未知的名字和不带单位的时长（应写作 `30s`、`1h 30m`、`PT30S`）会被拒绝。路由只从文件读取。\n\
         别名见[从 BlueCone、Bento、Genesis 迁移](../how-to/from-the-originals.zh-CN.md)。\n",
    ));
    for section in sections() {
        let Section { heading, about, settings } = &section;
        let about = language.text("settings", section.path(), about);
        let (name, default) =
            (language.pick("setting", "设置"), language.pick("default", "默认值"));
        let _ = write!(
            text,
            "\n## `{heading}`\n\n{about}\n\n| {name} | {default} | |\n|---|---|---|\n"
        );
        for Setting { name, default, about } in settings {
            let about = language.text("settings", &format!("{}.{name}", section.path()), about);
            let default = default.as_ref().map_or("–".to_owned(), |value| format!("`{value}`"));
            let _ = writeln!(text, "| `{name}` | {} | {} |", cell(&default), cell(&about));
        }
    }
    text
}

/// Returns the names that a section accepts, from the error about an unknown one.
fn accepted(section: &str) -> BTreeSet<String> {
    let text = match section {
        "[route]" => "[[route]]\npath = \"/a\"\nzzz = 1".to_owned(),
        "[subscription]" => "[[subscription]]\nzzz = 1".to_owned(),
        section => format!("{section}\nzzz = 1"),
    };
    let refused = ServerSettings::parse(&text).unwrap_err().to_string();
    let (_, names) = refused.split_once("expected one of ").unwrap_or_else(|| panic!("{refused}"));
    // The error ends with the section.
    let names = names.split(" in `").next().unwrap_or_default();
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_example_has_every_setting_and_no_other() {
    for section in sections() {
        let heading = section.heading.replace("[[", "[").replace("]]", "]");
        if heading.starts_with("[idresolve") {
            continue; // The resolver's own settings, which the library tests.
        }
        let named = section.settings.iter().map(|setting| setting.name.clone()).collect();
        // Aliases of routes are accepted, and not documented.
        let mut accepted = accepted(&heading);
        accepted.remove("method");
        assert_eq!(accepted, named, "{}", section.heading);
    }
}
