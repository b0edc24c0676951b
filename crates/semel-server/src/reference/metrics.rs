//! The page of the metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use serde::Deserialize;

use super::{Language, cell, root};
use crate::admin::help::{COUNTERS, GAUGES, HISTOGRAMS};

/// `metrics.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    section: Vec<Section>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    title: String,
    metric: Vec<Metric>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Metric {
    name: String,
    /// Left out for seconds.
    unit: Option<String>,
    #[serde(default)]
    note: String,
    #[serde(default)]
    label: Vec<Label>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Label {
    name: String,
    /// Each value with what it means; `*` stands for values that the service defines.
    values: Vec<(String, String)>,
}

/// A rule of `ops/prometheus-alerts.yaml`.
#[derive(Default)]
struct Alert {
    name: String,
    expression: String,
    /// `5m`, or empty if the rule has none.
    after: String,
    severity: String,
}

impl Alert {
    /// Returns the part of the expression that reads `metric`.
    fn clause(&self, metric: &str) -> Option<&str> {
        let reads = |clause: &&str| {
            clause.match_indices(metric).any(|(at, _)| {
                let rest = &clause[at + metric.len()..];
                let rest = rest.strip_prefix("_bucket").unwrap_or(rest);
                !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            })
        };
        self.expression.split(" or ").find(reads)
    }
}

fn described() -> Vec<Section> {
    let path = root().join("crates/semel-server/src/reference/metrics.toml");
    let described: Described = toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    described.section
}

/// Returns the type and the HELP text of each metric.
fn helped() -> BTreeMap<&'static str, (&'static str, &'static str)> {
    let lists: [(&str, &[(&str, &str)]); 3] =
        [("Counter", &COUNTERS), ("Gauge", &GAUGES), ("Histogram", &HISTOGRAMS)];
    let lists = lists.into_iter();
    lists
        .flat_map(|(kind, list)| list.iter().map(move |(name, help)| (*name, (kind, *help))))
        .collect()
}

fn alerts() -> Vec<Alert> {
    let rules = std::fs::read_to_string(root().join("ops/prometheus-alerts.yaml")).unwrap();
    let mut alerts = Vec::<Alert>::new();
    for line in rules.lines().map(str::trim) {
        let Some((field, value)) = line.split_once(": ") else { continue };
        let value = value.trim_matches('\'').replace("''", "'");
        if field == "- alert" {
            alerts.push(Alert { name: value, ..Alert::default() });
        } else if let Some(alert) = alerts.last_mut() {
            match field {
                "expr" => alert.expression = value,
                "for" => alert.after = value,
                "severity" => alert.severity = value,
                _ => {}
            }
        }
    }
    alerts
}

/// Returns the page.
pub(super) fn page(language: &Language) -> String {
    let mut text = format!("# {}\n\n", language.pick("Metrics", "指标"));
    text.push_str(&language.links("metrics"));
    text.push_str(language.pick(
        "\nEvery metric, with the alerts that read it. The services of `semel` serve them at `/metrics` of the \
         admin\nlistener; a service that uses the libraries shows the same names with any recorder of the crate \
         `metrics`. Labels\nnever carry keys, ids or tenants. What to do about an alert is in [operating](../how-to/operating.md#alerts); \
         the\nrules are [ops/prometheus-alerts.yaml](../../ops/prometheus-alerts.yaml), the panels \
         [ops/grafana-dashboard.json](../../ops/grafana-dashboard.json).\n\nGenerated from the HELP texts of the program, \
         its alert rules and `crates/semel-server/src/reference/metrics.toml`. An alert\nis shown with the part of its expression that \
         reads the metric.\n",
        "\n全部指标，以及用到它们的告警。`semel` 的各个服务在管理监听的 `/metrics` 上提供；使用库的服务装任何\n\
         `metrics` crate 的 recorder，名字都相同。标签里从不出现键、ID、租户。收到告警怎么办见[运维](../how-to/operating.zh-CN.md#告警)；\n\
         规则在 [ops/prometheus-alerts.yaml](../../ops/prometheus-alerts.yaml)，面板在\n\
         [ops/grafana-dashboard.json](../../ops/grafana-dashboard.json)。\n\n由程序的 HELP 文本、告警规则和 \
         `crates/semel-server/src/reference/metrics.toml` 生成。每条告警只列出表达式中\n用到该指标的部分。\n",
    ));
    let (helped, alerts) = (helped(), alerts());
    for Section { title, metric } in described() {
        let _ = write!(text, "\n## {}\n", language.text("metrics", &title, &title));
        for metric in metric {
            let (kind, help) = helped.get(metric.name.as_str()).copied().unwrap_or(("?", "?"));
            describe(&mut text, &metric, (kind, help), &alerts, language);
        }
    }
    text
}

/// Writes one metric: its type, unit, meaning, labels and alerts.
fn describe(
    text: &mut String,
    metric: &Metric,
    (kind, help): (&str, &str),
    alerts: &[Alert],
    language: &Language,
) {
    let Metric { name, unit, note, label } = metric;
    let translated = |english: &str| language.text("metrics", english, english);
    let unit = translated(unit.as_deref().unwrap_or("seconds"));
    let (kind, help) = (translated(kind), translated(help));
    let space = language.pick(" ", "");
    let note = if note.is_empty() { String::new() } else { format!("{space}{}", translated(note)) };
    let (comma, colon) = (language.pick(", ", "，"), language.pick(": ", "："));
    let unit_is = language.pick("unit", "单位");
    let stop = language.pick(".", "。");
    let _ = write!(
        text,
        "\n### `{name}`\n\n{kind}{comma}{unit_is}{colon}{unit}{stop}{space}{help}{note}\n"
    );
    if !label.is_empty() {
        let heads = ["label", "value", "meaning"].map(translated);
        let _ = write!(text, "\n| {} |\n|---|---|---|\n", heads.join(" | "));
    }
    for Label { name, values } in label {
        for (value, meaning) in values {
            let value = if value == "*" { "–".to_owned() } else { format!("`{value}`") };
            let _ = writeln!(text, "| `{name}` | {value} | {} |", cell(&translated(meaning)));
        }
    }
    let mut rules = Vec::new();
    for alert in alerts {
        let Some(clause) = alert.clause(name) else { continue };
        let Alert { name, after, severity, .. } = alert;
        let after = match (after.as_str(), language) {
            ("", _) => String::new(),
            (after, Language::English) => format!(", for {after}"),
            (after, Language::Chinese(_)) => format!("，持续 {after}"),
        };
        let guide = language.pick("operating.md", "operating.zh-CN.md");
        let link = format!("[{name}](../how-to/{guide}#{})", name.to_lowercase());
        rules.push(format!("- {link}{comma}{severity}{colon}`{clause}`{after}\n"));
    }
    match rules.is_empty() {
        true => text.push_str(language.pick("\nNo alert reads it.\n", "\n没有告警用到它。\n")),
        false => {
            let _ = write!(text, "\n{}\n\n{}", language.pick("Alerts:", "告警："), rules.concat());
        }
    }
}

/// Returns the sources of all crates, without this file's data.
fn sources() -> String {
    fn walk(directory: &Path, text: &mut String) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, text);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut text = String::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        walk(&entry.unwrap().path().join("src"), &mut text);
    }
    text
}

/// Returns the labels that the sources give each metric.
fn labelled(sources: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for kind in ["counter", "gauge", "histogram"] {
        for call in sources.split(&format!("{kind}!(")).skip(1) {
            let Some(call) = call.trim_start().strip_prefix("\"semel_") else { continue };
            let call = call.split(';').next().unwrap_or_default();
            let name = format!("semel_{}", call.split('"').next().unwrap_or_default());
            let before =
                call.split("\" =>").map(|part| part.rsplit('"').next().unwrap_or_default());
            let count = call.matches("\" =>").count();
            found.entry(name).or_default().extend(before.take(count).map(str::to_owned));
        }
    }
    found
}

#[test]
fn the_page_of_metrics_has_every_metric_with_the_labels_that_it_is_given() {
    let sources = sources();
    let (labelled, sections) = (labelled(&sources), described());
    let metrics: Vec<&Metric> = sections.iter().flat_map(|section| &section.metric).collect();
    let names: BTreeSet<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
    assert_eq!(names, helped().into_keys().collect(), "metrics.toml and admin/help.rs");
    for Metric { name, unit, label, .. } in metrics {
        let named: BTreeSet<String> = label.iter().map(|label| label.name.clone()).collect();
        assert_eq!(Some(&named), labelled.get(name), "the labels of {name}");
        assert_eq!(unit.is_none(), name.ends_with("_seconds"), "the unit of {name}");
        let values = label.iter().flat_map(|label| &label.values).map(|(value, _)| value);
        for value in values.filter(|value| *value != "*") {
            assert!(sources.contains(&format!("\"{value}\"")), "{name} is never {value}");
        }
    }
}
