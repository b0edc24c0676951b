//! Proofs: every test in `docs/proofs.md` exists.

use std::collections::HashSet;

use super::Finding;
use super::rust::words;
use super::tree::Tree;

const PAGE: &str = "docs/proofs.md";
/// The behaviours of stores; a macro makes tests of their names.
const CONFORMANCE: &str = "crates/semel-testkit/src/conformance";

/// Finds names in backticks in the last column of the page's tables that are neither a function of
/// the tree nor a behaviour of the conformance suite. A command (`cargo …`) is allowed there too.
pub(super) fn named_tests_exist(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.text(PAGE) else {
        return vec![Finding::new(PAGE, 1, "the list of proofs is missing")];
    };
    let known = known_names(tree);
    let mut findings = Vec::new();
    let mut named = 0;
    for (line, cell) in last_cells(page) {
        let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            findings.push(Finding::new(PAGE, line, "this row names no test in its last column"));
        }
        for name in names.into_iter().filter(|name| !name.starts_with("cargo ")) {
            named += 1;
            if !known.contains(name.rsplit("::").next().unwrap_or(name)) {
                let message = format!("`{name}` is neither a test nor a conformance behaviour");
                findings.push(Finding::new(PAGE, line, message));
            }
        }
    }
    if named == 0 {
        findings.push(Finding::new(PAGE, 1, "the list of proofs names no test at all"));
    }
    findings
}

fn known_names(tree: &Tree) -> HashSet<String> {
    let mut known = HashSet::new();
    for (path, code) in tree.code() {
        if path.starts_with(CONFORMANCE) {
            known.extend(words(code).map(str::to_owned));
            continue;
        }
        let mut words = words(code);
        while words.any(|word| word == "fn") {
            known.extend(words.next().map(str::to_owned));
        }
    }
    known
}

/// Returns the last cell of every row of a table, without its header and the line below it.
fn last_cells(page: &str) -> Vec<(usize, &str)> {
    let mut cells = Vec::new();
    let mut in_body = false;
    for (index, line) in page.lines().enumerate() {
        let row = line.trim();
        if !row.starts_with('|') {
            in_body = false;
        } else if row.chars().all(|c| matches!(c, '|' | '-' | ':' | ' ')) {
            in_body = true;
        } else if in_body {
            let inner = row.trim_end_matches('|');
            let cell = inner.rsplit_once('|').map_or(inner, |(_, cell)| cell);
            cells.push((index + 1, cell));
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &str =
        "#[test]\nfn a_test() {}\n// fn only_in_a_comment\nasync fn another_test() {}\n";
    const SUITE: &str = "//! Suite.\nbehaviours! { a_behaviour, b_behaviour }\n";

    fn findings(rows: &str) -> Vec<(usize, String)> {
        let page = format!("# Proofs\n\n| id | what `not_a_test` | test |\n|---|:--|---|\n{rows}");
        let tree = Tree::from([
            (PAGE, page.as_str()),
            ("crates/semel/tests/a.rs", TESTS),
            ("crates/semel-testkit/src/conformance/claims.rs", SUITE),
        ]);
        named_tests_exist(&tree).into_iter().map(|f| (f.line, f.message)).collect()
    }

    #[test]
    fn existing_tests_behaviours_and_commands_pass() {
        let rows = "| 1 | `x` | `a_test`, `module::another_test` |\n\
                    | 2 | y | `a_behaviour` and `cargo xtask faults crash` |\n";
        assert_eq!(findings(rows), []);
    }

    #[test]
    fn a_dangling_name_is_found_with_its_line() {
        let found = findings("| 1 | x | `a_test` |\n| 2 | y | `a_test` `module::gone_test` |\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, 6);
        assert!(found[0].1.contains("module::gone_test"), "{found:?}");
        assert_eq!(findings("| 1 | x | `only_in_a_comment` |\n").len(), 1);
    }

    #[test]
    fn a_row_without_a_test_and_a_page_without_tests_are_found() {
        let found = findings("| 1 | x | later |\n");
        assert_eq!(found.len(), 2, "{found:?}");
        let nothing = Tree::from([("README.md", "")]);
        assert_eq!(named_tests_exist(&nothing).len(), 1);
    }
}
