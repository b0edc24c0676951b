//! Tidy: the project's own rules about its sources and documents, as checks that report file and
//! line.
//!
//! The checks work on text and do not parse Rust; rules that need more are clippy's.

mod commits;
mod cycles;
mod documents;
mod glossary;
mod modules;
mod naming;
mod places;
mod proofs;
mod public;
mod rust;
mod source;
mod tree;

use std::fmt;
use std::path::Path;

use crate::step::Failure;
use tree::Tree;

/// A violation of a rule, at a line of a file, or with line 0 if there is no line.
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
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// A rule: returns its violations in the whole tree.
type Check = fn(&Tree) -> Vec<Finding>;

const CHECKS: [Check; 11] = [
    source::short_files,
    source::finished_code,
    source::the_clock_is_read_in_one_file,
    source::modules_have_comments,
    naming::module_names_describe,
    public::type_names_are_unique,
    cycles::siblings_form_no_cycle,
    places::no_machine_or_registry,
    documents::links_resolve,
    glossary::named_items_exist,
    proofs::named_tests_exist,
];

/// Checks the tree below `root`.
pub(crate) fn run(root: &Path) -> Result<(), Failure> {
    let tree = Tree::read(root)
        .map_err(|error| Failure::new(format!("tidy: reading the tree: {error}")))?;
    let mut findings: Vec<Finding> = CHECKS.iter().flat_map(|check| check(&tree)).collect();
    findings.extend(commits::subjects_name_an_area(root));
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
