//! Tests that the files in `ops/` refer to metrics that are counted and to pages that exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect(path)
}

/// Returns every name in `text` that has the form of a Semel metric.
fn names(text: &str) -> BTreeSet<String> {
    let starts = text.match_indices("semel_").map(|(at, _)| at);
    let alone =
        |at: &usize| !text[..*at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let name = |at: usize| {
        let end =
            text[at..].find(|c: char| !c.is_ascii_lowercase() && c != '_' && !c.is_ascii_digit());
        text[at..end.map_or(text.len(), |end| at + end)].to_owned()
    };
    starts.filter(alone).map(name).collect()
}

/// Returns the sources of all crates.
fn sources() -> String {
    fn walk(directory: &Path, text: &mut String) {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, text);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&std::fs::read_to_string(&path).expect("text"));
            }
        }
    }
    let mut text = String::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("crates") {
        walk(&entry.expect("an entry").path().join("src"), &mut text);
    }
    text
}

/// Returns the full names of all metrics that the sources count.
fn counted() -> BTreeSet<String> {
    let text = sources();
    let mut found = BTreeSet::new();
    for kind in ["counter!(", "gauge!(", "histogram!("] {
        for part in text.split(kind).skip(1) {
            let part = part.trim_start().strip_prefix('"').unwrap_or_default();
            let name = part.split('"').next().filter(|name| !name.is_empty());
            found.extend(name.map(str::to_owned));
        }
    }
    found
}

/// Returns the names in the table of the operating guide. `semel_outbox_pending`, `_dead` are two
/// names: the second has the prefix of the first.
fn documented(guide: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for row in guide.lines().filter(|line| line.starts_with("| `semel_")) {
        let cell = row.split('|').nth(1).expect("a first cell");
        let mut family = String::new();
        for name in
            cell.split('`').skip(1).step_by(2).map(|name| name.split('{').next().unwrap_or(""))
        {
            if name.starts_with("semel_") {
                let parts: Vec<&str> = name.splitn(3, '_').collect();
                family = parts[..2].join("_");
                found.insert(name.to_owned());
            } else {
                found.insert(format!("{family}{name}"));
            }
        }
    }
    found
}

#[test]
fn every_metric_that_is_counted_is_in_the_guide_in_both_languages() {
    let counted = counted();
    assert!(counted.contains("semel_executions_total"), "{counted:?}");
    for guide in ["docs/how-to/operating.md", "docs/how-to/operating.zh-CN.md"] {
        assert_eq!(documented(&read(guide)), counted, "{guide}");
    }
}

#[test]
fn every_metric_that_is_counted_has_its_line_of_help_and_no_other_has() {
    let help = names(&read("crates/semel-server/src/admin/help.rs"));
    assert_eq!(help, counted());
}

#[test]
fn alerts_and_dashboard_use_metrics_that_are_counted() {
    let counted = counted();
    for file in ["ops/prometheus-alerts.yaml", "ops/grafana-dashboard.json"] {
        let looked_at = names(&read(file));
        assert!(looked_at.len() > 15, "{file}: {looked_at:?}");
        for name in looked_at {
            // A histogram is shown as its buckets, their sum and their count.
            let parts =
                ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            let whole = parts.unwrap_or(&name);
            assert!(counted.contains(whole), "{file} looks at {name}, which is not counted");
        }
    }
}

/// Returns the labels of Semel metrics in `text`, with the values that are written out.
fn labels(text: &str) -> BTreeSet<(String, Option<String>)> {
    let mut found = BTreeSet::new();
    for at in text.match_indices("semel_").map(|(at, _)| at) {
        let name = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        let Some(rest) = text[at..].find(name).and_then(|end| text[at + end..].strip_prefix('{'))
        else {
            continue;
        };
        let used = rest.split('}').next().unwrap_or_default().replace('\\', "");
        for matcher in used.split(',').filter(|matcher| !matcher.is_empty()) {
            let (label, value) = matcher.split_once(['=', '!']).expect("a label and a value");
            let value = value.trim_start_matches(['=', '~']).trim_matches('"');
            for value in value.split('|') {
                let written = value.bytes().all(|b| b.is_ascii_lowercase() || b"_12".contains(&b));
                found.insert((label.to_owned(), written.then(|| value.to_owned())));
            }
        }
    }
    found
}

#[test]
fn alerts_and_dashboard_use_labels_that_exist() {
    let sources = sources();
    for file in ["ops/prometheus-alerts.yaml", "ops/grafana-dashboard.json"] {
        let used = labels(&read(file));
        let uncertain = ("state".to_owned(), Some("uncertain".to_owned()));
        assert!(used.contains(&uncertain), "{file}: {used:?}");
        for (label, value) in used {
            // Prometheus adds these two labels.
            let ours = !["job", "instance"].contains(&label.as_str());
            let given = sources.contains(&format!("\"{label}\" =>"));
            assert!(!ours || given, "{file} uses {label}, which no metric has");
            let is_counted = |value: &String| sources.contains(&format!("\"{value}\""));
            assert!(
                !ours || value.as_ref().is_none_or(is_counted),
                "{file}: {label} is never {value:?}"
            );
        }
    }
}

#[test]
fn every_metric_is_on_the_dashboard() {
    let shown = names(&read("ops/grafana-dashboard.json"));
    for name in counted() {
        let bucket = format!("{name}_bucket");
        assert!(shown.contains(&name) || shown.contains(&bucket), "{name} is shown nowhere");
    }
}

#[test]
fn every_alert_has_its_section_in_the_guide_in_both_languages() {
    let alerts = read("ops/prometheus-alerts.yaml");
    let values_of = |field: &str| -> Vec<String> {
        let lines = alerts.lines().map(|line| line.trim().trim_start_matches("- "));
        lines.filter_map(|line| Some(line.strip_prefix(field)?.trim().to_owned())).collect()
    };
    let (names, runbooks) = (values_of("alert:"), values_of("runbook:"));
    assert!(names.len() > 20 && names.len() == runbooks.len(), "{names:?} {runbooks:?}");
    for (name, runbook) in names.iter().zip(runbooks) {
        let (page, anchor) = runbook.split_once('#').expect("a section");
        assert_eq!(anchor, name.to_lowercase());
        for page in [page.to_owned(), page.replace(".md", ".zh-CN.md")] {
            let headed =
                |line: &str| line.starts_with('#') && line.trim_start_matches('#').trim() == name;
            assert!(read(&page).lines().any(headed), "{page} has no section {name}");
        }
    }
}
