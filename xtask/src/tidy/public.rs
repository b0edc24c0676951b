//! Public names: the name of a public type is unique.
//!
//! `unreachable_pub` is on in every crate, so `pub` in a source file means reachable from outside.

use std::collections::BTreeMap;

use super::Finding;
use super::tree::Tree;

/// Names that are conventionally qualified by their module: `store::Error`, `executor::Builder`.
const IDIOMS: [&str; 5] = ["Builder", "Config", "Error", "Result", "Sealed"];

/// A reason: every broker's crate has the same types, and a service links one or two of them.
const BROKERS: &str = "the same noun in every broker's crate";

/// Other names that may occur twice, each with its reason.
const ALLOWED: &[(&str, &str)] = &[("PublisherBuilder", BROKERS), ("SourceBuilder", BROKERS)];

/// Finds public types with the same name, [`IDIOMS`] and [`ALLOWED`] aside, and allowances that are
/// not needed.
pub(super) fn type_names_are_unique(tree: &Tree) -> Vec<Finding> {
    findings(tree, ALLOWED)
}

fn findings(tree: &Tree, allowed: &[(&str, &str)]) -> Vec<Finding> {
    let mut places: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for (path, code) in tree.code().filter(|(path, _)| is_published(path)) {
        for (line, name) in public_types(code) {
            let places = places.entry(name).or_default();
            // Two in one file are variants of one type under `cfg`.
            if places.last().is_none_or(|(last, _)| *last != path) {
                places.push((path, line));
            }
        }
    }
    places.retain(|_, places| places.len() > 1);
    let mut findings = Vec::new();
    for (name, places) in &places {
        let excused = IDIOMS.contains(&name.as_str()) || allowed.iter().any(|(a, _)| a == name);
        if let ([(first, _), others @ ..], false) = (places.as_slice(), excused) {
            let also = |(path, line): &(&str, usize)| {
                Finding::new(path, *line, format!("public type `{name}` is also in {first}"))
            };
            findings.extend(others.iter().map(also));
        }
    }
    for (name, reason) in allowed.iter().filter(|(name, _)| !places.contains_key(*name)) {
        let message = format!("`{name}` is allowed to occur twice (\"{reason}\") and does not");
        findings.push(Finding::new("xtask/src/tidy/public.rs", 0, message));
    }
    findings
}

/// Returns whether the file is part of a crate's library: `crates/*/src/`.
fn is_published(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("crates") && parts.nth(1) == Some("src")
}

/// Returns the names after `pub struct`, `pub enum`, `pub trait`, `pub type` and `pub union`.
fn public_types(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut words = line.split_whitespace().skip_while(|word| *word == "unsafe");
        // `pub(crate)` is a word of its own, so it does not match `pub`.
        if words.next() != Some("pub") {
            continue;
        }
        let mut words = words.skip_while(|word| matches!(*word, "unsafe" | "auto"));
        if matches!(words.next(), Some("struct" | "enum" | "trait" | "type" | "union"))
            && let Some(rest) = words.next()
        {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
            let name = &rest[..end.unwrap_or(rest.len())];
            // Empty: `$name` in a macro, which is not a name yet.
            if !name.is_empty() {
                found.push((index + 1, name.to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(allowed: &[(&str, &str)]) -> Vec<(String, usize)> {
        let tree = Tree::from([
            (
                "crates/a/src/lib.rs",
                "pub struct Place<T>(T);\npub(crate) struct Inner;\npub enum Error {}\n",
            ),
            (
                "crates/b/src/deep/map.rs",
                "/// Doc.\npub type Place = u8;\npub struct Inner;\npub struct Error;\n",
            ),
            ("crates/b/src/other.rs", "    pub unsafe trait Place: Sized {}\npub struct $name;\n"),
            ("crates/b/src/last.rs", "pub struct Once;\npub struct Once;\npub struct $name;\n"),
            ("crates/b/tests/t.rs", "pub struct Place;\n"),
        ]);
        findings(&tree, allowed).into_iter().map(|f| (f.path, f.line)).collect()
    }

    #[test]
    fn a_public_type_that_occurs_twice_is_found() {
        let expected = [("crates/b/src/deep/map.rs", 2), ("crates/b/src/other.rs", 1)];
        assert_eq!(found(&[]), expected.map(|(path, line)| (path.to_owned(), line)));
    }

    #[test]
    fn an_allowed_name_passes_and_a_needless_allowance_is_found() {
        assert_eq!(found(&[("Place", "a reason")]), []);
        let needless = found(&[("Place", "a reason"), ("Inner", "a reason")]);
        assert_eq!(needless, [("xtask/src/tidy/public.rs".to_owned(), 0)]);
    }
}
