//! Rules for Rust source files.

use super::Finding;
use super::rust::words;
use super::tree::Tree;

/// The longest allowed file, in lines.
const LONGEST_FILE: usize = 600;

/// Finds Rust files that are too long.
pub(super) fn short_files(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > LONGEST_FILE)
        .map(|(path, lines)| {
            let message = format!("{lines} lines, at most {LONGEST_FILE}: find the second noun");
            Finding::new(path, LONGEST_FILE + 1, message)
        })
        .collect()
}

/// Finds unfinished and ignored code.
pub(super) fn finished_code(tree: &Tree) -> Vec<Finding> {
    const BANNED: [(&str, &str); 4] = [
        ("todo!(", "unfinished code"),
        ("unimplemented!(", "unfinished code"),
        ("dbg!(", "a debugging aid"),
        ("#[ignore", "a test that does not run proves nothing"),
    ];
    in_code(
        tree,
        |_| true,
        |line| {
            let banned = BANNED.iter().find(|(needle, _)| starts_name(line, needle));
            banned.map(|(needle, why)| format!("`{needle}`: {why}"))
        },
    )
}

/// Finds code that reads the clock outside `clock.rs`. The runtime's own instants are allowed:
/// tests can pause that clock.
pub(super) fn the_clock_is_read_in_one_file(tree: &Tree) -> Vec<Finding> {
    let by_the_runtime = |path: &str| {
        let mut lines =
            tree.rust().filter(|(at, _)| *at == path).flat_map(|(_, text)| text.lines());
        lines.any(|line| line.starts_with("use tokio::time::") && line.contains("Instant"))
    };
    let reads = |needle: &'static str, may: &dyn Fn(&str) -> bool| {
        in_code(
            tree,
            |path| !may_read_the_clock(path) && !may(path),
            |line| {
                starts_name(line, needle)
                    .then(|| format!("`{needle}` outside clock.rs: take the time from a clock"))
            },
        )
    };
    let mut found = reads("Instant::now", &by_the_runtime);
    found.extend(reads("SystemTime::now", &|_| false));
    found.sort_by_key(|finding| (finding.path.clone(), finding.line));
    found
}

/// Finds modules of published crates that do not begin with a module comment.
pub(super) fn modules_have_comments(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|(path, _)| {
            let mut parts = path.split('/');
            parts.next() == Some("crates") && parts.nth(1) == Some("src")
        })
        .filter(|(_, text)| !text.trim_start().starts_with("//!"))
        .map(|(path, _)| Finding::new(path, 1, "begin with `//!`: what is this module for?"))
        .collect()
}

fn may_read_the_clock(path: &str) -> bool {
    let mut parts = path.split('/');
    path.starts_with("crates/semel-testkit/")
        || path.ends_with("/clock.rs")
        || parts.any(|part| matches!(part, "tests" | "benches" | "bin" | "xtask"))
}

/// Returns whether the needle occurs other than as the end of a longer name (`my_dbg!(`).
fn starts_name(line: &str, needle: &str) -> bool {
    line.match_indices(needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn in_code(
    tree: &Tree,
    looks_at: impl Fn(&str) -> bool,
    complaint: impl Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, code) in tree.code().filter(|(path, _)| looks_at(path)) {
        for (index, line) in code.lines().enumerate() {
            // rustfmt, which runs before, leaves no spaces between the tokens.
            if words(line).next().is_some()
                && let Some(message) = complaint(line)
            {
                findings.push(Finding::new(path, index + 1, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: &[Finding]) -> Vec<(&str, usize)> {
        findings.iter().map(|finding| (finding.path.as_str(), finding.line)).collect()
    }

    #[test]
    fn a_file_over_the_limit_is_found() {
        let long = "x\n".repeat(601);
        let fine = "x\n".repeat(600);
        let tree = Tree::from([("a.rs", long.as_str()), ("b.rs", fine.as_str())]);
        assert_eq!(lines(&short_files(&tree)), [("a.rs", 601)]);
    }

    #[test]
    fn unfinished_and_ignored_code_is_found_but_not_in_comments_or_strings() {
        let bad = "fn a() {\n    todo!()\n}\nfn b() { unimplemented!(\"x\") }\nlet c = dbg!(1);\n#[ignore = \"slow\"]\n#[ignore]\n";
        let good = "// todo!(\nlet s = \"dbg!(\";\nmy_todo!();\n";
        let tree = Tree::from([("bad.rs", bad), ("good.rs", good)]);
        let found = finished_code(&tree);
        let expected = [("bad.rs", 2), ("bad.rs", 4), ("bad.rs", 5), ("bad.rs", 6), ("bad.rs", 7)];
        assert_eq!(lines(&found), expected);
        assert!(found[0].message.contains("todo!("), "{}", found[0]);
    }

    #[test]
    fn reading_the_clock_is_found_outside_the_files_that_may() {
        let reads = "let a = Instant::now();\nlet b = std::time::SystemTime::now();\n";
        let tree = Tree::from([
            ("crates/semel/src/clock.rs", reads),
            ("crates/semel/src/judge.rs", reads),
            ("crates/semel/src/notclock.rs", reads),
            (
                "crates/semel/src/runtime.rs",
                "use tokio::time::{Instant, sleep};\nInstant::now();\n",
            ),
            ("crates/semel/tests/a.rs", reads),
            ("crates/semel/src/bin/a.rs", reads),
            ("crates/semel/benches/a.rs", reads),
            ("crates/semel-testkit/src/model.rs", reads),
            ("tests/faults/src/a.rs", reads),
            ("xtask/src/a.rs", reads),
        ]);
        let expected = [
            ("crates/semel/src/judge.rs", 1),
            ("crates/semel/src/judge.rs", 2),
            ("crates/semel/src/notclock.rs", 1),
            ("crates/semel/src/notclock.rs", 2),
        ];
        assert_eq!(lines(&the_clock_is_read_in_one_file(&tree)), expected);
    }

    #[test]
    fn a_module_without_an_introduction_is_found() {
        let tree = Tree::from([
            ("crates/semel/src/a.rs", "use b;\n//! late\n"),
            ("crates/semel/src/b.rs", "//! The room.\n"),
            ("crates/semel/tests/c.rs", "use b;\n"),
            ("crates/semel/src/deep/d.rs", ""),
        ]);
        let expected = [("crates/semel/src/a.rs", 1), ("crates/semel/src/deep/d.rs", 1)];
        assert_eq!(lines(&modules_have_comments(&tree)), expected);
    }
}
