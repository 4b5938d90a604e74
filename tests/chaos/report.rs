//! What is printed: each violation with its story, and the last line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::checker::Violation;
use crate::evidence::{Archive, Evidence};
use crate::faults::LoggedFault;
use crate::stage::Stage;

/// Faults this long before a run and after it are part of its story.
const AROUND: TimeDelta = TimeDelta::seconds(5);
const STORIES_MAX: usize = 20;

pub fn print_violations(violations: &[Violation], archive: &Archive, stage: &Stage) {
    let faults = stage.faults.entries();
    for (number, violation) in violations.iter().enumerate() {
        println!("\nviolation {}: {}", number + 1, violation.what);
        let Some(evidence) = violation.run.and_then(|id| archive.runs.get(&id)) else {
            continue;
        };
        println!("  run {} on {}", evidence.run.id, evidence.run.box_id);
        if number < STORIES_MAX {
            print!("{}", story(evidence, &faults, stage));
        }
    }
}

/// The run's events, the record's lines and the faults around them, in the order of time.
fn story(evidence: &Evidence, faults: &[LoggedFault], stage: &Stage) -> String {
    let run = &evidence.run;
    let mut lines: Vec<(DateTime<Utc>, String)> = Vec::new();
    for event in &evidence.events {
        let worker = event.worker.as_deref().unwrap_or("-");
        lines.push((
            event.at,
            format!("event    {} {} by {worker}", event.name, event.detail),
        ));
    }
    for line in &evidence.record {
        let at = line["time"]
            .as_str()
            .and_then(|time| time.parse().ok())
            .unwrap_or_default();
        lines.push((at, format!("box      {}", without_time(line))));
    }
    if let Some(told) = stage.witness.runs().get(&run.id) {
        lines.push((told.told_at, "caller   told of its admission".to_owned()));
        for (at, state) in &told.states {
            lines.push((*at, format!("follower {}", state.as_str())));
        }
    }
    let (from, to) = (
        run.admitted_at - AROUND,
        run.finished_at.unwrap_or(run.read_at) + AROUND,
    );
    for fault in faults.iter().filter(|fault| (from..=to).contains(&fault.at)) {
        if fault.box_id.as_ref().is_none_or(|id| *id == run.box_id) {
            lines.push((fault.at, format!("fault    {} {}", fault.kind, fault.detail)));
        }
    }
    lines.sort_by_key(|(at, _)| *at);
    lines.into_iter().fold(String::new(), |mut text, (at, line)| {
        let _ = writeln!(text, "    {} {line}", at.format("%H:%M:%S%.6f"));
        text
    })
}

fn without_time(line: &Value) -> String {
    let mut line = line.clone();
    for name in ["time", "run", "box"] {
        line.as_object_mut().and_then(|fields| fields.remove(name));
    }
    line.to_string()
}

/// How the runs ended.
pub fn ends(archive: &Archive) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for evidence in archive.runs.values() {
        let run = &evidence.run;
        let name = match run.failure_reason.as_deref() {
            Some(reason) => format!("{} as {reason}", run.state.as_str()),
            None => run.state.as_str().to_owned(),
        };
        *counts.entry(name).or_default() += 1;
    }
    listed(counts)
}

/// `1034 runs, 5210 faults (kill 812, …), 0 violations`
pub fn last_line(archive: &Archive, stage: &Stage, violations: usize) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (kind, count) in stage.faults.counts() {
        counts.insert(kind.to_owned(), count);
    }
    for (kind, count) in &archive.provider_faults {
        counts.insert(format!("answer_{kind}"), *count);
    }
    let faults: usize = counts.values().sum();
    format!(
        "{} runs, {faults} faults ({}), {violations} violations",
        archive.runs.len(),
        listed(counts)
    )
}

fn listed(counts: BTreeMap<String, usize>) -> String {
    let parts: Vec<String> = counts
        .into_iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    parts.join(", ")
}
