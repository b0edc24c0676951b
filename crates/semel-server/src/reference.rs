//! Generates the reference pages of the command line, the metrics and the settings, and compares them with
//! `docs/`.
//!
//! The command line is clap's own description, the settings are `semel.example.toml`, the metrics are their HELP
//! texts with `reference/metrics.toml`. Chinese texts are in `reference/zh-CN.toml`: of settings by their path, of
//! the others by their English text.

mod cli;
mod metrics;
mod settings;

use std::path::{Path, PathBuf};

use toml::Table;

/// Stands for a Chinese text that is missing.
const MISSING: &str = "reference/zh-CN.toml lacks";

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The language of a page.
#[derive(Clone, Debug)]
enum Language {
    English,
    Chinese(Table),
}

impl Language {
    fn all() -> [Self; 2] {
        let path = root().join("crates/semel-server/src/reference/zh-CN.toml");
        let texts = std::fs::read_to_string(path).unwrap();
        [Language::English, Language::Chinese(texts.parse().unwrap())]
    }

    /// Returns `english`, or the Chinese text of the section `kind` under `key`.
    fn text(&self, kind: &str, key: &str, english: &str) -> String {
        let Language::Chinese(table) = self else { return english.to_owned() };
        let text = table.get(kind).and_then(|texts| texts.get(key)).and_then(|text| text.as_str());
        text.map_or_else(|| format!("{MISSING} [{kind}] {key:?}"), str::to_owned)
    }

    /// Returns `english` or `chinese`.
    fn pick<'t>(&self, english: &'t str, chinese: &'t str) -> &'t str {
        match self {
            Language::English => english,
            Language::Chinese(_) => chinese,
        }
    }

    /// Returns the links at the top of the page `name`.
    fn links(&self, name: &str) -> String {
        match self {
            Language::English => format!("[中文]({name}.zh-CN.md) · [all pages](../README.md)\n"),
            Language::Chinese(_) => {
                format!("[English]({name}.md) · [全部文档](../README.zh-CN.md)\n")
            }
        }
    }

    fn file(&self, name: &str) -> String {
        format!("{name}{}.md", self.pick("", ".zh-CN"))
    }
}

/// Escapes a text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "\\<")
}

/// Compares a page with its file, or rewrites it if `SEMEL_TEST_REWRITE` is set.
fn compare(file: &str, page: &str) {
    let missing: Vec<&str> = page.lines().filter(|line| line.contains(MISSING)).collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    let path = root().join("docs/reference").join(file);
    if std::env::var_os("SEMEL_TEST_REWRITE").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/reference/{file} is out of date; rewrite it: SEMEL_TEST_REWRITE=1 cargo nextest run -p \
         semel-server --all-features -E 'test(reference)'"
    );
}

#[test]
fn the_page_of_the_command_line_is_up_to_date() {
    for language in Language::all() {
        compare(&language.file("cli"), &cli::page(&language));
    }
}

#[test]
fn the_page_of_the_metrics_is_up_to_date() {
    for language in Language::all() {
        compare(&language.file("metrics"), &metrics::page(&language));
    }
}

#[test]
fn the_page_of_the_settings_is_up_to_date() {
    for language in Language::all() {
        compare(&language.file("settings"), &settings::page(&language));
    }
}
