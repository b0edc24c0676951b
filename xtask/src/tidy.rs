//! Tidy: the project's own rules about its sources and documents, as checks that name file and line.
//!
//! Nothing here parses Rust properly or knows what code means; rules that need that are clippy's.

mod documents;
mod naming;
mod places;
mod proofs;
mod rust;
mod source;
mod tree;

use std::fmt;
use std::path::Path;

use crate::step::Failure;
use tree::Tree;

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A rule: looks at the whole tree, returns what breaks it.
type Check = fn(&Tree) -> Vec<Finding>;

const CHECKS: [Check; 8] = [
    source::short_files,
    source::finished_code,
    source::time_by_the_door,
    source::rooms_introduce_themselves,
    naming::modules_name_their_noun,
    places::no_machine_or_registry,
    documents::links_resolve,
    proofs::named_tests_exist,
];

/// Checks the tree below `root`.
pub(crate) fn run(root: &Path) -> Result<(), Failure> {
    let tree = Tree::read(root)
        .map_err(|error| Failure::new(format!("tidy: reading the tree: {error}")))?;
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|check| check(&tree)).collect();
    findings.sort();
    findings.dedup();
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("tidy: {count} finding(s)"))),
    }
}
