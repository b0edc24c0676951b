//! Documents: the targets of a page's links exist.

use super::Finding;
use super::tree::Tree;

/// Finds relative links that do not resolve to a file or directory of the tree, in the pages at the
/// root, in `docs/` and in the READMEs of crates. Anchors and other sites are not checked.
pub(super) fn links_resolve(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| is_page(path)) {
        for (line, target) in links(text) {
            let file = target.split(['#', '?']).next().unwrap_or_default();
            if file.is_empty() || is_elsewhere(&target) {
                continue;
            }
            match resolve(path, file) {
                Some(found) if tree.has(&found) => {}
                Some(found) => {
                    let message = format!("link to `{target}`: there is no {found}");
                    findings.push(Finding::new(path, line, message));
                }
                None => {
                    let message = format!("link to `{target}` leaves the repository");
                    findings.push(Finding::new(path, line, message));
                }
            }
        }
    }
    findings
}

fn is_page(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let Some(name) = parts.last().and_then(|file| file.strip_suffix(".md")) else {
        return false;
    };
    parts.len() == 1
        || parts[0] == "docs"
        || (name == "README" && matches!(parts[0], "crates" | "examples" | "tests"))
}

/// Returns whether a target has another scheme (`https:`, `mailto:`); file names here have no
/// colon.
fn is_elsewhere(target: &str) -> bool {
    let scheme = target.split_once(':').map(|(scheme, _)| scheme);
    scheme
        .is_some_and(|s| !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric() || c == '+'))
}

/// Returns the target as a path from the root; `None` if it leaves the repository.
fn resolve(page: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => page.split('/').collect(),
    };
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Returns the targets of `[text](target)` and `[name]: target`, with their lines; code is skipped.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => {
                let prose = without_code(line);
                found.extend(inline(&prose).map(|target| (index + 1, target)));
                found.extend(definition(&prose).map(|target| (index + 1, target)));
            }
        }
    }
    found
}

/// Removes code from a line: every second piece between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

fn inline(line: &str) -> impl Iterator<Item = String> {
    line.match_indices("](").filter_map(|(at, _)| {
        let rest = &line[at + 2..];
        clean(&rest[..rest.find(')')?])
    })
}

fn definition(line: &str) -> Option<String> {
    let (name, target) = line.trim_start().strip_prefix('[')?.split_once("]: ")?;
    // A footnote is defined the same way, but its definition is text.
    if name.starts_with('^') { None } else { clean(target) }
}

/// Removes the optional title and angle brackets.
fn clean(target: &str) -> Option<String> {
    let target = target.split_whitespace().next()?;
    Some(target.trim_start_matches('<').trim_end_matches('>').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_nothing_is_found_with_its_line() {
        let page = "# Title\n\nsee [a](guides/a.md#part) and [b](guides/b.md \"B\")\n[c]: ../gone.md\n\
                    [out](../../x.md) ![img](pic.png)\n";
        let tree = Tree::from([("docs/index.md", page), ("docs/guides/a.md", "")]);
        let found: Vec<_> = links_resolve(&tree).into_iter().map(|f| (f.line, f.message)).collect();
        assert_eq!(found.len(), 4, "{found:?}");
        assert_eq!(found[0], (3, "link to `guides/b.md`: there is no docs/guides/b.md".into()));
        assert_eq!(found[1], (4, "link to `../gone.md`: there is no gone.md".into()));
        assert_eq!(found[2], (5, "link to `../../x.md` leaves the repository".into()));
        assert_eq!(found[3].0, 5);
    }

    #[test]
    fn good_links_other_sites_anchors_and_code_are_left_alone() {
        let page = "[a](docs/a.md) [d](docs/) [s](https://example.org/x.md) [m](mailto:a@b.c) [h](#here)\n\
                    `[x](no.md)`\n```md\n[y](no.md)\n```\n[e]: <docs/a.md>\n[^1]: words\n";
        let tree = Tree::from([
            ("README.md", page),
            ("docs/a.md", "[up](../README.md) [root](/README.md)"),
            ("crates/x/notes.md", "[not a page](no.md)"),
        ]);
        assert_eq!(links_resolve(&tree), []);
    }
}
