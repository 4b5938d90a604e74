//! The runbook: its commands are commands, its metrics are exported, its links lead somewhere.

use std::fs;
use std::path::Path;

use boxrun::cli::Cli;
use clap::Parser as _;

use super::alerts::{is_exported, metrics_in};
use boxrun::telemetry::catalogue::CATALOGUE;

/// One symptom.
pub struct Entry {
    /// As a link has it: `jobs-are-late`.
    pub anchor: String,
    pub text: String,
}

fn text() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbook.md");
    fs::read_to_string(path).expect("docs/runbook.md can be read")
}

pub fn entries() -> Vec<Entry> {
    let text = text();
    let entries = text.split("\n## ").skip(1).map(|entry| {
        let (title, text) = entry.split_once('\n').expect("an entry has a text");
        Entry {
            anchor: title.to_lowercase().replace(' ', "-"),
            text: text.to_owned(),
        }
    });
    entries.collect()
}

/// Lines of the blocks of shell text, and what stands between backquotes.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, part) in text.split("```").enumerate() {
        match part.strip_prefix("sh\n") {
            Some(block) if index % 2 == 1 => found.extend(block.lines().map(str::to_owned)),
            _ => found.extend(part.split('`').skip(1).step_by(2).map(str::to_owned)),
        }
    }
    found.retain(|line| line.starts_with("boxrun "));
    found
}

#[test]
fn each_command_is_one_that_the_program_has() {
    let commands = commands(&text());
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands {
        let filled = [
            ("$run", "01a23066-542e-7e22-aced-84a3182a8e13"),
            ("$kind", "poll"),
            ("$url", "https://box.example.com"),
        ];
        let line = filled
            .iter()
            .fold(command.clone(), |line, (name, value)| line.replace(name, value));
        let words = shlex::split(&line).unwrap_or_else(|| panic!("{command}: quotes"));
        Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

#[test]
fn each_metric_that_is_named_is_exported() {
    for entry in entries() {
        for name in metrics_in(&entry.text) {
            let whole = CATALOGUE.iter().any(|metric| metric.name == name);
            assert!(whole || is_exported(name), "{name} in {}", entry.anchor);
        }
    }
}

#[test]
fn each_entry_says_what_is_seen_what_it_means_and_what_to_do() {
    for entry in entries() {
        assert!(entry.text.contains("**You see**"), "{}", entry.anchor);
        let has_table = entry.text.contains("| --- |");
        for part in ["**It means**", "**Do**"] {
            assert!(has_table || entry.text.contains(part), "{}: {part}", entry.anchor);
        }
    }
}

#[test]
fn each_link_within_the_runbook_leads_to_an_entry() {
    let (text, entries) = (text(), entries());
    for rest in text.split("](#").skip(1) {
        let (anchor, _) = rest.split_once(')').expect("a link ends");
        assert!(entries.iter().any(|entry| entry.anchor == anchor), "#{anchor}");
    }
}
