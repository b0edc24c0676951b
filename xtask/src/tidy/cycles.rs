//! Cycles: sibling modules depend on each other in one direction.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Finding;
use super::modules::{Edge, Modules, Names};
use super::tree::Tree;

/// The allowed cycles: the folder, the modules in it that may depend on each other, and the reason.
const ALLOWED: &[(&str, &str, &str)] =
    &[("crates/semel-core/src/executor", "command context", CALLBACK)];

/// A reason: a command has a verifier, which is called with the context of the attempt.
const CALLBACK: &str = "a command's verifier takes the context of its attempt";

/// Finds modules of one folder that depend on each other in a cycle, [`ALLOWED`] aside, and
/// allowances without a cycle.
pub(super) fn siblings_form_no_cycle(tree: &Tree) -> Vec<Finding> {
    findings(tree, ALLOWED)
}

fn findings(tree: &Tree, allowed: &[(&str, &str, &str)]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for (path, code) in tree.code().filter(|(path, _)| path.starts_with("crates/")) {
        if let Some((name, file)) = path.split_once("/src/") {
            crates.entry(name).or_default().push((file, code));
        }
    }
    let mut used = BTreeSet::new();
    let mut findings = Vec::new();
    for (name, files) in crates {
        let edges = Modules::read(files.into_iter()).edges();
        let parents: BTreeSet<&Names> = edges.iter().map(|edge| &edge.parent).collect();
        for parent in parents {
            let edges: Vec<&Edge> = edges.iter().filter(|edge| edge.parent == *parent).collect();
            let folder = [&[format!("{name}/src")], parent.as_slice()].concat().join("/");
            for cycle in strongly_connected(&edges) {
                let excuse = allowed.iter().position(|(place, members, _)| {
                    *place == folder
                        && cycle.iter().all(|member| members.split(' ').any(|m| m == *member))
                });
                match excuse {
                    Some(excuse) => _ = used.insert(excuse),
                    None => findings.push(complaint(name, &cycle, &edges)),
                }
            }
        }
    }
    for (index, (folder, members, reason)) in allowed.iter().enumerate() {
        if !used.contains(&index) {
            let message =
                format!("a cycle of `{members}` in {folder} is allowed (\"{reason}\") but unused");
            findings.push(Finding::new("xtask/src/tidy/cycles.rs", 0, message));
        }
    }
    findings
}

/// Returns the sets of modules in which each module reaches every other.
fn strongly_connected<'a>(edges: &[&'a Edge]) -> Vec<BTreeSet<&'a str>> {
    let names: BTreeSet<&str> = edges.iter().map(|edge| edge.from.as_str()).collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        names.iter().map(|name| (*name, reached_from(name, edges))).collect();
    let cycle_of = |name: &&'a str| -> BTreeSet<&'a str> {
        let mutual = |other: &&str| reached.get(other).is_some_and(|from| from.contains(name));
        reached[name].iter().copied().filter(mutual).collect()
    };
    let strongly_connected: BTreeSet<BTreeSet<&str>> = names.iter().map(cycle_of).collect();
    strongly_connected.into_iter().filter(|cycle| cycle.len() > 1).collect()
}

fn reached_from<'a>(start: &str, edges: &[&'a Edge]) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(name) = open.pop() {
        for edge in edges.iter().filter(|edge| edge.from == name) {
            if reached.insert(edge.to.as_str()) {
                open.push(&edge.to);
            }
        }
    }
    reached
}

/// Describes the cycle by its shortest path, with lines.
fn complaint(name: &str, cycle: &BTreeSet<&str>, edges: &[&Edge]) -> Finding {
    let around = cycle.iter().filter_map(|start| shortest_cycle(start, edges));
    let around = around.min_by_key(Vec::len).unwrap_or_default();
    let steps: Vec<String> = around
        .iter()
        .map(|edge| format!("{} -> {} ({}:{})", edge.from, edge.to, edge.path, edge.line))
        .collect();
    let members: Vec<&str> = cycle.iter().copied().collect();
    let message = format!(
        "the modules `{}` depend on each other, for example {}",
        members.join(" "),
        steps.join(", ")
    );
    let (path, line) = around.first().map_or(("", 0), |edge| (edge.path.as_str(), edge.line));
    Finding::new(&format!("{name}/src/{path}"), line, message)
}

fn shortest_cycle<'a>(start: &str, edges: &[&'a Edge]) -> Option<Vec<&'a Edge>> {
    let mut seen = BTreeSet::new();
    let mut open: VecDeque<(&str, Vec<&Edge>)> = VecDeque::from([(start, Vec::new())]);
    while let Some((name, way)) = open.pop_front() {
        for edge in edges.iter().filter(|edge| edge.from == name) {
            let way = [way.as_slice(), &[*edge]].concat();
            if edge.to == start {
                return Some(way);
            }
            if seen.insert(edge.to.as_str()) {
                open.push_back((&edge.to, way));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        Tree::from([
            ("crates/x/src/lib.rs", "mod room;\n"),
            ("crates/x/src/room/claim.rs", "use super::settle::Settled;\n"),
            ("crates/x/src/room/settle.rs", "//! Settles.\nuse crate::room::answer;\n"),
            ("crates/x/src/room/answer.rs", "fn f() { super::claim::g() }\n"),
            ("crates/x/src/room/clock.rs", "use super::Room;\n"),
            ("crates/x/src/room.rs", "use clock::Clock;\nmod clock;\n"),
        ])
    }

    #[test]
    fn a_cycle_is_found_and_printed() {
        let found = findings(&tree(), &[]);
        let message = "the modules `answer claim settle` depend on each other, for example \
                       answer -> claim (room/answer.rs:1), claim -> settle (room/claim.rs:1), \
                       settle -> answer (room/settle.rs:2)";
        assert_eq!(found, [Finding::new("crates/x/src/room/answer.rs", 1, message)]);
    }

    #[test]
    fn an_allowed_cycle_passes_until_it_grows_and_a_needless_allowance_is_found() {
        let room = "crates/x/src/room";
        assert_eq!(findings(&tree(), &[(room, "answer claim other settle", "a reason")]), []);
        let found = findings(&tree(), &[(room, "answer claim", "a reason")]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[1].message.contains("but unused"), "{found:?}");
    }
}
