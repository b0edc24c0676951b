//! Names: a module is named after what it contains.

use super::Finding;
use super::rust::words;
use super::tree::Tree;

/// Names that do not describe a module's contents.
const EMPTY_NAMES: [&str; 4] = ["utils", "common", "helpers", "types"];

/// Finds modules, files and directories of Rust code whose name does not describe their contents.
pub(super) fn module_names_describe(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, code) in tree.code() {
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        if let Some(name) = stem.split('/').find(|part| EMPTY_NAMES.contains(part)) {
            findings.push(Finding::new(path, 1, complaint(name)));
        }
        for (index, line) in code.lines().enumerate() {
            let declared = words(line).skip_while(|word| *word != "mod").nth(1);
            if let Some(name) = declared.filter(|name| EMPTY_NAMES.contains(name)) {
                findings.push(Finding::new(path, index + 1, complaint(name)));
            }
        }
    }
    findings
}

fn complaint(name: &str) -> String {
    format!("`{name}` does not describe the module: name it after what it contains")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_names_are_found_as_files_directories_and_inline_modules() {
        let tree = Tree::from([
            ("a/src/utils.rs", ""),
            ("a/tests/common/mod.rs", ""),
            ("a/src/lib.rs", "//! Doc: mod utils\npub(crate) mod helpers {\n}\nmod typed;\n"),
            ("a/src/common_law.rs", "mod types;\n"),
            ("docs/common/page.md", ""),
        ]);
        let found: Vec<_> = module_names_describe(&tree)
            .into_iter()
            .map(|finding| (finding.path, finding.line))
            .collect();
        let expected = [
            ("a/src/common_law.rs", 1),
            ("a/src/lib.rs", 2),
            ("a/src/utils.rs", 1),
            ("a/tests/common/mod.rs", 1),
        ];
        assert_eq!(found, expected.map(|(path, line)| (path.to_owned(), line)));
    }
}
