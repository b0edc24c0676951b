//! Places: nothing in the tree depends on the machine it was written on.

use super::Finding;
use super::tree::Tree;

/// The beginnings of absolute paths into home directories. Written in parts, because this file is
/// checked too.
const HOMES: [&str; 4] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("C:\\Us", "ers\\"),
];

/// Settings that make cargo use another registry than the public one, and its hosts.
const REGISTRIES: [&str; 6] = [
    concat!("[sou", "rce."),
    concat!("[regis", "tries"),
    concat!("replace-", "with ="),
    concat!("sparse+", "http"),
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
];

/// The only allowed source of locked packages.
const PUBLIC_INDEX: &str = concat!("registry+https://github.com/rust-lang/crates", ".io-index");

/// Finds home directories, registry hosts and packages from other sources.
pub(super) fn no_machine_or_registry(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files() {
        for (index, line) in text.lines().enumerate() {
            if let Some(message) = complaint(path, line) {
                findings.push(Finding::new(path, index + 1, message));
            }
        }
    }
    findings
}

fn complaint(path: &str, line: &str) -> Option<String> {
    if let Some(home) = HOMES.iter().find(|home| begins_a_path(line, home)) {
        return Some(format!("`{home}…` is a path of one machine"));
    }
    if let Some(registry) = REGISTRIES.iter().find(|registry| line.contains(**registry)) {
        return Some(format!("`{registry}` ties the project to a registry's address"));
    }
    let locked = path.ends_with("Cargo.lock").then(|| line.strip_prefix("source = ")).flatten();
    locked
        .filter(|source| source.trim_matches('"') != PUBLIC_INDEX)
        .map(|source| format!("{source} is not the public registry"))
}

/// Returns whether a path begins here, instead of this being the middle of a longer path or of a
/// URL.
fn begins_a_path(line: &str, start: &str) -> bool {
    line.match_indices(start).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '}'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, line: &str) -> bool {
        !no_machine_or_registry(&Tree::from([(path, line)])).is_empty()
    }

    #[test]
    fn home_directories_are_found_but_not_the_middle_of_other_paths() {
        for home in HOMES {
            assert!(found("README.md", &format!("see {home}me/x")), "{home}");
            assert!(found("a.rs", &format!("let p = \"{home}me\";")), "{home}");
        }
        assert!(!found("README.md", &format!("https://example.org{}page", HOMES[0])));
    }

    #[test]
    fn registry_settings_and_hosts_are_found() {
        for registry in REGISTRIES {
            assert!(found(".cargo/config.toml", &format!("x {registry} y")), "{registry}");
        }
        assert!(!found("README.md", "published on crates.io"));
    }

    #[test]
    fn locked_packages_from_elsewhere_are_found() {
        assert!(!found("Cargo.lock", &format!("source = \"{PUBLIC_INDEX}\"")));
        assert!(found("Cargo.lock", "source = \"git+https://example.org/x\""));
        assert!(!found("notes.txt", "source = \"git+https://example.org/x\""));
    }
}
