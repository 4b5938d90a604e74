//! Alerts: what they watch is there, and each says where to read on.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use boxrun::telemetry::catalogue::{CATALOGUE, MetricKind};
use yaml_rust2::Yaml;

use super::deploy::{is_installed, text, yaml};
use super::runbook;

fn alerts() -> Vec<Yaml> {
    let rules = yaml("alerts.yaml").remove(0)["groups"][0]["rules"].clone();
    rules.into_vec().expect("a list of alerts")
}

/// Everything in a text that looks like a metric of ours.
pub fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("boxrun_")).collect()
}

/// Whether processes export a series of this name.
pub fn is_exported(name: &str) -> bool {
    CATALOGUE.iter().any(|metric| match metric.kind {
        MetricKind::Counter | MetricKind::Gauge => name == metric.name,
        MetricKind::Histogram => ["_bucket", "_sum", "_count"]
            .iter()
            .any(|part| name.strip_suffix(part) == Some(metric.name)),
    })
}

#[test]
fn an_alert_watches_only_what_is_exported() {
    let alerts = alerts();
    assert!(alerts.len() > 10, "{}", alerts.len());
    for alert in &alerts {
        let expression = alert["expr"].as_str().expect("an expression");
        let named = metrics_in(expression);
        assert!(!named.is_empty(), "{expression}");
        for name in named {
            assert!(is_exported(name), "{name} in {expression}");
        }
        let known: BTreeSet<&str> = CATALOGUE.iter().flat_map(|metric| metric.labels).copied().collect();
        let labels = expression
            .split('{')
            .skip(1)
            .filter_map(|rest| rest.split_once(['=', '!']));
        for (label, _) in labels {
            // A template of a route has braces too.
            assert!(known.contains(label) || label.contains('}'), "{label} in {expression}");
        }
    }
}

#[test]
fn an_alert_leads_to_its_entry_in_the_runbook_which_names_it() {
    let entries = runbook::entries();
    for alert in alerts() {
        let name = alert["alert"].as_str().expect("a name");
        let link = alert["annotations"]["runbook"].as_str().expect("a link");
        let anchor = link.strip_prefix("docs/runbook.md#").expect("a link into the runbook");
        let entry = entries.iter().find(|entry| entry.anchor == anchor);
        let entry = entry.unwrap_or_else(|| panic!("{name}: there is no entry {anchor}"));
        assert!(
            entry.text.contains(&format!("`{name}`")),
            "{name} is not named in {anchor}"
        );
        assert!(alert["annotations"]["summary"].as_str().is_some(), "{name}");
        assert!(
            matches!(alert["labels"]["severity"].as_str(), Some("critical" | "warning")),
            "{name}"
        );
    }
}

#[test]
fn an_alert_that_the_runbook_names_is_there() {
    let alerts = alerts();
    for entry in runbook::entries() {
        for word in entry
            .text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|word| word.starts_with("Boxrun"))
        {
            assert!(
                alerts.iter().any(|alert| alert["alert"].as_str() == Some(word)),
                "{word}"
            );
        }
    }
}

#[test]
fn prometheus_takes_the_alerts_and_fires_them_when_it_should() {
    if !is_installed("promtool") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("alerts.yaml"), text("alerts.yaml")).expect("a file");
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/ops/alerts_fire.yaml");
    std::fs::copy(cases, folder.path().join("alerts_fire.yaml")).expect("a file");
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_fire.yaml"]] {
        let promtool = Command::new("promtool")
            .args(arguments)
            .current_dir(folder.path())
            .output();
        let output = promtool.expect("promtool runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}
