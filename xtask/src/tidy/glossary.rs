//! Glossary: the items in its third column exist in the code.

use std::collections::HashSet;

use super::Finding;
use super::rust::{without_comments, words};
use super::tree::Tree;

const PAGES: [&str; 2] = ["docs/glossary.md", "docs/glossary.zh-CN.md"];
/// The column with the items of the code, counted from 0.
const IN_THE_CODE: usize = 2;

/// Finds items in backticks in the third column of the glossary's tables that are neither a path of
/// the tree nor made of names that occur in the crates' code. An item with a `/` is a path.
pub(super) fn named_items_exist(tree: &Tree) -> Vec<Finding> {
    let pages: Vec<_> =
        PAGES.iter().filter_map(|page| tree.text(page).map(|text| (*page, text))).collect();
    if pages.is_empty() {
        return Vec::new();
    }
    let sources = tree.rust().filter(|(path, _)| path.starts_with("crates/"));
    let texts: Vec<String> = sources.map(|(_, text)| without_comments(text)).collect();
    let known: HashSet<&str> = texts.iter().flat_map(|text| words(text)).collect();
    let exists = |item: &str| {
        tree.has(item)
            || (!item.contains('/')
                && words(item).next().is_some()
                && words(item).all(|word| known.contains(word)))
    };
    let mut findings = Vec::new();
    for (page, text) in pages {
        for (line, term, item) in items(text) {
            if !exists(item) {
                let message =
                    format!("{term}: `{item}` is neither a path nor a name in crates/**.rs");
                findings.push(Finding::new(page, line, message));
            }
        }
    }
    findings
}

/// Returns the items in backticks of the column, each with its line and its term.
fn items(page: &str) -> impl Iterator<Item = (usize, &str, &str)> {
    page.lines().enumerate().flat_map(|(index, line)| {
        let row = line.trim().strip_prefix('|').unwrap_or_default();
        let mut cells = row.split('|');
        let term = cells.next().unwrap_or_default().trim().trim_matches('*');
        let cell = cells.nth(IN_THE_CODE - 1).unwrap_or_default();
        cell.split('`').skip(1).step_by(2).map(move |item| (index + 1, term, item))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "//! Mentions Gone.\npub struct Claim;\nimpl Claim { fn settle() {} }\n\
                          const METRIC: &str = \"semel_claims_total\";\n";

    fn findings(rows: &str) -> Vec<(usize, String)> {
        let page = format!(
            "# Glossary\n\n| term | what it is | in the code | elsewhere called |\n|---|---|---|---|\n\
             {rows}"
        );
        let tree = Tree::from([
            (PAGES[0], page.as_str()),
            ("crates/semel-core/src/claim.rs", SOURCE),
            ("xtask/src/other.rs", "struct Elsewhere;"),
        ]);
        named_items_exist(&tree).into_iter().map(|f| (f.line, f.message)).collect()
    }

    #[test]
    fn a_term_that_the_code_no_longer_has_is_found_with_its_line() {
        let found = findings(
            "| **claim** | a `Right` | `Claim` | `Lock` |\n\
             | **gone** | x | `Claim`, `Gone` | y |\n\
             | **moved** | x | `crates/semel-core/src/moved.rs` | y |\n\
             | **other** | x | `Elsewhere`, `Claim::gone` | y |\n",
        );
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [6, 7, 8, 8], "{found:?}");
        assert!(found[0].1.starts_with("gone: `Gone` is neither"), "{found:?}");
    }

    #[test]
    fn names_paths_and_literals_of_the_code_pass_and_so_does_an_absent_page() {
        let rows = "| **claim** | x | `Claim`, `Claim::settle()`, `crates/semel-core/src/claim.rs` | – |\n\
                    | **metric** | x | `semel_claims_total`, `crates/semel-core` | – |\n\
                    | **idea** | x | – | `Anything` |\n";
        assert_eq!(findings(rows), []);
        assert_eq!(named_items_exist(&Tree::from([("README.md", "")])), []);
    }
}
