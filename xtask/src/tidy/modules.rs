//! Modules: which file refers to which other by a path, as far as text shows.
//!
//! A path counts if it begins with `crate`, `super` or `self`, in a `use` or anywhere else. A name
//! that a parent re-exports is followed to the module it comes from. Tests, globs and macros are
//! skipped.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The names from the crate's root down to a module or an item.
pub(super) type Names = Vec<String>;

/// A path in a file, with its line.
#[derive(Debug)]
struct Mention {
    from: Names,
    line: usize,
    to: Names,
}

/// The modules of one crate.
#[derive(Debug, Default)]
pub(super) struct Modules {
    files: BTreeMap<Names, String>,
    mentions: Vec<Mention>,
    /// The path that a name in a module refers to, by its `use` declarations.
    imports: HashMap<Names, Names>,
}

/// A reference from one sibling module to another: the parent, the two children, and the place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    pub(super) parent: Names,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) path: String,
    pub(super) line: usize,
}

impl Modules {
    /// Reads the code below a crate's `src/`; paths are relative to it.
    pub(super) fn read<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut all = Self::default();
        let mut tests = BTreeSet::new();
        for (path, code) in files {
            let Some(module) = module_of(path) else { continue };
            all.files.insert(module.clone(), path.to_owned());
            let mut reader = Reader { module, at: 0, tokens: tokens(code), found: &mut all };
            tests.extend(reader.read());
        }
        let is_test = |module: &Names| tests.iter().any(|test: &Names| module.starts_with(test));
        all.files.retain(|module, _| !is_test(module));
        all.mentions.retain(|mention| !is_test(&mention.from));
        all
    }

    /// Returns the edges between siblings. A module below a sibling counts as that sibling.
    pub(super) fn edges(&self) -> BTreeSet<Edge> {
        let mut edges = BTreeSet::new();
        for mention in &self.mentions {
            let from = self.module_above(&mention.from);
            let to = self.module_above(&self.origin(&mention.to));
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                edges.insert(Edge {
                    parent: from[..common].to_vec(),
                    from: a.clone(),
                    to: b.clone(),
                    path: self.files.get(&from).cloned().unwrap_or_default(),
                    line: mention.line,
                });
            }
        }
        edges
    }

    /// Follows re-exports of a path to its origin, in a limited number of steps.
    fn origin(&self, path: &Names) -> Names {
        let mut path = path.clone();
        for _ in 0..4 {
            let found = (1..=path.len()).find_map(|end| {
                let known = self.files.contains_key(&path[..end]);
                self.imports.get(&path[..end]).filter(|_| !known).map(|to| (end, to))
            });
            let Some((end, to)) = found else { break };
            path = to.iter().chain(&path[end..]).cloned().collect();
        }
        path
    }

    /// Returns the module, in a file of its own, that an item is in.
    fn module_above(&self, path: &Names) -> Names {
        let mut path = path.clone();
        while !path.is_empty() && !self.files.contains_key(&path) {
            path.pop();
        }
        path
    }
}

/// Returns the module in a file; `None` for the root of a program.
fn module_of(path: &str) -> Option<Names> {
    let stem = path.strip_suffix(".rs")?;
    let mut names: Names = stem.split('/').map(str::to_owned).collect();
    match (names.len(), names.last().map(String::as_str)) {
        (1, Some("lib")) => names.clear(),
        (1, Some("main")) => return None,
        (_, Some("mod")) => {
            names.pop();
        }
        _ => {}
    }
    (names.first().map(String::as_str) != Some("bin")).then_some(names)
}

/// Splits code into names, `::`, and single other characters.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let length = if is_name(first) {
                rest.find(|c| !is_name(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            found.push((index + 1, &rest[..length]));
            rest = rest[length..].trim_start();
        }
    }
    found
}

/// Reads the tokens of one file from the front to the back.
struct Reader<'a> {
    module: Names,
    at: usize,
    tokens: Vec<(usize, &'a str)>,
    found: &'a mut Modules,
}

impl Reader<'_> {
    fn token(&self, offset: usize) -> &str {
        self.tokens.get(self.at + offset).map_or("", |(_, token)| token)
    }

    /// Collects the file's mentions and imports; returns the modules that exist only in tests.
    fn read(&mut self) -> Vec<Names> {
        let mut tests = Vec::new();
        // The depths of the braces of the enclosing inline modules.
        let mut inline: Vec<usize> = Vec::new();
        let mut depth = 0;
        let mut scope = self.module.clone();
        while self.at < self.tokens.len() {
            match self.token(0) {
                "#" if self.begins_test() => tests.extend(self.skip_item(&scope)),
                "mod" if self.token(2) == "{" => {
                    scope.push(self.token(1).to_owned());
                    inline.push(depth);
                    depth += 1;
                    self.at += 3;
                }
                "{" => (depth, self.at) = (depth + 1, self.at + 1),
                "}" => {
                    (depth, self.at) = (depth.saturating_sub(1), self.at + 1);
                    if inline.pop_if(|opened| *opened >= depth).is_some() {
                        scope.pop();
                    }
                }
                "use" => {
                    self.at += 1;
                    self.paths(&scope, Vec::new(), true);
                }
                "crate" | "super" | "self" if self.token(1) == "::" => {
                    self.paths(&scope, Vec::new(), false);
                }
                _ => self.at += 1,
            }
        }
        tests
    }

    /// Returns whether `#[cfg(test)]` or a similar attribute begins here.
    fn begins_test(&self) -> bool {
        let rest = self.tokens[self.at..].iter().map(|(_, token)| *token);
        let attribute: Vec<&str> = rest.take_while(|token| *token != "]").collect();
        attribute.starts_with(&["#", "[", "cfg"])
            && attribute.contains(&"test")
            && !attribute.contains(&"not")
    }

    /// Skips an item with its attributes; returns its module if it is one in a file of its own.
    fn skip_item(&mut self, scope: &Names) -> Option<Names> {
        let start = self.at;
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            let token = self.token(0).to_owned();
            self.at += 1;
            match token.as_str() {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 && token == "}" {
                        break;
                    }
                }
                ";" if depth == 0 => break,
                _ => {}
            }
        }
        let item = &self.tokens[start..self.at];
        let name = item.iter().position(|(_, token)| *token == "mod").map(|at| item[at + 1].1);
        let name = name.filter(|_| item.last().is_some_and(|(_, last)| *last == ";"));
        name.map(|name| scope.iter().cloned().chain([name.to_owned()]).collect())
    }

    /// Reads a path, or the tree of paths of a `use`, that continues after `before`.
    fn paths(&mut self, scope: &Names, before: Names, is_use: bool) {
        let mut path = before;
        let line = self.tokens.get(self.at).map_or(0, |(line, _)| *line);
        loop {
            match self.token(0).to_owned().as_str() {
                "{" if is_use => {
                    self.at += 1;
                    while !matches!(self.token(0), "}" | "") {
                        self.paths(scope, path.clone(), true);
                        if self.token(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "::" => self.at += 1,
                name if name.starts_with(|c: char| c.is_alphanumeric() || c == '_') => {
                    self.at += 1;
                    if name == "as" {
                        break;
                    }
                    path.push(name.to_owned());
                    if self.token(0) != "::" && self.token(0) != "as" {
                        break;
                    }
                }
                // A glob, or the generic arguments of a path.
                _ => {
                    if is_use {
                        self.at += 1;
                    }
                    break;
                }
            }
        }
        let alias = self.at.checked_sub(1).is_some_and(|at| self.tokens[at].1 == "as");
        let alias = alias.then(|| self.token(0).to_owned());
        self.at += usize::from(alias.is_some());
        self.note(scope, path, alias, line, is_use);
    }

    fn note(
        &mut self,
        scope: &Names,
        path: Names,
        alias: Option<String>,
        line: usize,
        is_use: bool,
    ) {
        let Some(to) = absolute(scope, &path) else { return };
        if is_use && let Some(name) = alias.or_else(|| path.last().cloned()) {
            let name: Names = scope.iter().cloned().chain([name]).collect();
            if name != to {
                self.found.imports.insert(name, to.clone());
            }
        }
        self.found.mentions.push(Mention { from: scope.clone(), line, to });
    }
}

/// Returns the path from the crate's root. A path that begins with neither `crate`, `super` nor
/// `self` is treated as a child's, which does no harm if it is another crate's.
fn absolute(scope: &Names, path: &Names) -> Option<Names> {
    let mut base = scope.clone();
    let mut rest = path.as_slice();
    match path.first()?.as_str() {
        "crate" => (base, rest) = (Names::new(), &path[1..]),
        "self" => rest = &path[1..],
        _ => {
            while rest.first().is_some_and(|name| name == "super") {
                base.pop()?;
                rest = &rest[1..];
            }
        }
    }
    // `use a::{self, b}` refers to `a` itself.
    let rest = rest.iter().filter(|name| *name != "self");
    base.extend(rest.cloned());
    Some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let edges = Modules::read(files.iter().copied()).edges();
        let shown =
            |edge: Edge| format!("{}:{} {} -> {}", edge.path, edge.line, edge.from, edge.to);
        edges.into_iter().map(shown).collect()
    }

    #[test]
    fn paths_in_uses_and_in_code_are_edges_between_siblings() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use b::Made;\n"),
            (
                "a.rs",
                "use super::b::{self, Other};\nuse std::fmt;\nfn f() { crate::c::g::<u8>() }\n",
            ),
            ("b.rs", "use crate::{Unknown, c::{G as H, I}};\n"),
            ("b/deep.rs", "use super::B;\nuse super::super::a::A;\n"),
            ("c.rs", "use super::Made;\nfn g(_: &super::Unknown) {}\n"),
        ];
        let expected = [
            "a.rs:1 a -> b",
            "a.rs:3 a -> c",
            "b/deep.rs:2 b -> a",
            "b.rs:1 b -> c",
            "c.rs:1 c -> b",
        ];
        assert_eq!(edges(&files), expected);
    }

    #[test]
    fn tests_and_inline_modules_are_understood() {
        let files = [
            ("lib.rs", "#[cfg(test)]\nmod checks;\n"),
            (
                "a.rs",
                "#[cfg(test)]\nmod tests { use crate::b::B; }\nmod inner { use super::super::c::C; }\nuse super::d;\n",
            ),
            ("b.rs", ""),
            ("c.rs", "#[cfg(not(test))]\nuse super::b::B;\n#[cfg(test)]\nuse super::d::{D, E};\n"),
            ("checks.rs", "use crate::a::A;\n"),
            ("d.rs", ""),
        ];
        assert_eq!(edges(&files), ["a.rs:3 a -> c", "a.rs:4 a -> d", "c.rs:2 c -> b"]);
    }
}
