//! The files that tidy checks.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use super::rust::code;

/// Every file of the project by its path from the root, with `/` between names. A file that is not
/// text is present but empty, so that links to it resolve.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: BTreeMap<String, String>,
    /// The Rust files with comments and literals blanked, as most checks need them.
    code: OnceCell<BTreeMap<String, String>>,
}

/// Directories of other projects or made by tools.
const SKIPPED: [&str; 3] = [".git", "target", "node_modules"];

impl Tree {
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.walk(root, "")?;
        Ok(tree)
    }

    fn walk(&mut self, directory: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    self.walk(&entry.path(), &format!("{path}/"))?;
                }
            } else if kind.is_file() {
                let text = String::from_utf8(fs::read(entry.path())?).unwrap_or_default();
                self.files.insert(path, text);
            }
        }
        Ok(())
    }

    /// Returns all files, in the order of their paths.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns the Rust files.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// Returns the Rust files with comments and literals blanked.
    pub(super) fn code(&self) -> impl Iterator<Item = (&str, &str)> {
        let blanked = || self.rust().map(|(path, text)| (path.to_owned(), code(text))).collect();
        let files = self.code.get_or_init(blanked);
        files.iter().map(|(path, code)| (path.as_str(), code.as_str()))
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Returns whether a file or a directory of this name exists.
    pub(super) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        path.is_empty() || self.files.contains_key(path) || self.has_directory(path)
    }

    fn has_directory(&self, path: &str) -> bool {
        let inside = format!("{path}/");
        self.files.range(inside.clone()..).next().is_some_and(|(name, _)| name.starts_with(&inside))
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Tree {
    /// Returns a tree for a test.
    fn from(files: [(&str, &str); N]) -> Self {
        let owned = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        Self { files: owned.into(), code: OnceCell::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_exist_through_their_files() {
        let tree = Tree::from([("docs/a/b.md", ""), ("docs/ab.md", "")]);
        assert!(tree.has("docs") && tree.has("docs/a/") && tree.has("docs/a/b.md"));
        assert!(!tree.has("docs/b.md") && !tree.has("doc") && !tree.has("docs/a/b"));
    }
}
